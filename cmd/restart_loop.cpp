#include "cmd/restart_loop.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/committed_checkpoint.h"
#include "cmd/elastic_run.h"
#include "cmd/exit_codes.h"
#include "cmd/launch_attempt.h"
#include "cmd/launch_layout.h"
#include "launcher/host_pool.h"
#include "launcher/restart_policy.h"

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
  const std::string name = fmt::format("{} host{}", hosts.size(), hosts.size() == 1 ? "" : "s");
  return even ? fmt::format("{} × {}", name, hosts.front().slots.size())
              : fmt::format("{} ranks on {}", count_ranks(hosts), name);
}

launcher::RestartLimits restart_limits(const LaunchFlags& flags) {
  launcher::RestartLimits limits{.max_restarts = flags.max_restarts,
                                 .max_without_progress = flags.max_restarts_without_progress,
                                 .final_codes = {kExitUsage, kExitCheckpoint},
                                 .no_progress_code = kExitNoProgress};
  if (!flags.restart_after_numerical_abort) limits.final_codes.insert(kExitNumerical);
  return limits;
}

/// The signal that came meanwhile, or 0.
int wait_between_attempts(asio::io_context& loop, std::chrono::milliseconds delay) {
  int interrupted_by = 0;
  int waiting = 2;
  asio::steady_timer timer(loop, delay);
  asio::signal_set signals(loop, SIGINT, SIGTERM);
  timer.async_wait([&](const asio::error_code&) {
    --waiting;
    signals.cancel();
  });
  signals.async_wait([&](const asio::error_code& error, int number) {
    --waiting;
    if (!error) interrupted_by = number;
    timer.cancel();
  });
  loop.restart();
  while (waiting > 0)
    loop.run_one();  // not run(): the connections to other hosts have always something to do
  return interrupted_by;
}

}  // namespace

int run_until_done(const LaunchFlags& flags,
                   const LoadedConfig& whole,
                   const std::vector<Host>& all_hosts,
                   HostAccess& access) {
  const int whole_size = count_ranks(all_hosts);
  launcher::HostPool pool(all_hosts, {.min_nodes = flags.min_nodes, .max_nodes = flags.max_nodes});
  launcher::RestartPolicy policy(restart_limits(flags));
  const auto before = committed_checkpoint(whole.config);
  auto committed = before;
  LaunchAttempt attempt{.run = flags.run};
  std::string why_again;
  const auto find_silent = [&](const std::vector<Host>& hosts) {
    return access.find_silent(hosts);
  };
  while (true) {
    // The user's own word on where to begin holds until there is something of this launch's.
    const bool has_own = committed && committed != before;
    const RunFlags run = has_own ? with_override(flags.run, "checkpoint.resume=auto") : flags.run;
    const launcher::HostPool::Choice choice =
        pool.choose(find_silent, [&](const std::vector<Host>& hosts) {
          return fit_to_ranks(run, whole, whole_size, count_ranks(hosts)).has_value();
        });
    attempt.hosts = choice.hosts;
    const int world_size = count_ranks(choice.hosts);
    attempt.run = fit_to_ranks(run, whole, whole_size, world_size).value();
    const LoadedConfig config = load_and_resolve(attempt.run, world_size);
    for (const std::string& notice : choice.notices)
      spdlog::warn("{}", notice);
    if (world_size != whole_size) {
      spdlog::warn(
          "{} instead of {}: {} sequences a step as before, in {} micro-batches of {}",
          describe(choice.hosts), describe(all_hosts), *config.config.batch.train_batch_size,
          *config.config.batch.gradient_accumulation_steps, *config.config.batch.micro_batch_size);
    }
    if (attempt.restart > 0) {
      spdlog::warn("{}; {} on {}", why_again,
                   committed ? fmt::format("resuming from step {}", committed->step)
                             : "starting anew, there is no checkpoint yet,",
                   describe(choice.hosts));
    }

    const launcher::JobOutcome outcome = run_attempt(attempt, flags, config.config, access);
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
    why_again =
        fmt::format("restart {} of {}: {}", decision.number, flags.max_restarts, outcome.cause);
    if (const int signal = wait_between_attempts(access.loop(), decision.delay)) {
      spdlog::warn("interrupted between two attempts; nothing is running");
      return kExitSignalBase + signal;
    }
  }
}

}  // namespace dstrain
