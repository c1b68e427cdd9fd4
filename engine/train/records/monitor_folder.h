// The folder of a monitor's files. Where it is outside of the run's own folder, which no other run
// writes to, a file in it says whose it is.
#pragma once

#include <filesystem>
#include <string>

#include "engine/config/monitor_config.h"

namespace dstrain {

/// Makes the folder that `monitor` says, or `inside` in `output_dir`, and returns it. `block` is
/// the monitor's name in the config. Throws ConfigError where another run, or another program, has
/// files there, and StorageError.
std::filesystem::path own_monitor_folder(const MonitorFolder& monitor,
                                         const std::string& block,
                                         const std::filesystem::path& output_dir,
                                         const std::string& inside);

}  // namespace dstrain
