// Finds tensor-parallel groups that do not lie inside one host. Every block waits for their sums,
// so the network between the hosts sets the pace. The slots alone decide that, before anything
// starts.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/config/config.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// Returns a warning with the cost in bytes; nothing where every group is inside a host. Ranks are
/// numbered over the slots in the order of `hosts`; `config` is resolved for that many ranks.
std::optional<std::string> describe_split_groups(const Config& config,
                                                 std::span<const launcher::Host> hosts);

}  // namespace dstrain
