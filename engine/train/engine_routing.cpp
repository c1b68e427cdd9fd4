// How a step finds out what its experts did: each rank adds the tally and the losses of its own
// blocks to a RoutingReport, which is then summed over all ranks.
#include "engine/train/engine.h"
#include "kernels/core/caller_stream.h"

namespace dstrain {

/// Ranks that share tensors have the same tokens, and the first of them counts, unless experts take
/// the tokens of each one's stream. Of those that share sequences each counts its tokens, and the
/// first the sequences.
std::vector<LayerRouting> Engine::routing_of_all_ranks() {
  if (routing_.size() == 0) {
    return {};
  }
  routing_.clear();
  const bool is_first = plan_.mesh.index(Axis::kTensor, plan_.rank) == 0;
  if (is_first || plan_.shape.experts.own_tokens) {
    std::map<std::int64_t, std::array<double, 2>> losses;
    for (std::size_t chunk = 0; chunk < plan_.chunks.size(); ++chunk) {
      const TransformerStage& stage = stage_of(static_cast<int>(chunk));
      for (std::int64_t block = stage.extent().first_block; block < stage.extent().end_block;
           ++block) {
        const Experts* const experts = stage.experts(block);
        if (experts == nullptr) continue;
        std::array<double, 2>& of_block = losses[block];
        if (const Tensor sums = experts->losses(context_); !sums.empty()) {
          context_.device.copy_to_host(sums, of_block.data(), context_.compute);
        }
      }
    }
    context_.compute.synchronize();
    for (const auto& [block, of_block] : losses) {
      ExpertTally::Layer part = expert_tally_.layers().at(block);
      if (!is_first || plan_.mesh.index(kContextAxes, plan_.rank) != 0) part.sequences = 0;
      routing_.add(block, part, of_block);
    }
  }
  CallerStream host;
  groups_[GroupId::kWorld].all_reduce(routing_.sums(), ReduceOp::kSum, Purpose::kMetric, host);
  return routing_.layers();
}

}  // namespace dstrain
