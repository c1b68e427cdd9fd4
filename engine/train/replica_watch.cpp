#include "engine/train/replica_watch.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/train/run_errors.h"

namespace dstrain {
namespace {

/// The first step or two take longer, as memory is touched and kernels are chosen.
constexpr std::int64_t kFirst = 5;
constexpr std::int64_t kRarest = 10'000;

}  // namespace

ReplicaWatch::ReplicaWatch(Engine& engine, std::optional<std::int64_t> interval, std::int64_t step)
    : engine_(engine),
      check_(engine),
      interval_(interval),
      is_on_(check_.has_work() && interval_ != 0),
      next_(step + kFirst) {}

bool ReplicaWatch::is_due(std::int64_t step) const {
  return is_on_ && (interval_ ? step % *interval_ == 0 : step >= next_);
}

void ReplicaWatch::check(std::int64_t step, std::int64_t saved_step) {
  if (!is_on_) return;
  const auto begin = std::chrono::steady_clock::now();
  const ReplicaCheck::Result result = check_.run(step_seconds_);
  check_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (result.difference) {
    const std::string before = last_ < 0 ? "this run had not compared copies before"
                                         : fmt::format("at step {} all copies were equal", last_);
    const std::string checkpoint = saved_step < 0
                                       ? "there is no checkpoint yet: start again"
                                       : fmt::format(
                                             "the newest checkpoint, of step {}, is older: start "
                                             "again, and the run resumes from there",
                                             saved_step);
    throw StateCorrupted(fmt::format(
        "step {}: {}; {}. Memory has changed by itself, and this step is not saved; {}, best "
        "without that host",
        step, result.difference->sentence(), before, checkpoint));
  }
  last_ = step;
  if (!interval_) set_pace(result, step);
}

/// Uses numbers that are equal on all ranks, so that all check at the same step.
void ReplicaWatch::set_pace(const ReplicaCheck::Result& result, std::int64_t step) {
  if (result.step_seconds <= 0.0) return;  // no step has been measured yet
  const double steps = std::ceil(result.seconds / (kShareOfTime * result.step_seconds));
  const auto interval =
      static_cast<std::int64_t>(std::clamp(steps, 1.0, static_cast<double>(kRarest)));
  next_ = step + interval;
  if (!std::exchange(has_pace_, true) && engine_.world().rank() == 0) {
    spdlog::info("replicas are compared every {} steps and before saves: {:.2f} ms each", interval,
                 result.seconds * 1e3);
  }
}

void ReplicaWatch::add_step(double seconds) {
  step_seconds_ = seconds - std::exchange(check_seconds_, 0.0);
}

}  // namespace dstrain
