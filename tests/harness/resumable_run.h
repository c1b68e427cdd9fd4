// Whole runs of a tiny model, from a config file to checkpoints and metrics, in a temporary folder,
// for tests of resuming and of skipped steps.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/config/config_json.h"
#include "engine/train/run_training.h"

namespace dstrain::test {

/// A folder with token files, removed at the end.
class RunFolder {
 public:
  RunFolder();
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Eight steps' schedule, 8 sequences a step in two micro-batches, clipping, a checkpoint every 4
/// steps; `changes` are merged into the config file.
LoadedConfig config_of(const RunFolder& folder,
                       const std::string& output,
                       int steps,
                       int ranks,
                       const nlohmann::json& changes = nlohmann::json::object());

/// Changes with further ones in them.
inline nlohmann::json merged(nlohmann::json base, const nlohmann::json& changes) {
  base.merge_patch(changes);
  return base;
}

/// All ranks as threads. `probe` sees each change of the disk that a save makes.
TrainResult run(const LoadedConfig& config,
                int ranks,
                const std::atomic<int>* signal = nullptr,
                const DiskProbe& probe = {});

/// Lines of metrics.jsonl without clocks and memory.
std::vector<nlohmann::json> metrics_of(const RunFolder& folder, const std::string& output);

/// Master and moments of the newest checkpoint, tensor by tensor.
std::vector<std::vector<float>> state_of(const RunFolder& folder,
                                         const std::string& output,
                                         const LoadedConfig& config);

}  // namespace dstrain::test
