#include "cmd/launch/slurm_agents.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/exit_codes.h"
#include "cmd/launch/build_id.h"
#include "cmd/launch/job_secret.h"
#include "cmd/launch/wire_channel.h"
#include "cmd/rank/own_address.h"
#include "cmd/rank/rank_env.h"
#include "launcher/agent/agent_dial.h"
#include "launcher/agent/host_probe.h"
#include "launcher/hosts/local_host.h"
#include "launcher/hosts/slurm.h"
#include "launcher/process/errors.h"
#include "launcher/process/run_until.h"

namespace dstrain {
namespace {

using launcher::HostFailure;

constexpr std::chrono::seconds kEndPatience{5};

std::string find_srun() {
  std::string srun = launcher::program_in_path("srun");
  if (srun.empty()) throw launcher::PreflightError("--launcher slurm: there is no srun in PATH");
  return srun;
}

}  // namespace

SlurmAgents::SlurmAgents(asio::io_context& loop, const FleetOptions& options)
    : loop_(loop), options_(options), srun_(find_srun()), secret_(make_job_secret()) {}

SlurmAgents::~SlurmAgents() {
  launcher::run_until(
      loop_,
      [this] {
        return std::all_of(steps_.begin(), steps_.end(),
                           [](const std::unique_ptr<Step>& step) { return step->has_ended; });
      },
      kEndPatience);
}

void SlurmAgents::start(const std::vector<std::string>& hosts, const OnStarted& each) {
  if (hosts.empty()) return;
  if (!listener_) listen_for(hosts);
  std::vector<bool> is_told(hosts.size(), false);
  std::size_t waiting = hosts.size();
  const auto tell = [&](std::size_t index, StartedAgent started) {
    is_told[index] = true;
    --waiting;
    each(index, std::move(started));
  };
  on_agent_ = [&](launcher::ArrivedAgent agent) {
    const auto host = std::find(hosts.begin(), hosts.end(), agent.name);
    const auto index = static_cast<std::size_t>(host - hosts.begin());
    if (host == hosts.end() || is_told[index]) {
      spdlog::warn("an agent named {} was not expected", agent.name);
      return;
    }
    tell(index, {.stream = std::move(agent.stream)});
  };
  const Step& step = run_srun(hosts);
  launcher::run_until(
      loop_, [&] { return waiting == 0 || step.has_ended; }, options_.connect_timeout);
  on_agent_ = nullptr;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (is_told[i]) continue;
    std::string what = step.has_ended ? "srun has ended without its agent"
                                      : fmt::format("its agent did not connect to {} within {} s",
                                                    places(), options_.connect_timeout.count());
    if (!step.last_words.empty()) what += "; srun's last words: " + step.last_words;
    tell(i, {.failure = HostFailure{
                 .host = hosts[i],
                 .phase = "srun",
                 .what = std::move(what),
                 .fix = "see squeue and sinfo; --interface NAME chooses the network that the nodes "
                        "reach, --connect-timeout SECONDS waits longer"}});
  }
}

std::string SlurmAgents::path_on(const std::string& /*host*/) const {
  return options_.agent_path.empty() ? own_program() : options_.agent_path;
}

void SlurmAgents::listen_for(const std::vector<std::string>& hosts) {
  const auto other = std::find_if_not(hosts.begin(), hosts.end(), [](const std::string& host) {
    return launcher::is_this_machine(host);
  });
  std::string address;
  if (options_.listen == kListenOnAll) {
    own_addresses_ = launcher::own_addresses();
    spdlog::warn("listening on all interfaces, as --listen all says");
  } else if (!options_.listen.empty()) {
    address = options_.listen;
  } else if (!options_.interface.empty()) {
    address = launcher::address_of_interface(options_.interface);
  } else if (other == hosts.end()) {
    address = "127.0.0.1";
  } else {
    try {
      constexpr std::uint16_t kAnyPort = 9;
      address = own_address_towards(*other, kAnyPort);
    } catch (const RendezvousError&) {
      throw launcher::PreflightError(
          fmt::format("--launcher slurm: no route to {} says at which address its agent reaches "
                      "this host; --interface NAME or --listen ADDRESS gives one, --listen all "
                      "takes any",
                      *other));
    }
  }
  if (!address.empty()) own_addresses_ = {address};
  if (own_addresses_.empty()) {
    throw launcher::PreflightError(
        "--launcher slurm: this machine has no network address that other hosts could reach");
  }
  try {
    listener_.emplace(
        loop_, hash_under(secret_),
        [this](launcher::ArrivedAgent agent) {
          if (on_agent_) on_agent_(std::move(agent));  // else it is late, and sent away
        },
        launcher::AgentListenerOptions{.address = address, .make_seal = encrypted_channels()});
  } catch (const std::system_error& error) {
    throw launcher::PreflightError(
        fmt::format("--launcher slurm: cannot listen on {}: {}", address, error.code().message()));
  }
}

SlurmAgents::Step& SlurmAgents::run_srun(const std::vector<std::string>& hosts) {
  std::vector<launcher::Host> slots;
  for (const std::string& host : hosts)
    slots.push_back({.name = host, .slots = {0}});
  Step& step = *steps_.emplace_back(std::make_unique<Step>());
  // srun hands its environment on to the agents; nothing else this process starts gets the secret.
  step.srun = std::make_unique<launcher::LocalStream>(
      loop_, launcher::srun_command(srun_, slots, {path_on(""), "agent", "--connect", places()}),
      launcher::LocalStreamOptions{.environment = {{kAgentSecretVariable, secret_}}});
  const auto hear = [&step](launcher::LineKind, std::string_view line) {
    if (line.empty()) return;
    spdlog::info("srun: {}", line);
    step.last_words = line;
  };
  step.srun->listen(
      {.on_data = [&step, hear](std::string_view bytes) { step.out.feed(bytes, hear); },
       .on_error_data = [&step, hear](std::string_view bytes) { step.err.feed(bytes, hear); },
       .on_closed =
           [&step, hear](const launcher::StreamEnd& end) {
             step.out.flush(hear);
             step.err.flush(hear);
             if (step.last_words.empty()) step.last_words = end.why;
             step.has_ended = true;
           }});
  return step;
}

std::string SlurmAgents::places() const {
  std::vector<launcher::Place> places;
  for (const std::string& address : own_addresses_)
    places.push_back({.address = address, .port = listener_->port()});
  return launcher::to_text(places);
}

}  // namespace dstrain
