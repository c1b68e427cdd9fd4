#include "engine/train/records/monitor_folder.h"

#include <fstream>

#include <fmt/format.h>

#include "engine/checkpoint/durable_files.h"
#include "engine/config/config_error.h"
#include "engine/train/records/run_description.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhoseFiles = ".dstrain-run";

/// The run whose files a folder has, as it was written there; empty: none is.
std::string owner_of(const fs::path& folder) {
  std::ifstream in(folder / kWhoseFiles);
  std::string text;
  std::getline(in, text);
  return text;
}

}  // namespace

fs::path own_monitor_folder(const MonitorFolder& monitor,
                            const std::string& block,
                            const fs::path& output_dir,
                            const std::string& inside) {
  const DurableFiles files;
  if (monitor.output_path.empty()) {
    fs::path folder = output_dir / inside;
    if (!monitor.job_name.empty()) folder /= monitor.job_name;
    files.make_folder(folder);
    return folder;
  }
  const fs::path folder = fs::path(monitor.output_path) /
                          (monitor.job_name.empty() ? run_name(output_dir) : monitor.job_name);
  const std::string run = fs::weakly_canonical(fs::absolute(output_dir)).string();
  const std::string owner = owner_of(folder);
  if (owner == run) return folder;
  std::error_code missing;
  const bool has_files = fs::directory_iterator(folder, missing) != fs::directory_iterator();
  if (!owner.empty() || has_files) {
    throw ConfigError(fmt::format(
        "{}: {} has files of {}, and nothing of these may be lost: give {}.job_name "
        "another name, or move the folder away",
        block, folder.string(), owner.empty() ? "another program" : "the run in " + owner, block));
  }
  files.make_folder(folder);
  files.write_file(folder / kWhoseFiles, run + "\n");
  files.sync_folder(folder);
  return folder;
}

}  // namespace dstrain
