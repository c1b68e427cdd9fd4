#include "engine/train/engine.h"

#include <chrono>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/model/init.h"

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
      context_{.ops = *backend_.ops,
               .device = *backend_.device,
               .compute = backend_.device->compute_stream(),
               .blueprint = plan_.blueprint,
               .arena = arena_},
      world_(rendezvous.make_group("world", all_ranks(rendezvous.world_size()))),
      data_group_(rendezvous.make_group(
          "data-parallel", plan_.topology.members(Axis::kData, rendezvous.world_rank()))),
      communication_(backend_.device->make_side_stream("communication")),
      optimizer_(make_optimizer({.config = config.optimizer,
                                 .blueprint = plan_.blueprint,
                                 .shards = plan_.shards,
                                 .scratch = {},
                                 .group = *data_group_})),
      data_parallel_(make_zero0({.context = context_,
                                 .shards = plan_.shards,
                                 .optimizer = *optimizer_,
                                 .group = *data_group_,
                                 .communication = *communication_,
                                 .norm_total = arena_.buffer(plan_.norm_total)},
                                config.zero)),
      host_tokens_(static_cast<std::size_t>(plan_.batch.micro_batch * plan_.batch.sequence)),
      host_targets_(host_tokens_.size()) {
  initialise_parameters(config.training.seed, threads);
  plan_.stage.prepare(context_);
}

void Engine::initialise_parameters(std::uint64_t seed, int threads) {
  std::vector<float> values;
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    const UnitDecl& decl = plan_.blueprint.units()[static_cast<std::size_t>(unit)];
    for (int index = 0; index < static_cast<int>(decl.params.size()); ++index) {
      const ParamDecl& param = decl.params[static_cast<std::size_t>(index)];
      values.resize(static_cast<std::size_t>(param.shape.numel()));
      initial_values(param, seed, 0, values, threads);
      context_.device.copy_from_host(
          values.data(), param_view(plan_.blueprint, arena_.master(unit), {unit, index}),
          context_.compute);
      context_.compute.synchronize();
    }
  }
  refresh_parameters();
}

void Engine::refresh_parameters() {
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    const Tensor parameters = arena_.unit(RegionKind::kParameters, unit);
    const Tensor master = arena_.master(unit);
    if (parameters.data() != master.data()) {
      context_.ops.cast(master, parameters, context_.compute);
    }
  }
  context_.compute.synchronize();
}

void Engine::load_batch(const LoadBatch& data, std::int64_t first_sample) {
  data(first_sample, host_tokens_, host_targets_);
  context_.device.copy_from_host(host_tokens_.data(), plan_.stage.tokens(context_, 0),
                                 context_.compute);
  context_.device.copy_from_host(host_targets_.data(), plan_.stage.targets(context_, 0),
                                 context_.compute);
}

EngineStep Engine::train_step(const LoadBatch& data,
                              std::int64_t start_sample,
                              const StepParams& params) {
  EngineStep result;
  const BatchPlan& batch = plan_.batch;
  const float gradient_scale = 1.0F / static_cast<float>(batch.global_tokens());
  for (std::int64_t index = 0; index < batch.accumulation; ++index) {
    {
      const PhaseTimer timer(result.times.data);
      load_batch(data, batch.first_sample(start_sample, index));
    }
    {
      const PhaseTimer timer(result.times.forward);
      plan_.stage.forward(context_, *data_parallel_, 0);
    }
    {
      const PhaseTimer timer(result.times.backward);
      plan_.stage.backward(context_, *data_parallel_,
                           {.index = index,
                            .last = index + 1 == batch.accumulation,
                            .slot = 0,
                            .gradient_scale = gradient_scale});
    }
  }
  const PhaseTimer timer(result.times.optimizer);
  result.stats = data_parallel_->step(params);
  context_.device.copy_to_host(plan_.stage.loss_sum(context_), &result.local_loss_sum,
                               context_.compute);
  context_.compute.synchronize();
  return result;
}

double Engine::evaluate(const LoadBatch& data, std::int64_t first_sample) {
  load_batch(data, first_sample);
  plan_.stage.forward(context_, *data_parallel_, 0);
  plan_.stage.evaluate(context_, 0, Write::kOverwrite);
  double loss_sum = 0.0;
  context_.device.copy_to_host(plan_.stage.loss_sum(context_), &loss_sum, context_.compute);
  context_.compute.synchronize();
  return loss_sum;
}

std::string Engine::first_bad_gradient() const {
  const Tensor total = arena_.buffer(plan_.norm_total);
  for (int unit = 0; unit < plan_.shards.num_units(); ++unit) {
    const UnitDecl& decl = plan_.blueprint.units()[static_cast<std::size_t>(unit)];
    for (int index = 0; index < static_cast<int>(decl.params.size()); ++index) {
      const Tensor gradient =
          param_view(plan_.blueprint, arena_.unit(RegionKind::kGradients, unit), {unit, index});
      double sum = 0.0;
      context_.ops.sum_of_squares(gradient, total, Write::kOverwrite, context_.compute);
      context_.device.copy_to_host(total, &sum, context_.compute);
      context_.compute.synchronize();
      if (!std::isfinite(sum)) {
        return decl.params[static_cast<std::size_t>(index)].name;
      }
    }
  }
  return {};
}

}  // namespace dstrain
