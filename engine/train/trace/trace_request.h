// TraceRequest: somebody asks a run that is going on for a trace. The request is a file in the
// run's folder, which rank 0 takes away when it begins to obey.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "engine/config/trace_config.h"

namespace dstrain {

struct TraceRequest {
  static constexpr const char* kFile = "trace.request";

  std::int64_t steps = 1;         ///< how many, from the next one on
  std::vector<NumberSpan> ranks;  ///< empty: all
};

/// Throws StorageError.
void ask_for_trace(const std::filesystem::path& output_dir, const TraceRequest& request);
/// Takes the request that is there, if any. What is there and is none is taken away as well.
std::optional<TraceRequest> take_trace_request(const std::filesystem::path& output_dir);

}  // namespace dstrain
