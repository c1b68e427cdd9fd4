#include "engine/train/engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/model/init.h"
#include "engine/train/gradient_probe.h"

namespace dstrain {
namespace {

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

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

Engine::Engine(const Config& config, Rendezvous& rendezvous, Backend backend, int threads)
    : config_(config),
      plan_(make_run_plan(config, rendezvous.world_size(), rendezvous.world_rank())),
      backend_(std::move(backend)),
      arena_(plan_.blueprint, plan_.memory, *backend_.device),
      parameters_(plan_.shards.num_units()),
      context_{.ops = *backend_.ops,
               .device = *backend_.device,
               .compute = backend_.device->compute_stream(),
               .blueprint = plan_.blueprint,
               .arena = arena_,
               .parameters = parameters_},
      world_(rendezvous.make_group("world", all_ranks(rendezvous.world_size()))),
      data_group_(rendezvous.make_group(
          "data-parallel", plan_.topology.members(Axis::kData, rendezvous.world_rank()))),
      communication_(backend_.device->make_side_stream("communication")),
      optimizer_(make_optimizer({.config = config.optimizer,
                                 .blueprint = plan_.blueprint,
                                 .shards = plan_.shards,
                                 .scratch = plan_.optimizer_scratch,
                                 .group = *data_group_,
                                 .sharded = config.zero.stage > 0})),
      averaging_(config.formats, data_group_->size()),
      parts_{.context = context_,
             .shards = plan_.shards,
             .memory = plan_.memory,
             .gathers = plan_.gathers,
             .optimizer = *optimizer_,
             .group = *data_group_,
             .communication = *communication_,
             .norm_total = arena_.buffer(plan_.norm_total),
             .mean_factor = averaging_.after_sum},
      data_parallel_(make_data_parallel(config.zero.stage, parts_)),
      host_tokens_(static_cast<std::size_t>(plan_.batch.micro_batch * plan_.batch.sequence)),
      host_targets_(host_tokens_.size()) {
  initialise_parameters(config.training.seed, threads);
  plan_.stage.prepare(context_);
}

void Engine::initialise_parameters(std::uint64_t seed, int threads) {
  std::vector<float> values;
  std::vector<BF16> narrow;
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    const UnitDecl& decl = plan_.blueprint.units()[static_cast<std::size_t>(unit)];
    const Range owned = plan_.memory.owned(unit);
    for (const PlacedPiece& placed : plan_.shards.pieces(unit, owned)) {
      const Range flat = placed.piece.flat;
      const std::int64_t begin = placed.offset - owned.begin;
      const Tensor master = arena_.master(unit).flat(begin, begin + flat.size());
      values.resize(static_cast<std::size_t>(flat.size()));
      initial_values(decl.params[static_cast<std::size_t>(placed.param)], seed, flat.begin, values,
                     threads);
      const void* host = values.data();
      if (master.dtype() == DType::kBF16) {
        narrow.resize(values.size());
        std::transform(values.begin(), values.end(), narrow.begin(), to_bf16);
        host = narrow.data();
      }
      context_.device.copy_from_host(host, master, context_.compute);
      context_.compute.synchronize();
    }
  }
  refresh_parameters();
}

void Engine::refresh_parameters() {
  data_parallel_->refresh_parameters();
  context_.compute.synchronize();
}

void Engine::load_batch(const LoadBatch& data, std::int64_t first_sample) {
  data(first_sample, host_tokens_, host_targets_);
  context_.device.copy_from_host(host_tokens_.data(), plan_.stage.tokens(context_, 0),
                                 context_.compute);
  context_.device.copy_from_host(host_targets_.data(), plan_.stage.targets(context_, 0),
                                 context_.compute);
}

void Engine::run_micro_batches(const LoadBatch& data,
                               std::int64_t start_sample,
                               double loss_scale,
                               DataParallel& data_parallel,
                               StepTimes& times) {
  const BatchPlan& batch = plan_.batch;
  const double local_tokens = static_cast<double>(batch.global_tokens() / batch.data_parallel);
  const auto gradient_scale = static_cast<float>(loss_scale * averaging_.before_sum / local_tokens);
  for (std::int64_t index = 0; index < batch.accumulation; ++index) {
    const bool last = index + 1 == batch.accumulation;
    {
      const PhaseTimer timer(times.data);
      load_batch(data, batch.first_sample(start_sample, index));
    }
    data_parallel.begin_walk(Walk::kTraining, last);
    {
      const PhaseTimer timer(times.forward);
      plan_.stage.forward(context_, data_parallel, 0);
    }
    {
      const PhaseTimer timer(times.backward);
      plan_.stage.backward(
          context_, data_parallel,
          {.index = index, .last = last, .slot = 0, .gradient_scale = gradient_scale});
    }
  }
}

EngineStep Engine::train_step(const LoadBatch& data,
                              std::int64_t start_sample,
                              const StepParams& params) {
  EngineStep result;
  run_micro_batches(data, start_sample, params.loss_scale, *data_parallel_, result.times);
  const PhaseTimer timer(result.times.optimizer);
  result.stats = data_parallel_->step(params);
  context_.device.copy_to_host(plan_.stage.loss_sum(context_), &result.local_loss_sum,
                               context_.compute);
  context_.compute.synchronize();
  return result;
}

double Engine::evaluate(const LoadBatch& data, std::int64_t first_sample) {
  load_batch(data, first_sample);
  data_parallel_->begin_walk(Walk::kEvaluation, true);
  plan_.stage.forward(context_, *data_parallel_, 0);
  plan_.stage.evaluate(context_, *data_parallel_, 0, Write::kOverwrite);
  double loss_sum = 0.0;
  context_.device.copy_to_host(plan_.stage.loss_sum(context_), &loss_sum, context_.compute);
  context_.compute.synchronize();
  return loss_sum;
}

std::optional<Engine::BadGradient> Engine::find_bad_gradient(const LoadBatch& data,
                                                             std::int64_t start_sample,
                                                             const StepParams& params) {
  GradientProbe probe(*data_parallel_, parts_);
  StepTimes unused;
  run_micro_batches(data, start_sample, params.loss_scale, probe, unused);

  constexpr std::int64_t kFields = 4;  // found, micro-batch, unit, parameter
  std::array<std::int32_t, kFields> mine{};
  if (probe.finding()) {
    mine = {1, static_cast<std::int32_t>(probe.finding()->micro_batch), probe.finding()->unit,
            probe.finding()->param};
  }
  std::vector<std::int32_t> all(static_cast<std::size_t>(world_->size() * kFields));
  world_->all_gather({mine.data(), DType::kI32, Shape{kFields}},
                     {all.data(), DType::kI32, Shape{world_->size() * kFields}}, Purpose::kControl,
                     context_.compute);
  context_.compute.synchronize();
  for (int rank = 0; rank < world_->size(); ++rank) {
    const auto* const found = all.data() + rank * kFields;
    if (found[0] != 0) {
      return BadGradient{.micro_batch = found[1],
                         .rank = rank,
                         .tensor = plan_.blueprint.param({found[2], found[3]}).name};
    }
  }
  return std::nullopt;
}

bool Engine::parameters_are_finite() {
  const Tensor total = arena_.buffer(plan_.norm_total);
  context_.ops.zero(total, context_.compute);
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    const Range owned = plan_.memory.owned(unit);
    const std::int64_t numel = plan_.shards.numel(unit);
    const std::int64_t valid = std::max<std::int64_t>(0, std::min(owned.end, numel) - owned.begin);
    context_.ops.sum_of_squares(arena_.master(unit).flat(0, valid), total, Write::kAdd,
                                context_.compute);
  }
  world_->all_reduce(total, ReduceOp::kSum, Purpose::kControl, context_.compute);
  double sum_of_squares = 0.0;
  context_.device.copy_to_host(total, &sum_of_squares, context_.compute);
  context_.compute.synchronize();
  return std::isfinite(sum_of_squares);
}

}  // namespace dstrain
