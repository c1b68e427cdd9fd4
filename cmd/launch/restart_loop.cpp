#include "cmd/launch/restart_loop.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/exit_codes.h"
#include "cmd/launch/committed_checkpoint.h"
#include "cmd/launch/elastic_run.h"
#include "cmd/launch/folder_claim.h"
#include "cmd/launch/launch_attempt.h"
#include "cmd/launch/launch_layout.h"
#include "cmd/rank/stop_signal.h"
#include "engine/base/amount_text.h"
#include "launcher/hosts/host_pool.h"
#include "launcher/process/run_until.h"
#include "launcher/supervision/restart_policy.h"

namespace dstrain {
namespace {

using launcher::Host;

RunFlags with_override(RunFlags run, const std::string& override) {
  run.overrides.push_back(override);
  return run;
}

/// "4 hosts × 2", "6 ranks on 4 hosts".
std::string describe(const std::vector<Host>& hosts) {
  const bool even = std::all_of(hosts.begin(), hosts.end(), [&](const Host& host) {
    return host.slots.size() == hosts.front().slots.size();
  });
  const std::string name = counted(static_cast<std::int64_t>(hosts.size()), "host");
  return even ? fmt::format("{} × {}", name, hosts.front().slots.size())
              : fmt::format("{} on {}", counted(count_ranks(hosts), "rank"), name);
}

launcher::RestartLimits restart_limits(const LaunchFlags& flags) {
  launcher::RestartLimits limits{.max_restarts = flags.max_restarts,
                                 .max_without_progress = flags.max_restarts_without_progress,
                                 .final_codes = {kExitUsage, kExitCheckpoint},
                                 .no_progress_code = kExitNoProgress};
  if (!flags.restart_after_numerical_abort) limits.final_codes.insert(kExitNumerical);
  return limits;
}

/// The user ended the run while nothing of it was running.
struct Interrupted {
  int signal = 0;
};

void wait_between_attempts(asio::io_context& loop, std::chrono::milliseconds delay) {
  int signal = 0;
  int waiting = 2;
  asio::steady_timer timer(loop, delay);
  asio::signal_set signals(loop, SIGINT, SIGTERM);
  if (!hang_ups_are_ignored()) signals.add(SIGHUP);
  timer.async_wait([&](const asio::error_code&) {
    --waiting;
    signals.cancel();
  });
  signals.async_wait([&](const asio::error_code& error, int number) {
    --waiting;
    if (!error) signal = number;
    timer.cancel();
  });
  // loop.run() would not return: the connections to other hosts always have something to do.
  launcher::run_until(loop, [&] { return waiting == 0; });
  if (signal != 0) throw Interrupted{signal};
}

using Fits = launcher::HostPool::Fits;

/// Throws launcher::PreflightError where too few hosts are left; before a restart only after some
/// minutes, since hosts that were restarted come back.
launcher::HostPool::Choice choose_hosts(launcher::HostPool& pool,
                                        HostAccess& access,
                                        const Fits& fits,
                                        bool is_restart) {
  constexpr std::chrono::minutes kPatience{5};
  constexpr std::chrono::seconds kBetween{5};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::string told;
  while (true) {
    bool somebody_is_silent = false;
    try {
      return pool.choose(
          [&](const std::vector<Host>& hosts) {
            auto silent = access.find_silent(hosts);
            somebody_is_silent = !silent.empty();
            return silent;
          },
          fits);
    } catch (const launcher::PreflightError& error) {
      const bool may_come_back = is_restart && somebody_is_silent;
      if (!may_come_back || std::chrono::steady_clock::now() > deadline) throw;
      if (told != error.what()) spdlog::warn("{}; waiting for them", error.what());
      told = error.what();
    }
    wait_between_attempts(access.loop(), kBetween);
  }
}

/// Says how the next attempt differs from the run as it was meant, and why it begins again.
void announce(const LaunchAttempt& attempt,
              const Config& config,
              const Config& whole,
              const std::vector<Host>& whole_hosts,
              const std::optional<CommittedCheckpoint>& committed,
              const std::string& why_again) {
  if (count_ranks(attempt.hosts) != count_ranks(whole_hosts)) {
    const std::int64_t batch = *config.batch.train_batch_size;
    const std::int64_t meant = *whole.batch.train_batch_size;
    spdlog::warn(
        "{} instead of {}: {} a step {}, in {} of {}", describe(attempt.hosts),
        describe(whole_hosts), counted(batch, "sequence"),
        batch == meant ? "as before" : fmt::format("instead of {}, by elasticity's rules", meant),
        counted(*config.batch.gradient_accumulation_steps, "micro-batch", "micro-batches"),
        *config.batch.micro_batch_size);
  }
  if (attempt.restart > 0) {
    spdlog::warn("{}; {} on {}", why_again,
                 committed ? fmt::format("resuming from step {}", committed->step)
                           : "starting from the beginning, as there is no checkpoint yet,",
                 describe(attempt.hosts));
  }
}

}  // namespace

std::vector<Host> without_standbys(const LaunchFlags& flags, std::vector<Host> hosts) {
  if (flags.max_nodes > 0 && static_cast<std::size_t>(flags.max_nodes) < hosts.size()) {
    hosts.resize(static_cast<std::size_t>(flags.max_nodes));
  }
  return hosts;
}

namespace {

/// A host that is lost between being asked and being used is one more failure, where it is not the
/// first attempt.
launcher::JobOutcome try_attempt(const LaunchAttempt& attempt,
                                 const LaunchFlags& flags,
                                 const Config& config,
                                 HostAccess& access,
                                 std::unique_ptr<RunOwner>& claim) {
  try {
    return run_attempt(attempt, flags, config, access, claim);
  } catch (const launcher::PreflightError& error) {
    if (attempt.restart == 0) throw;
    spdlog::error("{}", error.what());
    launcher::JobOutcome outcome;
    outcome.exit_code = kExitPreflight;
    outcome.cause = error.what();
    return outcome;
  }
}

int attempt_until_done(const LaunchFlags& flags,
                       const LoadedConfig& whole,
                       const std::vector<Host>& all_hosts,
                       HostAccess& access) {
  const std::vector<Host> whole_hosts = without_standbys(flags, all_hosts);
  const int whole_size = count_ranks(whole_hosts);
  launcher::HostPool pool(all_hosts, {.min_nodes = flags.min_nodes, .max_nodes = flags.max_nodes});
  launcher::RestartPolicy policy(restart_limits(flags));
  const auto before = committed_checkpoint(whole.config);
  auto committed = before;
  const std::string job = random_name();
  std::unique_ptr<RunOwner> claim;
  LaunchAttempt attempt{.run = flags.run};
  std::string why_again;
  while (true) {
    // The user's choice of where to begin holds until this launch has a checkpoint of its own.
    const bool has_own = committed && committed != before;
    const RunFlags run = has_own ? with_override(flags.run, "checkpoint.resume=auto") : flags.run;
    const auto fitted = [&](const std::vector<Host>& hosts) {
      return fit_to_ranks(run, whole, whole_size, count_ranks(hosts));
    };
    const launcher::HostPool::Choice choice = choose_hosts(
        pool, access, [&](const std::vector<Host>& hosts) { return fitted(hosts).has_value(); },
        attempt.restart > 0);
    for (const std::string& notice : choice.notices)
      spdlog::warn("{}", notice);
    attempt.hosts = choice.hosts;
    attempt.run = fitted(choice.hosts).value();
    attempt.run.job = job;
    attempt.run.restart = attempt.restart;
    attempt.run.takes_over = flags.run.takes_over && attempt.restart == 0;
    const LoadedConfig config = load_and_resolve(attempt.run, count_ranks(choice.hosts));
    announce(attempt, config.config, whole.config, whole_hosts, committed, why_again);

    const launcher::JobOutcome outcome = try_attempt(attempt, flags, config.config, access, claim);
    auto now = committed_checkpoint(config.config);
    const bool progressed = now && now != committed;
    committed = std::move(now);
    const launcher::RestartDecision decision = policy.decide(outcome, progressed);
    if (!decision.restart) {
      if (!decision.why_not.empty()) spdlog::error("{}", decision.why_not);
      return decision.exit_code;
    }
    pool.add_failures(outcome.failed_hosts);
    attempt.restart = decision.number;
    // A run that claimed the folder in the meantime, or took it over from the last attempt, keeps
    // it.
    claim = claim_folder(flags, whole.config, job, attempt.restart);
    why_again =
        fmt::format("restart {} of {}: {}", decision.number, flags.max_restarts, outcome.cause);
    wait_between_attempts(access.loop(), decision.delay);
  }
}

}  // namespace

int run_until_done(const LaunchFlags& flags,
                   const LoadedConfig& whole,
                   const std::vector<Host>& all_hosts,
                   HostAccess& access) {
  try {
    return attempt_until_done(flags, whole, all_hosts, access);
  } catch (const Interrupted& interrupted) {
    spdlog::warn("interrupted between two attempts; nothing is running");
    return kExitSignalBase + interrupted.signal;
  }
}

}  // namespace dstrain
