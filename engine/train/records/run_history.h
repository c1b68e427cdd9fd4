// RunHistory: history.jsonl in a run's folder, which has a line for each start of the run and one
// for each orderly end. A start without an end was killed, or its machine failed. Lines stay when
// the run resumes, or starts anew.
//
//   {"event": "start", "time": …, "step": …, "ranks": …, "layout": {…}, "device": …, "host": …,
//    "job": …, "restart": …, "hosts": [[name, ranks], …] in the order of ranks, "config": {path:
//    [value, origin]}}    of values that are no defaults
//   {"event": "end", "time": …, "how": "finished at step 400"}
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/checkpoint/owner/run_owner.h"
#include "engine/config/loaded_config.h"
#include "engine/plan/mesh.h"

namespace dstrain {

class RunHistory {
 public:
  static constexpr const char* kFile = "history.jsonl";

  /// For rank 0 of a run that owns its folder.
  explicit RunHistory(const std::filesystem::path& output_dir) : path_(output_dir / kFile) {}

  /// Adds the line of a start, which continues after `step`. `hosts` is by rank. Throws
  /// StorageError.
  void start(std::int64_t step,
             const LoadedConfig& loaded,
             const Mesh& mesh,
             const std::string& device,
             const std::vector<std::string>& hosts,
             const OwnerRecord& owner);
  /// Adds the line of its end, where it has started. What cannot be written is left out.
  void end(const std::string& how) noexcept;

 private:
  std::filesystem::path path_;
  bool has_started_ = false;
};

}  // namespace dstrain
