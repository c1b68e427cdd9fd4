#include "engine/train/engine.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include <spdlog/spdlog.h>

#include "engine/comm/deadline.h"
#include "engine/model/init.h"
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

Engine::Engine(const Config& config,
               Rendezvous& rendezvous,
               Backend backend,
               int threads,
               ActivityRecorder* activity,
               std::unique_ptr<Rendezvous> device_rendezvous)
    : config_(config),
      plan_(make_run_plan(config, rendezvous.world_size(), rendezvous.world_rank())),
      backend_(std::move(backend)),
      device_rendezvous_(std::move(device_rendezvous)),
      arena_(plan_.blueprint, plan_.memory, *backend_.device),
      parameters_(plan_.shards.num_units()),
      groups_(rendezvous,
              device_rendezvous_ != nullptr ? *device_rendezvous_ : rendezvous,
              plan_.groups),
      tensor_parallel_(groups_[GroupId::kTensor], config.tensor_parallel.sequence_parallel),
      fp8_(make_fp8_scales()),
      context_{{.ops = *backend_.ops,
                .device = *backend_.device,
                .compute = backend_.device->compute_stream(),
                .blueprint = plan_.blueprint,
                .arena = arena_,
                .parameters = parameters_,
                .graphs = backend_.graphs.get(),
                .fp8 = fp8_.get()},
               tensor_parallel_},
      communication_(tell_waits(backend_.device->make_side_stream("communication"), activity)),
      optimizer_(make_optimizer({.config = config.optimizer,
                                 .blueprint = plan_.blueprint,
                                 .shards = plan_.shards,
                                 .scratch = plan_.optimizer_scratch,
                                 .group = groups_[GroupId::kData],
                                 .sharded = config.zero.stage > 0})),
      averaging_(config.formats, groups_[GroupId::kData].size()),
      parts_{.context = context_,
             .shards = plan_.shards,
             .memory = plan_.memory,
             .gathers = plan_.gathers,
             .optimizer = *optimizer_,
             .group = groups_[GroupId::kData],
             .norm_group = groups_.find_others(plan_.norm_group),
             .tensor_group = groups_.find_others(GroupId::kTensor),
             .shared_heads_group = groups_.find(GroupId::kSharedHeads),
             .tied_group = groups_.find(GroupId::kTied),
             .communication = *communication_,
             .norm_total = arena_.buffer(plan_.norm_total),
             .replica_gradients = context_.optional_buffer(plan_.replica_gradients),
             .mean_factor = averaging_.after_sum},
      data_parallel_(make_data_parallel(config.zero.stage, parts_)),
      upload_(context_.device, context_.compute, plan_.batch.micro_batch * plan_.batch.sequence) {
  initialise_parameters(config.training.seed, threads);
  for (const ChunkPlan& chunk : plan_.chunks) {
    chunk.stage.prepare(context_);
  }
}

Engine::EndsFailedCollectives::~EndsFailedCollectives() {
  static constexpr std::chrono::seconds kGrace{2};
  if (std::uncaught_exceptions() == exceptions_before_) {
    return;
  }
  try {
    const Deadline grace(std::chrono::steady_clock::now() + kGrace, [this] {
      spdlog::warn(
          "this rank has failed and leaves, with collectives under way that others have "
          "not come to for {} s",
          kGrace.count());
      engine_.groups_.abort();
    });
    for (Stream* const stream : {engine_.communication_.get(), &engine_.context_.compute}) {
      try {
        stream->synchronize();
      } catch (const std::exception&) {  // what ends the engine is being told already
      }
    }
  } catch (const std::exception&) {  // no thread to be had: then without grace
    engine_.groups_.abort();
  }
}

/// In pieces: a table's values all at once would be as much again as the table, at a moment when
/// the whole arena is resident.
void Engine::initialise_parameters(std::uint64_t seed, int threads) {
  constexpr std::int64_t kElementsAtATime = 1 << 20;
  std::vector<float> values;
  std::vector<BF16> narrow;
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    const UnitDecl& decl = plan_.blueprint.units()[static_cast<std::size_t>(unit)];
    const Range owned = plan_.memory.owned(unit);
    for (const PlacedPiece& placed : plan_.shards.pieces(unit, owned)) {
      const ParamDecl& param = decl.params[static_cast<std::size_t>(placed.param)];
      const std::int64_t size = placed.piece.flat.size();
      for (std::int64_t done = 0; done < size; done += kElementsAtATime) {
        const std::int64_t count = std::min(kElementsAtATime, size - done);
        const std::int64_t begin = placed.offset - owned.begin + done;
        const Tensor master = arena_.master(unit).flat(begin, begin + count);
        values.resize(static_cast<std::size_t>(count));
        initial_values(param, seed, placed.piece.flat.begin + done, values, threads);
        const void* host = values.data();
        if (master.dtype() == DType::kBF16) {
          narrow.resize(values.size());
          // A lambda: what is always inlined has no address for every compiler and optimisation.
          std::transform(values.begin(), values.end(), narrow.begin(),
                         [](float value) { return to_bf16(value); });
          host = narrow.data();
        }
        context_.device.copy_from_host(host, master, context_.compute);
        context_.compute.synchronize();
      }
    }
  }
  refresh_parameters();
}

void Engine::refresh_parameters() {
  data_parallel_->refresh_parameters();
  context_.compute.synchronize();
}

/// Ids go where they are needed: to the first and to the last stage.
void Engine::load_batch(const LoadBatch& data,
                        std::int64_t first_sample,
                        const TransformerStage& stage,
                        int slot) {
  if (!stage.extent().is_first() && !stage.extent().is_last()) {
    return;
  }
  upload_.upload(data, first_sample,
                 stage.extent().is_first() ? stage.tokens(context_, slot) : Tensor{},
                 stage.extent().is_last() ? stage.targets(context_, slot) : Tensor{});
}

/// One step's micro-batches through this rank's chunks, as the schedule asks for them.
class Engine::StepChunks final : public PipelineChunks {
 public:
  StepChunks(Engine& engine,
             const LoadBatch& data,
             std::int64_t start_sample,
             double loss_scale,
             DataParallel& data_parallel,
             StepTimes& times)
      : engine_(engine),
        data_(data),
        start_sample_(start_sample),
        data_parallel_(data_parallel),
        times_(times) {
    const BatchPlan& batch = engine.plan_.batch;
    const auto local_tokens = static_cast<double>(batch.global_tokens() / batch.data_parallel);
    gradient_scale_ = static_cast<float>(loss_scale * engine.averaging_.before_sum / local_tokens);
  }

  void forward(int chunk, int micro_batch) override {
    const ChunkPlan& plan = engine_.plan_.chunks[static_cast<std::size_t>(chunk)];
    const int slot = engine_.plan_.slots.slot_of(chunk, micro_batch);
    {
      const PhaseTimer timer(times_.data);
      engine_.load_batch(data_, engine_.plan_.batch.first_sample(start_sample_, micro_batch),
                         plan.stage, slot);
    }
    const PhaseTimer timer(times_.forward);
    const TraceRange range("forward", micro_batch);
    data_parallel_.begin_walk(plan.forward_walk, is_last(micro_batch));
    plan.stage.forward(engine_.context_, data_parallel_, slot);
  }

  void backward(int chunk, int micro_batch) override {
    const PhaseTimer timer(times_.backward);
    const TraceRange range("backward", micro_batch);
    const ChunkPlan& plan = engine_.plan_.chunks[static_cast<std::size_t>(chunk)];
    if (plan.backward_walk != ChunkPlan::kGoesOn) {
      data_parallel_.begin_walk(plan.backward_walk, is_last(micro_batch));
    }
    plan.stage.backward(engine_.context_, data_parallel_,
                        {.index = micro_batch,
                         .last = is_last(micro_batch),
                         .slot = engine_.plan_.slots.slot_of(chunk, micro_batch),
                         .gradient_scale = gradient_scale_});
  }

  Tensor edge(Message::What what, Message::Direction direction) override {
    return engine_.edge(what, direction);
  }

 private:
  [[nodiscard]] bool is_last(int micro_batch) const {
    return micro_batch + 1 == engine_.plan_.batch.accumulation;
  }

  Engine& engine_;
  const LoadBatch& data_;
  std::int64_t start_sample_;
  DataParallel& data_parallel_;
  StepTimes& times_;
  float gradient_scale_ = 1.0F;
};

/// The chunks of a rank share their edges.
Tensor Engine::edge(Message::What what, Message::Direction direction) const {
  using Edge = TransformerStage::Edge;
  const bool sends = direction == Message::Direction::kSend;
  const TransformerStage& stage = plan_.chunks.front().stage;
  return what == Message::What::kActivation
             ? stage.edge(context_, sends ? Edge::kOutput : Edge::kInput)
             : stage.edge(context_, sends ? Edge::kGradientOfInput : Edge::kGradientOfOutput);
}

void Engine::run_micro_batches(const LoadBatch& data,
                               std::int64_t start_sample,
                               double loss_scale,
                               DataParallel& data_parallel,
                               StepTimes& times) {
  StepChunks chunks(*this, data, start_sample, loss_scale, data_parallel, times);
  run_schedule(plan_.actions, chunks, groups_[GroupId::kPipeline], context_.compute);
}

EngineStep Engine::train_step(const LoadBatch& data,
                              std::int64_t start_sample,
                              const StepParams& params,
                              const std::function<void()>& before_update) {
  EngineStep result;
  const TraceRange step("step", params.update);
  if (fp8_ != nullptr) {
    if (fp8_->is_new()) {
      see_first_batch(data, start_sample, params);
    }
    fp8_->begin_step(context_.compute);
  }
  run_micro_batches(data, start_sample, params.loss_scale, *data_parallel_, result.times);
  if (before_update) {
    before_update();
  }
  const PhaseTimer timer(result.times.optimizer);
  const TraceRange update("optimizer");
  result.stats = data_parallel_->step(params);
  result.local_loss_sum = local_loss_sum();
  if (fp8_ != nullptr) {
    update_fp8_scales();
  }
  return result;
}

/// Stage after stage, one micro-batch at a time.
double Engine::evaluate(const LoadBatch& data,
                        std::int64_t first_sample,
                        std::int64_t counted_samples) {
  // A sum over nothing is no sum that every device can take: the host leaves that one out.
  const std::int64_t summed_samples = std::max<std::int64_t>(counted_samples, 1);
  const auto exchange = [&](Message::Direction direction, int stage) {
    const bool sends = direction == Message::Direction::kSend;
    const P2p message{.kind = sends ? P2p::Kind::kSend : P2p::Kind::kReceive,
                      .peer = stage % groups_[GroupId::kPipeline].size(),
                      .tensor = edge(Message::What::kActivation, direction)};
    groups_[GroupId::kPipeline].exchange({&message, 1}, Purpose::kActivation, context_.compute);
  };
  const bool is_pipeline = groups_[GroupId::kPipeline].size() > 1;
  for (const ChunkPlan& chunk : plan_.chunks) {
    const StageExtent& extent = chunk.stage.extent();
    load_batch(data, first_sample, chunk.stage, 0);
    if (is_pipeline && !extent.is_first()) {
      exchange(Message::Direction::kReceive, extent.index - 1);
    }
    data_parallel_->begin_walk(chunk.evaluation_walk, true);
    chunk.stage.forward(context_, *data_parallel_, 0);
    if (extent.is_last()) {
      chunk.stage.evaluate(context_, *data_parallel_, 0, summed_samples * plan_.batch.sequence,
                           Write::kOverwrite);
    } else if (is_pipeline) {
      exchange(Message::Direction::kSend, extent.index + 1);
    }
  }
  return counted_samples > 0 ? local_loss_sum() : 0.0;
}

/// The last stage knows the losses. Its tensor-parallel ranks see the same ones: the first counts.
double Engine::local_loss_sum() {
  const TransformerStage& last = plan_.chunks.back().stage;
  double loss_sum = 0.0;
  if (last.extent().is_last() && plan_.mesh.index(Axis::kTensor, plan_.rank) == 0) {
    context_.device.copy_to_host(last.loss_sum(context_), &loss_sum, context_.compute);
  }
  context_.compute.synchronize();
  return loss_sum;
}

}  // namespace dstrain
