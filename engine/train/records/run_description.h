// RunDescription: what a run says in other programs' files about itself as a whole.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/config/loaded_config.h"

namespace dstrain {

struct RunDescription {
  std::string name;               ///< of the run's folder
  nlohmann::ordered_json config;  ///< every value, with defaults; blocks as in the file
  std::chrono::system_clock::time_point start = std::chrono::system_clock::now();
};

/// The name of the folder that a run writes to, training.output_dir.
std::string run_name(const std::filesystem::path& output_dir);

RunDescription describe_run(const LoadedConfig& loaded);

/// Every value that is not a list or a block, by its dotted path: "optimizer.params.lr".
std::vector<std::pair<std::string, nlohmann::ordered_json>> hyperparameters(
    const nlohmann::ordered_json& config);

}  // namespace dstrain
