#include <fmt/format.h>

#include "engine/config/resolve_parts.h"

namespace dstrain {

void resolve_device(LoadedConfig& loaded, const MachineFacts& facts, Origins& origins) {
  DeviceChoice& device = loaded.config.training.device;
  if (device != DeviceChoice::kAuto) return;
  device = facts.cuda ? DeviceChoice::kCuda : DeviceChoice::kCpu;
  origins["training.device"] = facts.name.empty()
                                   ? "derived: for machines that were not examined"
                                   : fmt::format("derived: the ranks compute on {}", facts.name);
}

}  // namespace dstrain
