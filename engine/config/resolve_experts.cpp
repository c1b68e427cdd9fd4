// What a mixture of experts does not go with.
#include <fmt/format.h>

#include "engine/config/resolve_parts.h"

namespace dstrain {

void resolve_experts(const LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  if (config.model.experts.count == 0) return;
  const auto refuse = [&](const char* path, const std::string& message) {
    throw_config_error(origins[path], path, message);
  };
  if (config.fp8.enabled) {
    refuse("fp8.enabled",
           "true, and the model is a mixture of experts, whose products are not in 8 bits in this "
           "version: expected false");
  }
  if (config.training.cuda_graphs) {
    refuse("training.cuda_graphs",
           "true, and the model is a mixture of experts, whose numbers of rows the host waits for "
           "within a block, which a graph cannot hold: expected false");
  }
  if (config.context_parallel.size > 1) {
    refuse("context_parallel.size",
           fmt::format("{}, and the model is a mixture of experts, whose ranks do not share "
                       "sequences in this version: expected 1",
                       config.context_parallel.size));
  }
}

}  // namespace dstrain
