#include "cmd/launch/openssh_agents.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "launcher/hosts/local_host.h"
#include "launcher/process/errors.h"
#include "launcher/process/run_until.h"
#include "launcher/ssh/openssh_login.h"

namespace dstrain {
namespace {

using launcher::HostFailure;
using launcher::OpensshLogin;

// The most logins under way at a time. Each is a process here that computes for some 10 ms. Through
// one jump host these may be more than its sshd accepts at a time (MaxStartups, 10 by default);
// then fewer are under way.
constexpr std::size_t kMostAtOnce = 64;
constexpr std::size_t kFewestAtOnce = 8;
constexpr int kTries = 6;

launcher::OpensshOptions options_for(const FleetOptions& fleet) {
  launcher::OpensshOptions options{.program = launcher::program_in_path("ssh"),
                                   .config_file = fleet.ssh_config,
                                   .port = fleet.ssh_port,
                                   .connect_timeout = fleet.connect_timeout,
                                   .accept_new_host_keys = fleet.accept_new_host_keys};
  if (options.program.empty()) {
    throw launcher::PreflightError(
        "--launcher openssh: there is no ssh in PATH; install OpenSSH's client (openssh-client)");
  }
  return options;
}

/// Returns a failure from before ssh has started: a wrong line of the hostfile, no more processes.
std::optional<HostFailure> begin_or_fail(const std::string& host,
                                         const std::function<void()>& begin) {
  try {
    begin();
    return std::nullopt;
  } catch (const launcher::HostfileError& error) {
    return HostFailure{.host = host,
                       .phase = "configuration",
                       .what = error.what(),
                       .fix = "correct the hostfile"};
  } catch (const std::system_error& error) {
    return HostFailure{.host = host,
                       .phase = "ssh",
                       .what = fmt::format("ssh cannot be started: {}", error.what()),
                       .fix = "see ulimit -u and ulimit -n"};
  }
}

}  // namespace

OpensshAgents::OpensshAgents(asio::io_context& loop, const FleetOptions& options)
    : loop_(loop), options_(options_for(options)), places_(options.agent_path) {}

void OpensshAgents::start(const std::vector<std::string>& hosts, const OnStarted& each) {
  places_.forget(hosts);
  run_agents(hosts, each);
}

void OpensshAgents::install_and_start(const std::vector<std::string>& hosts,
                                      const OnStarted& each) {
  std::vector<std::string> ready;
  std::vector<std::size_t> indices;  // of `ready` in `hosts`
  in_turns(hosts.size(), [&](std::size_t i, bool /*is_last_try*/, Ended ended) {
    const auto done = [&, i, ended = std::move(ended)](std::optional<HostFailure> failure) {
      if (failure) {
        each(i, {.failure = std::move(failure)});
      } else {
        ready.push_back(hosts[i]);
        indices.push_back(i);
      }
      ended(false);
    };
    auto failure = begin_or_fail(hosts[i], [&] {
      launcher::send_by_openssh(loop_, options_, hosts[i], "/proc/self/exe",
                                places_.install_on(hosts[i]), kExecutableMode, done);
    });
    if (failure) done(std::move(failure));
  });
  run_agents(ready,
             [&](std::size_t i, StartedAgent started) { each(indices[i], std::move(started)); });
}

std::string OpensshAgents::path_on(const std::string& host) const {
  return places_.path_on(host);
}

void OpensshAgents::run_agents(const std::vector<std::string>& hosts, const OnStarted& each) {
  std::vector<std::unique_ptr<OpensshLogin>> logins(hosts.size());
  in_turns(hosts.size(), [&](std::size_t i, bool is_last_try, Ended ended) {
    const std::string path = path_on(hosts[i]);
    const auto done = [&, i, is_last_try, path, ended](OpensshLogin::Result result) {
      if (result.was_turned_away && !is_last_try) return ended(true);
      if (result.is_program_missing) {
        result.failure->phase = kBuildPhase;
        result.failure->what = fmt::format("there is no dstrain at {}", path);
        result.failure->fix = kBuildFix;
      }
      each(i, {.stream = std::move(result.stream), .failure = std::move(result.failure)});
      ended(false);
    };
    auto failure = begin_or_fail(hosts[i], [&] {
      logins[i] = std::make_unique<OpensshLogin>(loop_, options_, hosts[i],
                                                 std::vector<std::string>{path, "agent"}, done);
    });
    if (failure) done({.failure = std::move(failure)});
  });
}

void OpensshAgents::in_turns(
    std::size_t count,
    const std::function<void(std::size_t index, bool is_last_try, Ended ended)>& begin) {
  std::deque<std::size_t> waiting;
  for (std::size_t i = 0; i < count; ++i)
    waiting.push_back(i);
  std::vector<int> tries(count, 0);
  std::size_t running = 0;
  std::size_t most = kMostAtOnce;
  const auto begin_next = [&] {
    while (!waiting.empty() && running < most) {
      const std::size_t index = waiting.front();
      waiting.pop_front();
      ++running;
      begin(index, ++tries[index] == kTries, [&, index](bool try_again) {
        --running;
        if (!try_again) return;
        most = std::max(kFewestAtOnce, most / 2);
        waiting.push_back(index);
      });
    }
  };
  launcher::run_until(loop_, [&] {
    begin_next();
    return waiting.empty() && running == 0;
  });
}

}  // namespace dstrain
