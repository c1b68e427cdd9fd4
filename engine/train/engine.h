// Engine: a RunPlan made real on one rank: device memory, groups, optimizer and the data-parallel
// strategy, wired once in the order of the members below. It trains one step at a time; what to
// train on, when to save and what to print is the Trainer's business.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/activity.h"
#include "engine/comm/rendezvous.h"
#include "engine/model/layer_context.h"
#include "engine/optim/optimizer.h"
#include "engine/parallel/data_parallel.h"
#include "engine/parallel/pipeline.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/expert_tally.h"
#include "engine/runtime/fp8_scales.h"
#include "engine/runtime/input_copies.h"
#include "engine/train/batch_upload.h"
#include "engine/train/objective/objective.h"
#include "engine/train/objective/sequence_exchange.h"
#include "engine/train/rank_groups.h"
#include "engine/train/routing_report.h"
#include "engine/train/run_plan.h"
#include "engine/train/shorter_sequences.h"
#include "kernels/backend.h"

namespace dstrain {

/// Seconds of a step by phase, on the host's clock.
struct StepTimes {
  double data = 0.0;
  double forward = 0.0;
  double backward = 0.0;
  double optimizer = 0.0;
};

struct EngineStep {
  StepStats stats;
  double local_loss_sum = 0.0;        ///< over what counts on this rank: nats of its targets
  std::int64_t counted = 0;           ///< targets that count, or groups of them, of all ranks
  ObjectiveSums local_sums{};         ///< of a WeighingObjective, of what counts on this rank
  std::vector<LayerRouting> routing;  ///< of all ranks, by layer with experts
  StepTimes times;
};

/// The values that parameters have once their engine is made.
enum class FirstValues : std::uint8_t {
  kDrawn,  ///< random, as declared
  kNone,   ///< undefined: whoever made the engine draws or loads them all
};

class Engine {
 public:
  /// Collective: forms the groups. `plan` is that of the rendezvous' rank in its world.
  /// `rendezvous` and `activity`, which may be nullptr, outlive the engine. `device_rendezvous`
  /// makes the groups for tensors in the backend's memory; nullptr: `rendezvous` does, where that
  /// is the host's.
  Engine(RunPlan plan,
         Rendezvous& rendezvous,
         Backend backend,
         int threads,
         ActivityRecorder* activity = nullptr,
         std::unique_ptr<Rendezvous> device_rendezvous = nullptr,
         FirstValues first_values = FirstValues::kDrawn);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// One optimizer step on the samples from `start_sample` on, of which
  /// BatchPlan::samples_at(start_sample) are the step's. `before_update` is called when all
  /// gradients are complete and the state is still the one that the step began with.
  EngineStep train_step(const LoadBatch& data,
                        std::int64_t start_sample,
                        const StepParams& params,
                        const std::function<void()>& before_update = {});
  /// The loss of the first `counted_samples` of one micro-batch that starts at `first_sample`. The
  /// others are computed too: a micro-batch has one shape, and the ranks stay in step.
  struct Evaluation {
    double local_loss_sum = 0.0;  ///< as EngineStep's
    std::int64_t counted = 0;     ///< of what this rank has the losses of
    ObjectiveSums local_sums{};   ///< as EngineStep's
    double hits = 0.0;  ///< of the targets that count, those that were the likeliest tokens
  };
  Evaluation evaluate(const LoadBatch& data,
                      std::int64_t first_sample,
                      std::int64_t counted_samples);
  Evaluation evaluate(const LoadBatch& data, std::int64_t first_sample) {
    return evaluate(data, first_sample, plan_.batch.micro_batch);
  }
  /// Gives the parameters that `which` names their first random values. To be followed by
  /// refresh_parameters().
  void draw_parameters(const std::function<bool(const ParamDecl&)>& which);
  void draw_parameters() {
    draw_parameters([](const ParamDecl&) { return true; });
  }
  /// Called after the master parameters were changed from outside: updates what the model computes
  /// with.
  void refresh_parameters();

  /// Collective. Hands out the parameters of each unit, one after the other, whole though ranks may
  /// have parts of them, to be read on the compute stream during the call.
  void visit_parameters(const std::function<void(int unit, ConstTensor whole)>& visit);

  /// Nothing where all states lie beside what the model computes with.
  [[nodiscard]] std::optional<OffloadedUpdate> last_offloaded() const {
    return data_parallel_->last_offloaded();
  }

  /// A gradient that is not finite.
  struct BadGradient {
    std::int64_t micro_batch = 0;
    int rank = 0;
    std::string tensor;
  };
  /// Histories of fp8's scales, for checkpoints; the same on every rank, empty without fp8.
  [[nodiscard]] Fp8Scales::State fp8_state() const {
    return fp8_ == nullptr ? Fp8Scales::State{} : fp8_->state();
  }
  void restore_fp8(const Fp8Scales::State& state);
  /// The numbers that the optimizer keeps beside tensors, for checkpoints: of the whole model, the
  /// same on every rank. Collective.
  Optimizer::Numbers optimizer_numbers();
  void restore_optimizer(const Optimizer::Numbers& numbers);

  /// Repeats the forward and backward passes of a step that was not updated, to find the first bad
  /// gradient on the lowest rank; none if every rank's own gradients are finite and only their sum
  /// is not. Collective.
  std::optional<BadGradient> find_bad_gradient(const LoadBatch& data,
                                               std::int64_t start_sample,
                                               const StepParams& params);
  /// False if a parameter, on any rank, is not finite. Collective.
  bool parameters_are_finite();

  [[nodiscard]] const RunPlan& plan() const { return plan_; }
  [[nodiscard]] const Objective& objective() const { return *objective_; }
  /// Trains for another objective than the next token, and returns the one before. A
  /// WeighingObjective needs a plan whose shape weighs targets.
  std::unique_ptr<Objective> set_objective(std::unique_ptr<Objective> objective);
  /// Whether what a WeighingObjective finds on this rank counts: of several ranks that know the
  /// same losses, that is one.
  [[nodiscard]] bool tells_losses() const;
  /// Collective. Keeps the parameters as they are, where the plan has them as a reference.
  void keep_reference();
  /// Whether forwards, from here on, are those of the reference: with the parameters that
  /// keep_reference() kept, or without adapters.
  void use_reference(bool use);
  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] const Arena& arena() const { return arena_; }
  [[nodiscard]] const LayerContext& context() const { return context_; }
  /// The group of all ranks, for host memory.
  [[nodiscard]] Communicator& world() { return groups_[GroupId::kWorld]; }
  /// The group that a unit is cut over where it is cut, for tensors on the device. Nothing of the
  /// engine's is under way in it after wait_for_communication().
  [[nodiscard]] Communicator& slice_group(int unit) { return unit_groups_.replicas(unit); }
  /// The group for background saves, in a run that makes them.
  [[nodiscard]] Communicator& checkpoint_group() { return groups_[GroupId::kCheckpoint]; }
  void wait_for_communication() { communication_->synchronize(); }
  /// Waits until nothing of the last step is under way: neither communication nor updates beside
  /// the model. Until the next step all states are then at rest where they lie.
  void settle();
  [[nodiscard]] Device& device() { return *backend_.device; }

 private:
  class Chunks;
  class StepChunks;
  class EvaluationChunks;

  /// The processor, for states that lie in the host's memory or on a disk, on a thread of its own.
  struct HostSite {
    HostSite(int threads, const Arena& arena, DiskDevice* disk_device);
    Backend backend;
    std::unique_ptr<Stream> stream;
    Site memory;
    std::optional<Site> disk;
  };

  /// Where an exception ends the engine, collectives may be under way that other ranks never come
  /// to, and streams and memory cannot go before they end. They get a moment, as usually all ranks
  /// fail alike and the last message of one is still needed by another; then the groups are
  /// aborted.
  class EndsFailedCollectives {
   public:
    explicit EndsFailedCollectives(Engine& engine) : engine_(engine) {}
    EndsFailedCollectives(const EndsFailedCollectives&) = delete;
    EndsFailedCollectives& operator=(const EndsFailedCollectives&) = delete;
    ~EndsFailedCollectives();

   private:
    Engine& engine_;
    const int exceptions_before_ = std::uncaught_exceptions();
  };

  /// The StepOrder of a step of a given number of micro-batches.
  struct Order {
    const std::vector<Action>& actions;
    const ActivationSlots& slots;
  };
  [[nodiscard]] Order order_of(std::int64_t micro_batches) const;
  /// The size of the step that begins with a sample of the run.
  [[nodiscard]] StepSize size_of_step(std::int64_t start_sample, const StepParams& params) const;
  /// Makes passes, from here on, take sequences of that many tokens.
  void take_sequences_of(std::int64_t sequence);
  [[nodiscard]] const TransformerStage& stage_of(int chunk) const;

  /// Whether micro-batches that the plan takes together go together.
  enum class Take : std::uint8_t { kAsPlanned, kOneByOne };
  /// Runs forward and backward of a step's micro-batches under any strategy. Returns how many of
  /// the targets whose losses this rank has counted.
  std::int64_t run_micro_batches(const LoadBatch& data,
                                 std::int64_t start_sample,
                                 const StepParams& params,
                                 DataParallel& data_parallel,
                                 StepTimes& times,
                                 Take take = Take::kAsPlanned);
  double local_loss_sum();
  double local_hits();
  [[nodiscard]] bool knows_losses(const TransformerStage& stage) const;
  std::vector<LayerRouting> routing_of_all_ranks();
  /// The number of the step's `targets` that count.
  std::int64_t targets_of_all_ranks(std::int64_t counted_here, std::int64_t targets);
  /// WeighingObjective::take_sums, of what counts on this rank.
  ObjectiveSums take_sums();
  BatchUpload::Uploaded load_batch(const LoadBatch& data,
                                   std::int64_t first_sample,
                                   std::int64_t counted_samples,
                                   BatchUse use,
                                   const TransformerStage& stage,
                                   int slot);
  std::unique_ptr<Fp8Scales> make_fp8_scales();
  void update_fp8_scales();
  void move_balancing_biases(const std::vector<LayerRouting>& routing, bool updated);
  void see_first_batch(const LoadBatch& data, std::int64_t start_sample, const StepParams& params);

  RunPlan plan_;
  int threads_;
  std::unique_ptr<Objective> objective_;
  std::unique_ptr<SequenceExchange> sequence_exchange_;  // nullptr: targets weigh alike
  Backend backend_;
  std::unique_ptr<Rendezvous> device_rendezvous_;
  std::unique_ptr<DiskDevice> disk_;  // nullptr: no region lies on a disk
  Arena arena_;
  ParameterTable parameters_;
  RankGroups groups_;
  UnitGroups unit_groups_;
  TensorParallel tensor_parallel_;
  std::unique_ptr<HostSite> host_;  // nullptr: all states lie beside what the model computes with
  std::unique_ptr<Fp8Scales> fp8_;  // nullptr: nothing is computed in 8 bits
  ExpertTally expert_tally_;
  RoutingReport routing_;
  std::unique_ptr<InputCopies> input_copies_;  // nullptr: blocks' inputs stay on the device
  std::unique_ptr<Stream> passing_;            // nullptr: no keys go round a ring
  std::unique_ptr<Stream> expert_passing_;     // nullptr: no rows travel beside
  LayerContext context_;
  std::unique_ptr<Stream> communication_;
  std::unique_ptr<Optimizer> optimizer_;
  DataParallelParts parts_;
  std::unique_ptr<DataParallel> data_parallel_;
  BatchUpload upload_;
  std::unique_ptr<ShorterSequences> shorter_;  // nullptr: sequences are as long as is planned
  EndsFailedCollectives ends_failed_collectives_{*this};  // last: before anything waits for them
};

}  // namespace dstrain
