#include "engine/train/step_price.h"

#include <algorithm>

#include "engine/config/arch/architecture.h"
#include "engine/config/arch/model_counts.h"
#include "engine/train/run_plan.h"
#include "engine/train/trained_part.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr double kUsualFlops = 312.0e12;     // A100
constexpr double kUsualLinkBytes = 300.0e9;  // likewise
constexpr double kBestEfficiency = 0.6;      // of the data sheet, for large matrices
constexpr double kHiddenShare = 0.7;         // of computing, behind which gradients travel unseen
constexpr double kSelectiveCost = 0.01;      // of a step: one pass over what is computed again

struct Rates {
  double flops;
  double link_bytes;
  double network_bytes;
  int ranks_per_host;

  [[nodiscard]] double bytes_of_group(const GroupPlan& group) const {
    const bool in_one_host =
        group.members.front() / ranks_per_host == group.members.back() / ranks_per_host;
    return in_one_host ? link_bytes : network_bytes;
  }
};

/// Share of a step's arithmetic that is done a second time because feed-forwards go in tiles, in
/// the share of the blocks that are not computed again anyway.
double tiles_again(const Config& config, double blocks) {
  if (!config.training.mlp_tile_tokens) return 0.0;
  const ModelSpec& model = config.model;
  double up = 0.0;  // operations of a token
  for (const LayerSpec& layer : Architecture(model).layers) {
    const FeedForwardSpec& spec = layer.feed_forward;
    const std::int64_t width =
        spec.experts ? spec.experts->per_token * spec.width + spec.experts->shared_width
                     : spec.width;
    up += 2.0 * static_cast<double>(model.hidden_size * width) * (spec.gated ? 2.0 : 1.0);
  }
  return blocks * up / flops_per_token(model, config.data.sequence_length);
}

/// Share of a step's arithmetic that is done a second time.
double computed_again(const Config& config) {
  const RecomputeConfig& recompute = config.recompute;
  const std::int64_t blocks = config.model.num_layers;
  const double share =
      static_cast<double>(recompute.layers.value_or(blocks)) / static_cast<double>(blocks);
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone:
      return tiles_again(config, 1.0);
    case RecomputeGranularity::kSelective:
      return kSelectiveCost * share + tiles_again(config, 1.0);
    case RecomputeGranularity::kFull:
      // A forward is a third of forward and backward.
      return share / 3.0 + tiles_again(config, 1.0 - share);
  }
  return 0.0;
}

/// The idle share of a pipeline, as in engine/plan/schedule.h.
double idle_share_of(const Config& config) {
  const double others = config.pipeline.stages - 1;
  const double work = static_cast<double>(*config.batch.gradient_accumulation_steps) *
                      config.pipeline.virtual_stages;
  return others / (work + others);
}

/// How many times every rank of a ring of n sends each byte of a buffer.
double times_sent(Op op, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (op) {
    case Op::kAllReduce:
      return 2.0 * others;
    case Op::kReduceScatter:
    case Op::kAllGather:
    case Op::kAllToAll:
      return others;
    case Op::kBroadcast:
    case Op::kExchange:
      return 1.0;
    case Op::kBarrier:
      return 0.0;
  }
  return 0.0;
}

struct WireSeconds {
  double waited_for = 0.0;  ///< by computing
  /// Gradients and parameters among the data-parallel ranks, keys on their way round a ring, and
  /// rows on their way to experts and back as far as something else computes.
  double beside = 0.0;
};

/// Adds the seconds of a step that issues `traffic`, times `share`.
void add_wire_seconds(const TrafficPlan& traffic,
                      double share,
                      const RunPlan& plan,
                      const Rates& rates,
                      WireSeconds& seconds) {
  traffic.for_each([&](const Transfer& transfer, std::int64_t times) {
    const GroupPlan& group = *find_group(plan.groups, transfer.group);
    const double bytes = static_cast<double>(times) * static_cast<double>(transfer.bytes()) *
                         times_sent(transfer.op, group.size());
    const bool is_beside =
        transfer.group == GroupId::kData || transfer.group == GroupId::kDataInside ||
        transfer.group == GroupId::kExpertData || transfer.group == GroupId::kContextRing ||
        transfer.group == GroupId::kDataAcross || transfer.is_beside;
    // Gradients that travel after the norm hide behind nothing.
    const bool is_late =
        transfer.phase == TrafficPhase::kUpdate && transfer.purpose == Purpose::kGradient;
    double& sum = is_beside && !is_late ? seconds.beside : seconds.waited_for;
    sum += share * bytes / rates.bytes_of_group(group);
  });
}

/// Where steps differ in what gradients do, the mean over the run's steps.
WireSeconds wire_seconds(const RunPlan& plan, std::int64_t steps, const Rates& rates) {
  WireSeconds seconds;
  const auto add = [&](GradientTravel travel, const TrafficPlan& traffic) {
    const std::int64_t count =
        count_travel(plan.update.optimizer, plan.update.compression, travel, steps);
    add_wire_seconds(traffic, static_cast<double>(count) / static_cast<double>(steps), plan, rates,
                     seconds);
  };
  add(GradientTravel::kSummed, plan.traffic);
  for (const auto& [travel, traffic] : plan.other_traffic) {
    add(travel, traffic);
  }
  return seconds;
}

/// The number of times that a step goes over the model, forward and back: once for every
/// micro-batch, or for those that go together.
std::int64_t passes_of(const RunPlan& plan) {
  return std::count_if(plan.actions.begin(), plan.actions.end(), [](const Action& action) {
    return action.kind == Action::Kind::kForward && action.chunk == 0;
  });
}

/// Seconds in which parameters that lie in the host's memory, or on a disk, are brought to where
/// they are gathered.
double gather_seconds(const RunPlan& plan, const Cluster& cluster) {
  if (!plan.memory.parameters_are_apart()) {
    return 0.0;
  }
  std::int64_t elements = 0;  // of a pass
  for (const ChunkPlan& chunk : plan.chunks) {
    for (const int walk : {chunk.forward_walk, chunk.backward_walk}) {
      if (walk == ChunkPlan::kGoesOn) continue;
      for (const Gather& gather : plan.gathers[static_cast<std::size_t>(walk)].gathers()) {
        elements += plan.memory.owned(gather.unit).size();
      }
    }
  }
  return static_cast<double>(passes_of(plan) * elements *
                             size_of(plan.memory.options().compute_dtype)) /
         (plan.memory.placement().parameters.space == Space::kDisk ? cluster.disk_bytes
                                                                   : cluster.host_bytes);
}

/// Seconds in which what blocks keep of their inputs goes to the host's memory and comes back.
double input_seconds(const RunPlan& plan, const Cluster& cluster) {
  std::int64_t bytes = 0;  // of a micro-batch
  for (const BufferDecl& buffer : plan.blueprint.buffers()) {
    bytes += buffer.space == Space::kHost ? buffer.bytes() : 0;
  }
  return static_cast<double>(2 * bytes * plan.batch.accumulation) / cluster.host_bytes;
}

/// Seconds in which states that lie elsewhere pass by the optimizer, at the pace of the slower of
/// the disk and the way to and from the device.
double offload_seconds(const RunPlan& plan, const Cluster& cluster) {
  if (!plan.memory.states_are_apart()) {
    return 0.0;
  }
  const StateWindows& windows = plan.memory.windows();
  const auto elements = static_cast<double>(windows.end(windows.count() - 1));
  double crossing = 0.0;  // bytes an element
  double on_disk = 0.0;
  const auto bytes_of = [&](WindowTensor tensor) {
    const auto dtype = windows.passing(tensor);
    return dtype ? static_cast<double>(size_of(*dtype)) : 0.0;
  };
  crossing += bytes_of(WindowTensor::kGradient);
  const bool go_to_disk = plan.memory.placement().parameters.space == Space::kDisk;
  (go_to_disk ? on_disk : crossing) += bytes_of(WindowTensor::kParameters);
  for (const WindowTensor tensor :
       {WindowTensor::kMaster, WindowTensor::kFirstMoment, WindowTensor::kSecondMoment}) {
    on_disk += 2.0 * bytes_of(tensor);
  }
  return elements * std::max(crossing / cluster.host_bytes, on_disk / cluster.disk_bytes);
}

}  // namespace

double price_step(const Config& config, const RunPlan& plan, const Cluster& cluster) {
  check(config.batch.micro_batch_size && config.batch.gradient_accumulation_steps,
        "the config's batch sizes are not resolved");
  const bool known = cluster.accelerator.flops > 0.0;
  const Rates rates{.flops = known ? cluster.accelerator.flops : kUsualFlops,
                    .link_bytes = known ? cluster.accelerator.link_bytes : kUsualLinkBytes,
                    .network_bytes = cluster.network_bytes,
                    .ranks_per_host = cluster.ranks_per_host};
  const auto micro_tokens = static_cast<double>(plan.batch.own_tokens());
  const double tokens =
      micro_tokens * static_cast<double>(*config.batch.gradient_accumulation_steps);
  const double efficiency =
      kBestEfficiency * micro_tokens / (micro_tokens + cluster.half_efficient_tokens);
  const double of_token = flops_per_token(config.model, config.data.sequence_length) -
                          left_out_flops_per_token(plan.shape);
  const double work = of_token * tokens / plan.mesh.degree(kModelAxes);
  const double computing = work * (1.0 + computed_again(config)) / (rates.flops * efficiency);
  WireSeconds wire = wire_seconds(plan, config.training.steps, rates);
  wire.beside += gather_seconds(plan, cluster) + input_seconds(plan, cluster);
  const double busy = computing + wire.waited_for;
  const double hidden = config.zero.overlap_comm ? kHiddenShare * computing : 0.0;
  // The update goes on while the next step's first pass is on its way forward.
  const double first_forward = computing / (3.0 * static_cast<double>(passes_of(plan)));
  const double offload = offload_seconds(plan, cluster);
  return busy / (1.0 - idle_share_of(config)) + std::max(wire.beside - hidden, 0.1 * wire.beside) +
         std::max(offload - first_forward, 0.1 * offload);
}

}  // namespace dstrain
