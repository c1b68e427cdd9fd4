#include "launcher/supervision/restart_policy.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/base/amount_text.h"

namespace dstrain::launcher {

RestartDecision RestartPolicy::decide(const JobOutcome& outcome, bool progressed) {
  RestartDecision decision{.exit_code = outcome.exit_code};
  const bool is_final = limits_.final_codes.contains(outcome.exit_code);
  if (outcome.exit_code == 0 || outcome.interrupted_by != 0 || is_final) return decision;

  if (progressed) {
    without_progress_ = 0;
    causes_.clear();
  } else if (restarts_ > 0) {
    ++without_progress_;
  }
  causes_.push_back(outcome.cause);
  if (limits_.max_restarts == 0) return decision;
  if (without_progress_ >= limits_.max_without_progress) {
    decision.exit_code = limits_.no_progress_code;
    decision.why_not = fmt::format("{} in a row reached no newer checkpoint: {}",
                                   counted(without_progress_, "restart"), common_cause());
    return decision;
  }
  if (restarts_ >= limits_.max_restarts) {
    decision.why_not =
        fmt::format("all {} restart{} used up: {}", restarts_,
                    restarts_ == 1 ? " that was allowed is" : "s that were allowed are",
                    outcome.description.empty() ? outcome.cause : outcome.description);
    return decision;
  }
  decision.restart = true;
  decision.number = ++restarts_;
  if (!progressed) {
    constexpr int kMostDoublings = 5;
    const int doublings = std::min(without_progress_, kMostDoublings);
    decision.delay = std::min(std::chrono::milliseconds{1000} * (1 << doublings),
                              std::chrono::milliseconds{30'000});
  }
  return decision;
}

/// "each time rank 1 on w0 was killed by SIGSEGV", or all of them in their order.
std::string RestartPolicy::common_cause() const {
  const bool same = std::all_of(causes_.begin(), causes_.end(),
                                [&](const std::string& cause) { return cause == causes_.front(); });
  return same ? "each time " + causes_.front() : fmt::format("{}", fmt::join(causes_, "; then "));
}

}  // namespace dstrain::launcher
