#include "engine/train/step_price.h"

#include <algorithm>

#include "engine/train/run_plan.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr double kUsualFlops = 312.0e12;     // A100
constexpr double kUsualLinkBytes = 300.0e9;  // likewise
constexpr double kBestEfficiency = 0.6;      // of the data sheet, for large matrices
constexpr double kHalfEfficientTokens =
    256;                                 // of a micro-batch, at which products run half as fast
constexpr double kHiddenShare = 0.7;     // of computing, behind which gradients travel unseen
constexpr double kSelectiveCost = 0.01;  // of a step: one pass over what is computed again

struct Rates {
  double flops;
  double link_bytes;
  double network_bytes;
  int ranks_per_host;

  /// A group of ranks `stride` apart.
  [[nodiscard]] double bytes_of_group(int ranks, int stride) const {
    return ranks * stride <= ranks_per_host ? link_bytes : network_bytes;
  }
};

/// Share of a step's arithmetic that is done once more.
double computed_again(const Config& config) {
  const RecomputeConfig& recompute = config.recompute;
  const std::int64_t blocks = config.model.num_layers;
  const double share =
      static_cast<double>(recompute.layers.value_or(blocks)) / static_cast<double>(blocks);
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone:
      return 0.0;
    case RecomputeGranularity::kSelective:
      return kSelectiveCost * share;
    case RecomputeGranularity::kFull:
      return share / 3.0;  // a forward is a third of forward and backward
  }
  return 0.0;
}

/// engine/plan/schedule.h.
double idle_share_of(const Config& config) {
  const double others = config.pipeline.stages - 1;
  const double work = static_cast<double>(*config.batch.gradient_accumulation_steps) *
                      config.pipeline.virtual_stages;
  return others / (work + others);
}

/// Gradients and parameters among the data-parallel ranks: engine/parallel/README.md.
double data_seconds(const Config& config, const Mesh& mesh, const Rates& rates) {
  const int ranks = mesh.degree(kGradientAxes);
  const int inner = mesh.degree(Axis::kTensor);
  const double parameters =
      static_cast<double>(config.model.num_parameters()) / (inner * mesh.degree(Axis::kPipeline));
  const auto m = static_cast<double>(*config.batch.gradient_accumulation_steps);
  const double moved = config.zero.stage == 3 ? 3 * m : config.zero.stage == 2 ? m + 1 : 2;
  const DType wire = config.formats.communication.value_or(dtype_of(config.precision));
  const double bytes =
      parameters * moved * static_cast<double>(size_of(wire)) * (ranks - 1) / ranks;
  return bytes / rates.bytes_of_group(ranks, inner);
}

/// Two sums each way in every block, which computing waits for.
double tensor_seconds(const Config& config, const Mesh& mesh, const Rates& rates) {
  const int ranks = mesh.degree(Axis::kTensor);
  const auto tokens =
      static_cast<double>(*config.batch.micro_batch_size *
                          *config.batch.gradient_accumulation_steps * config.data.sequence_length);
  const double blocks = static_cast<double>(config.model.num_layers) / mesh.degree(Axis::kPipeline);
  const double sums = config.recompute.granularity == RecomputeGranularity::kFull ? 6.0 : 4.0;
  const double bytes = sums * blocks * tokens * static_cast<double>(config.model.hidden_size) *
                       static_cast<double>(size_of(dtype_of(config.precision))) * 2.0 *
                       (ranks - 1) / ranks;
  return bytes / rates.bytes_of_group(ranks, 1);
}

}  // namespace

double price_step(const Config& config, int world_size, const Cluster& cluster) {
  const Mesh mesh = mesh_of(config, world_size);
  check(config.batch.micro_batch_size && config.batch.gradient_accumulation_steps,
        "the config's batch sizes are not resolved");
  const bool known = cluster.accelerator.flops > 0.0;
  const Rates rates{.flops = known ? cluster.accelerator.flops : kUsualFlops,
                    .link_bytes = known ? cluster.accelerator.link_bytes : kUsualLinkBytes,
                    .network_bytes = cluster.network_bytes,
                    .ranks_per_host = cluster.ranks_per_host};
  const auto micro_tokens =
      static_cast<double>(*config.batch.micro_batch_size * config.data.sequence_length);
  const double tokens =
      micro_tokens * static_cast<double>(*config.batch.gradient_accumulation_steps);
  const double efficiency = kBestEfficiency * micro_tokens / (micro_tokens + kHalfEfficientTokens);
  const double work = config.model.flops_per_token(config.data.sequence_length) * tokens /
                      (mesh.degree(Axis::kTensor) * mesh.degree(Axis::kPipeline));
  const double computing = work * (1.0 + computed_again(config)) / (rates.flops * efficiency);
  const double busy = computing + tensor_seconds(config, mesh, rates);
  const double hidden = config.zero.overlap_comm ? kHiddenShare * computing : 0.0;
  const double data = data_seconds(config, mesh, rates);
  return busy / (1.0 - idle_share_of(config)) + std::max(data - hidden, 0.1 * data);
}

}  // namespace dstrain
