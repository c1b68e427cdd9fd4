// The changes of a config that may make a run fit into its memory (memory_fit.h), each as --set's
// and in words: one that waits for saves, computes again, cuts or moves states, takes smaller
// micro-batches, or divides the model among more ranks.
#pragma once

#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/plan/mesh.h"

namespace dstrain {

/// One change of the config; a remedy consists of one or several.
struct Change {
  std::vector<std::string> overrides;
  std::string what;
};

/// Changes of which at most one is made, cheapest first.
using Choice = std::vector<Change>;

/// All that the config, resolved for that mesh, leaves open.
std::vector<Choice> choices_of(const Config& config, const Mesh& mesh, int ranks_per_host);

/// The folder on a host's disk that changes offload to: the one that the config names, or /var/tmp,
/// which Linux keeps across restarts.
std::string disk_folder_for(const OffloadConfig& offload);

}  // namespace dstrain
