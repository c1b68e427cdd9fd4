#include "engine/train/plan_traffic.h"

#include <algorithm>

#include "engine/config/arch/adapters.h"
#include "engine/train/objective/sequence_exchange.h"
#include "engine/train/rank_report.h"
#include "engine/train/routing_report.h"
#include "engine/train/run_plan.h"

namespace dstrain {
namespace {

/// The rows that have magnitudes, and of which each rank has columns, in the weights of a block
/// whose names begin so.
std::int64_t summed_lengths(const LayerShape& shape, const LayerSpec& layer, const char* part) {
  if (!shape.adapters.magnitudes) return 0;
  const std::vector<TensorDecl> block = block_tensors(shape.model, layer, "");
  std::int64_t rows = 0;
  for (const TensorDecl& adapter :
       adapter_tensors(shape.adapters.modules, shape.adapters.rank, true, block, "")) {
    // Where ranks have rows of a weight, they have those of its magnitudes.
    const bool is_whole = adapter.name.ends_with(kAdapterMagnitude) && adapter.cut == Cut::kWhole &&
                          adapter.gradient_of_copy == GradientOfCopy::kOfMyShare;
    rows += is_whole && adapter.name.starts_with(part) ? adapter.shape.numel() : 0;
  }
  return rows;
}

ChunkTraffic traffic_of(const ChunkPlan& chunk, const Architecture& model, const RunPlan& plan) {
  const RecomputeConfig& recompute = plan.recompute;
  const bool own_tokens = plan.shape.experts.own_tokens;
  const StageExtent& extent = chunk.stage.extent();
  ChunkTraffic traffic{.is_first = extent.is_first(),
                       .is_last = extent.is_last(),
                       .forward = chunk.stage.forward_walk(),
                       .backward = chunk.stage.backward_walk(),
                       .blocks = {},
                       .forward_gathers = chunk.forward_walk,
                       .backward_gathers = chunk.backward_walk == ChunkPlan::kGoesOn
                                               ? ChunkTraffic::kGoesOn
                                               : chunk.backward_walk};
  for (std::int64_t block = extent.first_block; block < extent.end_block; ++block) {
    const LayerSpec& layer = model.layers.at(static_cast<std::size_t>(block));
    const bool has_own_tokens = own_tokens && chunk.stage.experts(block) != nullptr;
    traffic.blocks.push_back(
        {.gathers_input = recompute.partitions_input_of(block),
         .computes_again = recompute.of_block(block) == RecomputeGranularity::kFull,
         .sums_norms = layer.attention.query_key_norm == QueryKeyNorm::kFullWidth,
         .attention_lengths = summed_lengths(plan.shape, layer, "attention."),
         .feed_forward_lengths = has_own_tokens ? 0 : summed_lengths(plan.shape, layer, "mlp."),
         .parallel = layer.parallel_branches,
         .norms_results = layer.norm_placement != NormPlacement::kBeforeBranch,
         .own_tokens = has_own_tokens,
         .attend = chunk.stage.attention(block).context_traffic(Pass::kForward),
         .attend_backward = chunk.stage.attention(block).context_traffic(Pass::kBackward),
         .experts = chunk.stage.experts(block) == nullptr ? ExpertTraffic{}
                                                          : chunk.stage.experts(block)->traffic()});
  }
  return traffic;
}

OptimizerTraffic traffic_of(OptimizerKind kind, const RunPlan& plan) {
  OptimizerTraffic traffic;
  const auto scratch = [&]() -> const BufferDecl& {
    const int index = plan.optimizer_scratch.buffers.at(0).index;
    return plan.blueprint.buffers().at(static_cast<std::size_t>(index));
  };
  if (kind == OptimizerKind::kLamb) {
    traffic.reduced_doubles = scratch().shape.numel();
  } else if (kind == OptimizerKind::kMuon) {
    traffic.gathered_dtype = scratch().dtype;
    for (int unit = 0; unit < plan.shards.num_units(); ++unit) {
      const std::vector<ParamDecl>& params = plan.shards.unit(unit).params;
      if (std::any_of(params.begin(), params.end(),
                      [](const ParamDecl& param) { return param.hidden_matrix; })) {
        traffic.gathered_units.push_back(unit);
      }
    }
  }
  return traffic;
}

}  // namespace

TrafficPlan plan_traffic(const RunPlan& plan, GradientTravel travel) {
  const Architecture model(plan.model);
  std::vector<ChunkTraffic> chunks;
  for (const ChunkPlan& chunk : plan.chunks) {
    chunks.push_back(traffic_of(chunk, model, plan));
  }
  return TrafficPlan(
      {.groups = plan.groups,
       .norm_group = plan.norm_group,
       .expert_norm_group = plan.expert_norm_group,
       .travel = travel,
       .blueprint = plan.blueprint,
       .shards = plan.shards,
       .memory = plan.memory,
       .actions = plan.actions,
       .gathers = plan.gathers,
       .chunks = chunks,
       .tokens = plan.batch.own_tokens(),
       .width = plan.model.hidden_size,
       .micro_batches = plan.batch.accumulation,
       .splits_tokens = plan.sequence_parallel,
       .optimizer = traffic_of(plan.update.optimizer.kind, plan),
       .scaled_tensors = static_cast<std::int64_t>(plan.fp8 ? scaled_tensors(plan).size() : 0),
       .routing_doubles = RoutingReport(plan.model, false).size(),
       .report_doubles = kRankReportNumbers,
       .counts_targets = plan.batch.documents.ignores_targets() && !plan.shape.weighs_targets,
       .weighed_numbers = plan.shape.weighs_targets
                              ? SequenceExchange::kinds(plan.shape.model) * plan.batch.micro_batch *
                                    plan.batch.sequence
                              : 0});
}

}  // namespace dstrain
