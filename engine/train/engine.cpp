#include "engine/train/engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include <spdlog/spdlog.h>

#include "engine/comm/deadline.h"
#include "engine/train/objective/next_token.h"
#include "kernels/core/caller_stream.h"
#include "kernels/core/check.h"
#include "kernels/core/trace_range.h"

namespace dstrain {
namespace {

/// Adds the time since construction to a phase.
class PhaseTimer {
 public:
  explicit PhaseTimer(double& seconds) : seconds_(seconds) {}
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;
  ~PhaseTimer() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

namespace {

std::vector<UnitGroup> unit_groups(const RunPlan& plan, const RankGroups& groups) {
  std::vector<UnitGroup> all{
      {.axes = kGradientAxes,
       .replicas = groups.find(group_of_slices(plan.memory.placement())),
       .norm = groups.find_others(plan.norm_group),
       .copies = plan.shards.has_copies() ? groups.find(GroupId::kDataAcross) : nullptr}};
  if (plan.expert_norm_group) {
    all.push_back({.axes = Axis::kExpertData,
                   .replicas = groups.find(GroupId::kExpertData),
                   .norm = groups.find_others(*plan.expert_norm_group)});
  }
  return all;
}

}  // namespace

Engine::Engine(RunPlan plan,
               Rendezvous& rendezvous,
               Backend backend,
               int threads,
               ActivityRecorder* activity,
               std::unique_ptr<Rendezvous> device_rendezvous,
               FirstValues first_values)
    : plan_(std::move(plan)),
      threads_(threads),
      objective_(std::make_unique<NextTokenObjective>(plan_)),
      backend_(std::move(backend)),
      device_rendezvous_(std::move(device_rendezvous)),
      disk_(plan_.memory.bytes(Space::kDisk) > 0 ? std::make_unique<DiskDevice>(plan_.disk)
                                                 : nullptr),
      arena_(plan_.blueprint, plan_.memory, *backend_.device, disk_.get()),
      parameters_(plan_.shards.num_units()),
      groups_(rendezvous,
              device_rendezvous_ != nullptr ? *device_rendezvous_ : rendezvous,
              plan_.groups),
      unit_groups_(plan_.shards, unit_groups(plan_, groups_)),
      tensor_parallel_(groups_[GroupId::kTensor], plan_.sequence_parallel),
      host_(plan_.memory.states_are_apart()
                ? std::make_unique<HostSite>(threads, arena_, disk_.get())
                : nullptr),
      fp8_(make_fp8_scales()),
      routing_(plan_.model, plan_.shape.experts.capacity_factor > 0.0),
      input_copies_(plan_.recompute.inputs_on_host ? std::make_unique<InputCopies>(*backend_.device)
                                                   : nullptr),
      passing_(groups_.find(GroupId::kContextRing) != nullptr
                   ? tell_waits(backend_.device->make_side_stream("ring"), activity)
                   : nullptr),
      expert_passing_(groups_.find(GroupId::kExperts) != nullptr && plan_.shape.experts.overlap
                          ? tell_waits(backend_.device->make_side_stream("experts"), activity)
                          : nullptr),
      context_{{.ops = *backend_.ops,
                .device = *backend_.device,
                .compute = backend_.device->compute_stream(),
                .blueprint = plan_.blueprint,
                .arena = arena_,
                .parameters = parameters_,
                .graphs = backend_.graphs.get(),
                .fp8 = fp8_.get(),
                .host = host_ ? &host_->memory : nullptr,
                .disk = host_ && host_->disk ? &*host_->disk : nullptr,
                .experts = &expert_tally_,
                .input_copies = input_copies_.get()},
               tensor_parallel_,
               {.ring = groups_.find(GroupId::kContextRing),
                .heads = groups_.find(GroupId::kContextHeads),
                .passing = passing_.get()},
               groups_.find(GroupId::kExperts),
               expert_passing_.get()},
      communication_(tell_waits(backend_.device->make_side_stream("communication"), activity)),
      optimizer_(make_optimizer({.config = plan_.update.optimizer,
                                 .blueprint = plan_.blueprint,
                                 .shards = plan_.shards,
                                 .scratch = plan_.optimizer_scratch,
                                 .groups = unit_groups_,
                                 .signs = plan_.memory.options().signs,
                                 .states = plan_.memory.placement().states})),
      parts_{.context = context_,
             .shards = plan_.shards,
             .memory = plan_.memory,
             .gathers = plan_.gathers,
             .optimizer = *optimizer_,
             .groups = unit_groups_,
             .neighbour_group = groups_.find(GroupId::kDataInside),
             .across_group = groups_.find(GroupId::kDataAcross),
             .tensor_group = groups_.find_others(GroupId::kTensor),
             .shared_heads_group = groups_.find(GroupId::kSharedHeads),
             .tied_group = groups_.find(GroupId::kTied),
             .world = groups_.find_others(GroupId::kWorld),
             .communication = *communication_,
             .norm_total = arena_.buffer(plan_.norm_total),
             .replica_gradients = context_.optional_buffer(plan_.replica_gradients),
             .mean_factor = plan_.update.averaging.after_sum,
             .compression = plan_.compression,
             .seed = plan_.seed},
      data_parallel_(make_data_parallel(parts_)),
      upload_(context_.device,
              context_.compute,
              plan_.batch.micro_batch,
              plan_.batch.sequence,
              plan_.batch.documents,
              plan_.batch.context) {
  for (const UntrainedDecl& untrained : plan_.blueprint.untrained()) {
    context_.ops.zero(arena_.buffer(untrained.buffer), context_.compute);
  }
  if (first_values == FirstValues::kDrawn) {
    draw_parameters();
    refresh_parameters();
  }
  for (const ChunkPlan& chunk : plan_.chunks) {
    chunk.stage.prepare(context_);
  }
}

Engine::HostSite::HostSite(int threads, const Arena& arena, DiskDevice* disk_device)
    : backend(make_cpu_backend(threads)),
      stream(backend.device->make_side_stream("states")),
      memory{.ops = *backend.ops, .device = *backend.device, .stream = *stream, .arena = arena} {
  if (disk_device != nullptr) {
    const Tensor windows = arena.state_windows();
    disk_device->serve(*stream, {static_cast<std::byte*>(windows.data()),
                                 static_cast<std::size_t>(windows.bytes())});
    disk.emplace(Site{.ops = *backend.ops,
                      .device = *disk_device,
                      .stream = *stream,
                      .arena = arena,
                      .disk = disk_device});
  }
}

void Engine::settle() {
  communication_->synchronize();
  if (passing_ != nullptr) passing_->synchronize();
  if (expert_passing_ != nullptr) expert_passing_->synchronize();
  if (host_ != nullptr) host_->stream->synchronize();
  if (input_copies_ != nullptr) input_copies_->synchronize();
}

Engine::EndsFailedCollectives::~EndsFailedCollectives() {
  static constexpr std::chrono::seconds kGrace{2};
  if (std::uncaught_exceptions() == exceptions_before_) {
    return;
  }
  try {
    const Deadline grace(std::chrono::steady_clock::now() + kGrace, [this] {
      spdlog::warn(
          "this rank has failed and leaves while collectives are under way that others have "
          "not joined for {} s",
          kGrace.count());
      engine_.groups_.abort();
    });
    for (Stream* const stream : {engine_.communication_.get(), engine_.passing_.get(),
                                 engine_.expert_passing_.get(), &engine_.context_.compute}) {
      if (stream == nullptr) continue;
      try {
        stream->synchronize();
      } catch (const std::exception&) {  // the cause of the end is already being reported
      }
    }
  } catch (const std::exception&) {  // no thread available: then without grace
    engine_.groups_.abort();
  }
}

/// Ids go where they are needed, to the first and to the last stage; the bounds of documents that
/// they imply go to all stages, as do the indices that dropout counts by. What counts is among the
/// targets whose losses this rank has.
BatchUpload::Uploaded Engine::load_batch(const LoadBatch& data,
                                         std::int64_t first_sample,
                                         std::int64_t counted_samples,
                                         BatchUse use,
                                         const TransformerStage& stage,
                                         int slot) {
  const BatchUpload::Places places{
      .inputs = stage.extent().is_first() ? stage.tokens(context_, slot) : Tensor{},
      .targets = stage.extent().is_last() ? stage.targets(context_, slot) : Tensor{},
      .token_positions = stage.token_positions(context_, slot),
      .query_positions = stage.query_positions(context_, slot),
      .first_sample = stage.first_sample(context_, slot),
      .loss_rows = stage.loss_rows(context_, slot)};
  if (!places.want_tokens() && places.first_sample.empty()) {
    return {};
  }
  BatchUpload::Uploaded uploaded =
      upload_.upload(data,
                     {.first_sample = first_sample,
                      .counted = counted_samples,
                      .sequence = shorter_ ? shorter_->sequence : plan_.batch.sequence,
                      .use = use},
                     places);
  if (!knows_losses(stage)) uploaded.counted = 0;
  return uploaded;
}

/// This rank's chunks, as both kinds of schedules see them. They share their edges.
class Engine::Chunks : public PipelineChunks {
 public:
  Chunks(Engine& engine, const LoadBatch& data) : engine_(engine), data_(data) {}

  Tensor edge(Message::What what, Message::Direction direction) override {
    using Edge = TransformerStage::Edge;
    const bool sends = direction == Message::Direction::kSend;
    const TransformerStage& stage = engine_.stage_of(0);
    const LayerContext& context = engine_.context_;
    return what == Message::What::kActivation
               ? stage.edge(context, sends ? Edge::kOutput : Edge::kInput)
               : stage.edge(context, sends ? Edge::kGradientOfInput : Edge::kGradientOfOutput);
  }

 protected:
  [[nodiscard]] Engine& engine() const { return engine_; }
  [[nodiscard]] const RunPlan& plan() const { return engine_.plan_; }
  [[nodiscard]] const ChunkPlan& chunk_plan(int chunk) const {
    return plan().chunks[static_cast<std::size_t>(chunk)];
  }
  void load(std::int64_t first_sample,
            std::int64_t counted_samples,
            BatchUse use,
            const TransformerStage& stage,
            int slot) {
    const BatchUpload::Uploaded uploaded =
        engine_.load_batch(data_, first_sample, counted_samples, use, stage, slot);
    counted_ += uploaded.counted;
    if (stage.extent().is_last()) {
      const auto at = static_cast<std::size_t>(slot);
      loss_rows_.resize(std::max(loss_rows_.size(), at + 1));
      loss_rows_[at] = uploaded.loss_rows;
    }
  }
  /// MicroBatch::loss_rows of what was loaded last.
  [[nodiscard]] std::int64_t loss_rows(const TransformerStage& stage, int slot) const {
    return stage.extent().is_last() ? loss_rows_.at(static_cast<std::size_t>(slot)) : 0;
  }

 public:
  /// Number of targets that counted, of those whose losses this rank has.
  [[nodiscard]] std::int64_t counted() const { return counted_; }

 private:
  Engine& engine_;
  const LoadBatch& data_;
  std::int64_t counted_ = 0;
  std::vector<std::int64_t> loss_rows_;  // of the last stage, by slot
};

/// One step's micro-batches through this rank's chunks, as the schedule asks for them.
class Engine::StepChunks final : public Chunks {
 public:
  StepChunks(Engine& engine,
             const LoadBatch& data,
             std::int64_t start_sample,
             const StepSize& size,
             const ActivationSlots& slots,
             double loss_scale,
             DataParallel& data_parallel,
             StepTimes& times)
      : Chunks(engine, data),
        start_sample_(start_sample),
        size_(size),
        slots_(slots),
        data_parallel_(data_parallel),
        times_(times),
        weigher_(*this),
        gradient_scale_(static_cast<float>(engine.objective_->gradient_scale(loss_scale, size))),
        token_scale_(static_cast<float>(engine.objective_->token_scale(loss_scale, size))) {}

  void forward(int chunk, int micro_batch, int together) override {
    const TransformerStage& stage = engine().stage_of(chunk);
    slots_together_.clear();
    for (int k = micro_batch; k < micro_batch + together; ++k) {
      const PhaseTimer timer(times_.data);
      const TraceRange range("load", k);
      slots_together_.push_back(slots_.slot_of(chunk, k));
      load(plan().batch.first_sample(start_sample_, k), plan().batch.micro_batch,
           BatchUse::kTraining, stage, slots_together_.back());
    }
    const PhaseTimer timer(times_.forward);
    const TraceRange range("forward", micro_batch);
    data_parallel_.begin_walk(chunk_plan(chunk).forward_walk, is_last(micro_batch + together - 1));
    stage.forward(engine().context_, data_parallel_, slots_together_);
  }

  void backward(int chunk, int micro_batch, int together) override {
    const PhaseTimer timer(times_.backward);
    const TraceRange range("backward", micro_batch);
    if (const int walk = chunk_plan(chunk).backward_walk; walk != ChunkPlan::kGoesOn) {
      data_parallel_.begin_walk(walk, is_last(micro_batch + together - 1));
    }
    const TransformerStage& stage = engine().stage_of(chunk);
    together_.clear();
    for (int k = micro_batch; k < micro_batch + together; ++k) {
      const int slot = slots_.slot_of(chunk, k);
      together_.push_back({.index = k,
                           .last = is_last(k),
                           .slot = slot,
                           .loss_rows = loss_rows(stage, slot),
                           .gradient_scale = gradient_scale_,
                           .token_scale = token_scale_,
                           .weigher = engine().objective_->weighing() ? &weigher_ : nullptr});
    }
    stage.backward(engine().context_, data_parallel_, together_);
  }

 private:
  class Weigher final : public TargetWeigher {
   public:
    explicit Weigher(StepChunks& step) : step_(step) {}
    void weigh(std::int64_t micro_batch,
               const TargetNumbers& found,
               const TargetWeights& weights) override {
      const TraceRange range("weigh", micro_batch);
      const BatchPlan& batch = step_.plan().batch;
      SequenceExchange& exchange = *step_.engine().sequence_exchange_;
      step_.engine().objective_->weighing()->weigh(
          {.use = BatchUse::kTraining,
           .first_sample = batch.first_sample(step_.start_sample_, micro_batch),
           .counted_samples = batch.micro_batch,
           .found = exchange.fetch(found)},
          exchange.weights());
      exchange.send(weights);
    }

   private:
    StepChunks& step_;
  };

  [[nodiscard]] bool is_last(int micro_batch) const {
    return micro_batch + 1 == size_.micro_batches;
  }

  std::int64_t start_sample_;
  StepSize size_;
  const ActivationSlots& slots_;
  DataParallel& data_parallel_;
  StepTimes& times_;
  Weigher weigher_;
  float gradient_scale_;
  float token_scale_;
  std::vector<int> slots_together_;   // of one pass
  std::vector<MicroBatch> together_;  // likewise
};

/// One micro-batch of an evaluation, in the first slot, from `first_sample` on.
class Engine::EvaluationChunks final : public Chunks {
 public:
  EvaluationChunks(Engine& engine,
                   const LoadBatch& data,
                   std::int64_t first_sample,
                   std::int64_t counted_samples)
      : Chunks(engine, data), first_sample_(first_sample), counted_samples_(counted_samples) {}

  void forward(int chunk, int /*micro_batch*/, int /*together*/) override {
    const TransformerStage& stage = engine().stage_of(chunk);
    DataParallel& data_parallel = *engine().data_parallel_;
    load(first_sample_, counted_samples_, BatchUse::kEvaluation, stage, kSlot);
    data_parallel.begin_walk(chunk_plan(chunk).evaluation_walk, true);
    stage.forward(engine().context_, data_parallel, std::array{kSlot});
    if (stage.extent().is_last()) {
      // Not every device can sum over nothing, so the caller leaves out that sum.
      stage.evaluate(engine().context_, data_parallel, kSlot, loss_rows(stage, kSlot),
                     std::max<std::int64_t>(counted_samples_, 1), Write::kOverwrite);
      if (WeighingObjective* const objective = engine().objective_->weighing()) {
        objective->weigh(
            {.use = BatchUse::kEvaluation,
             .first_sample = first_sample_,
             .counted_samples = counted_samples_,
             .found = engine().sequence_exchange_->fetch(stage.found(engine().context_))},
            {});
      }
    }
  }

  void backward(int chunk, int micro_batch, int /*together*/) override {
    check(false, "backward of micro-batch {} through chunk {} in an evaluation", micro_batch,
          chunk);
  }

 private:
  static constexpr int kSlot = 0;
  std::int64_t first_sample_;
  std::int64_t counted_samples_;
};

std::int64_t Engine::run_micro_batches(const LoadBatch& data,
                                       std::int64_t start_sample,
                                       const StepParams& params,
                                       DataParallel& data_parallel,
                                       StepTimes& times,
                                       Take take) {
  const StepSize size = size_of_step(start_sample, params);
  const Order order = order_of(size.micro_batches);
  take_sequences_of(size.sequence);
  if (WeighingObjective* const weighing = objective_->weighing()) {
    weighing->begin_step(start_sample, plan_.batch.samples_at(start_sample));
  }
  StepChunks chunks(*this, data, start_sample, size, order.slots, params.loss_scale, data_parallel,
                    times);
  const auto run = [&](const std::vector<Action>& actions) {
    run_schedule(actions, chunks, groups_[GroupId::kPipeline], context_.compute);
  };
  if (take == Take::kOneByOne) {
    run(one_by_one(order.actions));
  } else {
    run(order.actions);
  }
  return chunks.counted();
}

StepSize Engine::size_of_step(std::int64_t start_sample, const StepParams& params) const {
  return {.micro_batches = plan_.batch.accumulation_at(start_sample),
          .sequence = params.sequence.value_or(plan_.batch.sequence)};
}

void Engine::take_sequences_of(std::int64_t sequence) {
  const bool is_whole = sequence == plan_.batch.sequence;
  if (is_whole ? shorter_ == nullptr : shorter_ != nullptr && shorter_->sequence == sequence) {
    return;
  }
  arena_.shape_buffers(nullptr);
  shorter_ = is_whole ? nullptr : std::make_unique<ShorterSequences>(plan_, sequence);
  arena_.shape_buffers(is_whole ? nullptr : &shorter_->blueprint);
}

const TransformerStage& Engine::stage_of(int chunk) const {
  const auto index = static_cast<std::size_t>(chunk);
  return shorter_ ? shorter_->stages[index] : plan_.chunks[index].stage;
}

Engine::Order Engine::order_of(std::int64_t micro_batches) const {
  if (micro_batches == plan_.batch.accumulation) {
    return {plan_.actions, plan_.slots};
  }
  const auto smaller =
      std::find_if(plan_.smaller_steps.begin(), plan_.smaller_steps.end(),
                   [&](const StepOrder& step) { return step.micro_batches == micro_batches; });
  check(smaller != plan_.smaller_steps.end(), "a step of {} micro-batches is not planned",
        micro_batches);
  return {smaller->actions, smaller->slots};
}

/// Every rank divides by the same number, whichever targets were its own.
std::int64_t Engine::targets_of_all_ranks(std::int64_t counted_here, std::int64_t targets) {
  if (!plan_.batch.documents.ignores_targets()) {
    return targets;
  }
  auto counted = static_cast<double>(counted_here);
  CallerStream host;
  groups_[GroupId::kWorld].all_reduce({&counted, DType::kF64, Shape{1}}, ReduceOp::kSum,
                                      Purpose::kControl, host);
  return static_cast<std::int64_t>(counted);
}

EngineStep Engine::train_step(const LoadBatch& data,
                              std::int64_t start_sample,
                              const StepParams& params,
                              const std::function<void()>& before_update) {
  EngineStep result;
  const TraceRange step("step", params.update);
  const GradientTravel travel =
      travel_of(plan_.update.optimizer, plan_.update.compression, params.update);
  data_parallel_->begin_step(travel);
  expert_tally_.begin_step();
  if (fp8_ != nullptr) {
    if (fp8_->is_new()) {
      see_first_batch(data, start_sample, params);
    }
    fp8_->begin_step(context_.compute);
  }
  const std::int64_t counted_here =
      run_micro_batches(data, start_sample, params, *data_parallel_, result.times);
  const std::int64_t targets = objective_->targets(size_of_step(start_sample, params));
  const bool weighs = objective_->weighing() != nullptr;
  result.counted = weighs ? targets : targets_of_all_ranks(counted_here, targets);
  if (before_update) {
    before_update();
  }
  const PhaseTimer timer(result.times.optimizer);
  const TraceRange update("optimizer");
  StepParams update_params = params;
  update_params.travel = travel;
  update_params.counted_share =
      static_cast<double>(std::max<std::int64_t>(result.counted, 1)) / static_cast<double>(targets);
  result.stats = data_parallel_->step(update_params);
  result.local_sums = take_sums();
  result.local_loss_sum = weighs ? result.local_sums[0] : local_loss_sum();
  if (fp8_ != nullptr) {
    update_fp8_scales();
  }
  result.routing = routing_of_all_ranks();
  move_balancing_biases(result.routing, result.stats.updated);
  return result;
}

Engine::Evaluation Engine::evaluate(const LoadBatch& data,
                                    std::int64_t first_sample,
                                    std::int64_t counted_samples) {
  take_sequences_of(plan_.batch.sequence);
  EvaluationChunks chunks(*this, data, first_sample, counted_samples);
  run_schedule(plan_.evaluation_actions, chunks, groups_[GroupId::kPipeline], context_.compute);
  if (objective_->weighing() != nullptr) {
    const ObjectiveSums sums = take_sums();
    return {.local_loss_sum = sums[0],
            .counted = static_cast<std::int64_t>(sums[1]),
            .local_sums = sums};
  }
  return {.local_loss_sum = counted_samples > 0 ? local_loss_sum() : 0.0,
          .counted = chunks.counted(),
          .local_sums = {},
          .hits = counted_samples > 0 ? local_hits() : 0.0};
}

double Engine::local_hits() {
  const TransformerStage& last = plan_.chunks.back().stage;
  double hits = 0.0;
  if (knows_losses(last)) {
    context_.device.copy_to_host(last.hit_sum(context_), &hits, context_.compute);
  }
  context_.compute.synchronize();
  return hits;
}

/// The last stage knows the losses. Its tensor-parallel ranks see the same ones: the first counts.
bool Engine::knows_losses(const TransformerStage& stage) const {
  return stage.extent().is_last() && plan_.mesh.index(Axis::kTensor, plan_.rank) == 0;
}

double Engine::local_loss_sum() {
  const TransformerStage& last = plan_.chunks.back().stage;
  double loss_sum = 0.0;
  if (knows_losses(last)) {
    context_.device.copy_to_host(last.loss_sum(context_), &loss_sum, context_.compute);
  }
  context_.compute.synchronize();
  return loss_sum;
}

}  // namespace dstrain
