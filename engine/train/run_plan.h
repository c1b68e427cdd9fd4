// RunPlan: everything about a run that can be known before touching a device, for one rank. A pure
// function of (config, world size, rank), make_run_plan.h: printed by estimates, executed by the
// engine, compared by tests. What computes, allocates or prices a step reads the plan and never the
// config.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/comm/wire_options.h"
#include "engine/config/batch_ramp.h"
#include "engine/config/model_spec.h"
#include "engine/config/number_formats.h"
#include "engine/config/recompute_config.h"
#include "engine/config/scheduler_config.h"
#include "engine/config/sequence_ramp.h"
#include "engine/data/documents.h"
#include "engine/generate/generation_plan.h"
#include "engine/model/transformer_stage.h"
#include "engine/optim/optimizer.h"
#include "engine/plan/group_plan.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/mesh.h"
#include "engine/plan/schedule.h"
#include "engine/plan/shard_map.h"
#include "engine/plan/token_share.h"
#include "engine/plan/traffic_plan.h"
#include "engine/runtime/disk/disk_device.h"
#include "engine/runtime/fp8_scales.h"
#include "kernels/attention_kernels.h"

namespace dstrain {

/// The batch of one optimizer step, as this rank sees it. Steps differ where the batch grows, then
/// in the number of forwards, and where sequences grow.
struct BatchPlan {
  std::int64_t micro_batch = 1;                 ///< sequences of a forward
  std::int64_t accumulation = 1;                ///< forwards of a step; the most there are
  std::optional<BatchRamp> ramp{};              ///< none: all steps are alike
  std::int64_t data_parallel = 1;               ///< ranks with other samples
  std::int64_t sequence = 1;                    ///< tokens of a sequence; the most there are
  ContextShape context{};                       ///< which of them this rank has
  std::optional<SequenceRamp> sequence_ramp{};  ///< none: all steps are alike
  int data_rank = 0;
  DocumentRules documents{};

  [[nodiscard]] std::int64_t global_samples() const {
    return micro_batch * accumulation * data_parallel;
  }
  [[nodiscard]] std::int64_t samples_at(std::int64_t consumed) const {
    return ramp ? ramp->batch_at(consumed, global_samples()) : global_samples();
  }
  [[nodiscard]] std::int64_t accumulation_at(std::int64_t consumed) const {
    return samples_at(consumed) / (micro_batch * data_parallel);
  }
  /// The number of tokens of a sequence in step 1, 2, …
  [[nodiscard]] std::int64_t sequence_at(std::int64_t step) const {
    return sequence_ramp ? std::min(sequence_ramp->length_at(step), sequence) : sequence;
  }
  /// The number of tokens that the run has seen after `steps` steps that consumed that many
  /// samples.
  [[nodiscard]] std::int64_t tokens_after(std::int64_t steps, std::int64_t consumed) const;
  /// The most tokens that this rank has of a micro-batch.
  [[nodiscard]] std::int64_t own_tokens() const {
    return micro_batch * (sequence / context.ranks());
  }
  [[nodiscard]] std::int64_t global_tokens() const { return global_samples() * sequence; }
  /// The first sample of this rank's micro-batch `index` in a step that starts at sample `start`.
  /// Samples are dealt in the order (data rank, micro-batch, row), so the set of a step does not
  /// depend on how many ranks share it.
  [[nodiscard]] std::int64_t first_sample(std::int64_t start, std::int64_t index) const {
    return start + (data_rank * accumulation_at(start) + index) * micro_batch;
  }
};

/// How a sum of gradients over the ranks becomes their mean: in parts, so that neither the addends
/// nor the sum leave the range of a narrow number format (DeepSpeed's prescale_gradients and
/// gradient_predivide_factor).
struct GradientAveraging {
  double before_sum = 1.0;
  double after_sum = 1.0;
  GradientAveraging(const FormatConfig& formats, int ranks)
      : before_sum(formats.prescale_gradients ? 1.0 / ranks
                                              : 1.0 / formats.gradient_predivide_factor),
        after_sum(1.0 / (before_sum * ranks)) {}
};

/// How gradients are turned into new parameters.
struct UpdatePlan {
  OptimizerConfig optimizer;
  CompressionConfig compression{};  ///< of gradients
  SchedulerConfig scheduler;
  double gradient_clipping = 0.0;  ///< limit of the global norm; 0: off
  LossScaleConfig loss_scale;      ///< static at 1 where nothing is computed in fp16
  /// Steps in a row whose gradients are not finite, after which the run stops.
  std::int64_t max_consecutive_skips = 1;
  GradientAveraging averaging;  ///< over kGradientAxes
};

/// One model chunk of this rank: a stage of the model, and its walks (indices into
/// RunPlan::gathers, which is passed to DataParallel::begin_walk).
struct ChunkPlan {
  TransformerStage stage;
  int forward_walk = 0;
  /// The value kGoesOn means that backward follows each forward at once and is the second part of
  /// its walk.
  int backward_walk = 0;
  int evaluation_walk = 0;
  static constexpr int kGoesOn = -1;
};

/// This rank's part of the schedule of a step of a given number of micro-batches, and where it
/// keeps those in flight.
struct StepOrder {
  std::int64_t micro_batches = 1;
  std::vector<Action> actions;
  ActivationSlots slots;
};

/// The model of a run as it continues texts between steps: with the parameters that are trained,
/// and with caches and scratch of its own among the run's buffers.
struct SamplingPlan {
  GenerationSizes sizes;
  Blueprint blueprint;  ///< Blueprint::once_more
  TransformerStage stage;
  /// By unit, all of its parameters, where the ranks have parts of them (ZeRO 3); else empty.
  std::vector<BufferRef> parameters{};
};

struct RunPlan {
  /// The number of checksums that a replica check computes before it fetches them.
  static constexpr std::int64_t kBitSums = 64;

  Mesh mesh;
  int rank = 0;                   ///< in the world
  std::vector<GroupPlan> groups;  ///< of this rank, in the order in which they are formed
  /// The group over which the squares of gradients are summed: all ranks where each owns a slice,
  /// or those that own the slices once; else those that hold other parts of the model.
  GroupId norm_group = GroupId::kModel;
  std::optional<GroupId> expert_norm_group{};  ///< of experts that have groups of their own
  ModelSpec model;                             ///< whole, as all ranks together hold it
  RecomputeConfig recompute;
  bool sequence_parallel = false;
  bool saves_frozen = true;               ///< checkpoints hold the parameters that are not trained
  std::optional<Fp8Scales::Options> fp8;  ///< none: nothing is computed in 8 bits
  AttentionKernels attention = AttentionKernels::kOwn;
  WireSecurity wire_security = WireSecurity::kAuthenticated;
  std::uint64_t seed = 0;  ///< of initial values, of stochastic rounding and of dropout
  UpdatePlan update;
  BatchPlan batch;
  Blueprint blueprint;
  LayerShape shape;                        ///< of the chunks' layers
  std::vector<ChunkPlan> chunks;           ///< one, or virtual_stages of them
  std::optional<SamplingPlan> sampling{};  ///< none: the run continues no texts
  /// By unit, its parameters as the run began with them, where these are a reference that no model
  /// without adapters is; of units that are not trained none. Empty: there is none such.
  std::vector<BufferRef> reference{};
  /// A model of its own, which scores texts, with its memory; none: no model of the run's does.
  std::optional<GenerationPlan> scoring{};
  std::vector<Action> actions;  ///< this rank's part of the schedule
  /// This rank's part of an evaluation's schedule: one micro-batch, forward.
  std::vector<Action> evaluation_actions;
  ActivationSlots slots;  ///< of this rank's micro-batches in flight
  /// The same for steps with fewer micro-batches, while the batch grows; none of them takes more
  /// slots of any chunk.
  std::vector<StepOrder> smaller_steps;
  BufferRef norm_total;         ///< f64 scratch of the gradient norm
  BufferRef bit_sums;           ///< i32 scratch of replica checks: kBitSums of four each
  BufferRef sequence_numbers;   ///< f32 [kinds, B, T] scratch, where ranks share them and weigh
                                ///< their targets
  BufferRef replica_gradients;  ///< scratch; none without tensor parallelism
  CompressionBuffers compression{};  ///< where gradients are compressed
  BufferRef fp8_amax;                ///< of the blueprint's scaled tensors; none without fp8
  BufferRef fp8_scales;              ///< likewise
  ShardMap shards;
  std::vector<GatherPlan> gathers;  ///< where parameters are cut: one a walk
  OptimizerScratch optimizer_scratch;
  Moments moments;
  MemoryPlan memory;
  TrafficPlan traffic;  ///< of a step whose gradients are summed
  /// Of steps whose gradients travel otherwise, where there are such.
  std::map<GradientTravel, TrafficPlan> other_traffic;
  DiskOptions disk;  ///< what lies on a disk lies there

  [[nodiscard]] const TrafficPlan& traffic_of(GradientTravel travel) const {
    return travel == GradientTravel::kSummed ? traffic : other_traffic.at(travel);
  }
  [[nodiscard]] bool saves_in_background() const {
    return find_group(groups, GroupId::kCheckpoint) != nullptr;
  }
};

/// The names of the parameters of the whole model and of its tensors that are not trained,
/// whichever ranks hold them.
std::set<std::string> parameter_names(const RunPlan& plan);
/// The scaled tensors of the whole model, in its order; none without fp8.
std::vector<ScaledTensorDecl> scaled_tensors(const RunPlan& plan);

}  // namespace dstrain
