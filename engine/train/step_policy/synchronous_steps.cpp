#include "engine/train/step_policy/synchronous_steps.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/optim/lr_schedule.h"
#include "kernels/core/caller_stream.h"
#include "kernels/core/trace_range.h"

namespace dstrain {

SynchronousSteps::SynchronousSteps(Engine& engine, OwnRank facts)
    : engine_(engine),
      update_(engine.plan().update),
      facts_(std::move(facts)),
      scaler_(update_.loss_scale, engine.plan().memory.placement().states.is_cut()) {}

void SynchronousSteps::take_up(const TrainingState& state) {
  scaler_.restore({.scale = state.loss_scale,
                   .iteration = state.scaler_iteration,
                   .last_overflow = state.last_overflow,
                   .hysteresis = state.hysteresis});
}

StepOutcome SynchronousSteps::step(TrainingState& state,
                                   const LoadBatch& data,
                                   const std::function<void()>& before_update) {
  StepOutcome outcome{.engine = {}, .params = params_of_next_step(state), .agreement = {}};
  outcome.engine = engine_.train_step(data, state.consumed_samples, outcome.params, before_update);
  outcome.agreement = agree(outcome.engine);
  const StepStats& stats = outcome.engine.stats;
  const double loss = outcome.agreement.loss;
  if (stats.updated && !std::isfinite(loss)) {
    give_up(state.step + 1, facts_.saved_step(),
            fmt::format("the loss is {} though its gradients are finite", loss),
            "This is not a matter of the learning rate: please report it");
  }
  if (stats.updated) {
    static_cast<void>(scaler_.after_step(/*overflow=*/false));
    state.optimizer_step += 1;
    state.scheduler_step += 1;
    state.consecutive_skips = 0;
  } else {
    skip(state, data, outcome.params, loss, stats.grad_norm);
  }
  state.step += 1;
  state.consumed_samples += engine_.plan().batch.samples_at(state.consumed_samples);
  state.loss_scale = scaler_.state().scale;
  state.scaler_iteration = scaler_.state().iteration;
  state.last_overflow = scaler_.state().last_overflow;
  state.hysteresis = scaler_.state().hysteresis;
  return outcome;
}

Agreement SynchronousSteps::agree(const EngineStep& step) {
  const TraceRange range("report");
  RankReport mine = facts_.report();
  mine.loss_sum = step.local_loss_sum;
  mine.sums = step.local_sums;
  mine.time.data = step.times.data;
  CallerStream host;
  Agreement agreement;
  agreement.save_has_ended = true;
  double loss_sum = 0.0;
  for (const RankReport& report : gather_reports(mine, engine_.world(), host)) {
    loss_sum += report.loss_sum;
    for (std::size_t i = 0; i < agreement.sums.size(); ++i) {
      agreement.sums[i] += report.sums[i];
    }
    agreement.signal = std::max(agreement.signal, report.signal);
    agreement.save_has_ended = agreement.save_has_ended && report.save_has_ended;
    agreement.trace_asked = agreement.trace_asked || report.trace_asked;
    if (engine_.world().rank() != 0) continue;  // only rank 0 writes them
    agreement.memory.push_back(report.memory);
    agreement.times.push_back(report.time);
    if (report.device) agreement.devices.push_back(*report.device);
  }
  agreement.loss = engine_.objective().mean_loss(loss_sum, step.counted);
  return agreement;
}

StepParams SynchronousSteps::params_of_next_step(const TrainingState& state) const {
  const std::int64_t update = state.scheduler_step + 1;
  const std::optional<CycledBetas> betas = betas_of_update(update_.scheduler, update);
  return {.learning_rate =
              learning_rate_of_update(update_.scheduler, update_.optimizer.learning_rate, update),
          .beta1 = betas ? std::optional(betas->beta1) : std::nullopt,
          .beta2 = betas ? std::optional(betas->beta2) : std::nullopt,
          .update = state.optimizer_step + 1,
          .gradient_clipping = update_.gradient_clipping,
          .loss_scale = scaler_.scale(),
          .seed = engine_.plan().seed,
          .sequence = engine_.plan().batch.sequence_at(state.step + 1)};
}

void SynchronousSteps::skip(TrainingState& state,
                            const LoadBatch& data,
                            const StepParams& params,
                            double loss,
                            double grad_norm) {
  state.skipped_steps += 1;
  state.consecutive_skips += 1;
  const bool at_minimum = scaler_.after_step(/*overflow=*/true) == ScaleOutcome::kAtMinimum;
  const std::string what = fmt::format("loss {} and gradient norm {} at loss scale {:g}", loss,
                                       grad_norm, params.loss_scale);
  const auto stop = [&](const std::string& happened, const std::string& advice) {
    give_up(state.step + 1, facts_.saved_step(), happened, advice);
  };
  if (at_minimum) {
    stop(fmt::format("{}, the smallest allowed (fp16.min_loss_scale), {}", what,
                     culprit(state, data, params)),
         "Use bf16, lower the learning rate, or clip gradients");
  }
  if (!engine_.parameters_are_finite()) {
    stop(fmt::format("{}, {}: the parameters themselves are no longer finite", what,
                     culprit(state, data, params)),
         "Lower the learning rate, or clip gradients");
  }
  if (state.consecutive_skips >= update_.max_consecutive_skips) {
    stop(fmt::format("{}, {}: {} steps in a row could not be used (training.max_consecutive_skips)",
                     what, culprit(state, data, params), state.consecutive_skips),
         "Lower the learning rate, clip gradients, or look at the data of this step");
  }
  // With a dynamic scale, overflows are how the scale is found, and no reason to look for a
  // culprit.
  const bool expected = update_.loss_scale.static_scale == 0.0;
  const std::string found = expected ? "" : ", " + culprit(state, data, params);
  if (engine_.world().rank() == 0) {
    spdlog::log(expected ? spdlog::level::info : spdlog::level::warn,
                "step {} is skipped, {} in a row: {}{}{}", state.step + 1, state.consecutive_skips,
                what, found,
                scaler_.scale() != params.loss_scale
                    ? fmt::format("; the scale is {:g} from now on", scaler_.scale())
                    : "");
  }
}

std::string SynchronousSteps::culprit(const TrainingState& state,
                                      const LoadBatch& data,
                                      const StepParams& params) {
  const auto bad = engine_.find_bad_gradient(data, state.consumed_samples, params);
  return bad ? fmt::format("first in the gradient of {} on rank {}, micro-batch {}", bad->tensor,
                           bad->rank, bad->micro_batch)
             : "with finite gradients on every rank, whose sum overflows";
}

}  // namespace dstrain
