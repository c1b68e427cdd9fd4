#include "cmd/launch/fleet_access.h"

#include <utility>

#include <fmt/format.h>

#include "cmd/launch/job_device.h"
#include "cmd/launch/openssh_agents.h"
#include "cmd/launch/slurm_agents.h"
#include "cmd/launch/ssh_agents.h"
#include "cmd/launch/ssh_fallback.h"
#include "launcher/process/errors.h"

namespace dstrain {

namespace {

std::unique_ptr<AgentStarter> make_starter(asio::io_context& loop, const FleetOptions& options) {
  switch (options.launcher) {
    case HostLauncher::kSlurm:
      return std::make_unique<SlurmAgents>(loop, options);
    case HostLauncher::kLibssh2:
      return std::make_unique<SshAgents>(loop, options);
    case HostLauncher::kOpenssh:
      return std::make_unique<OpensshAgents>(loop, options);
    case HostLauncher::kSsh:
      break;
  }
  return std::make_unique<SshFallback>(loop, options);
}

}  // namespace

FleetAccess::FleetAccess(const FleetOptions& options, MasterWish wish)
    : wish_(std::move(wish)),
      fleet_(loop_,
             make_starter(loop_, options),
             options.copy_binary ? Fleet::MayInstall::kYes : Fleet::MayInstall::kNo) {}

FleetAccess::FleetAccess(const MakeStarter& make_starter, MasterWish wish)
    : wish_(std::move(wish)), fleet_(loop_, make_starter(loop_), Fleet::MayInstall::kNo) {}

std::map<std::string, std::string> FleetAccess::find_silent(
    const std::vector<launcher::Host>& hosts) {
  std::vector<launcher::Host> wanted;
  for (const launcher::Host& host : hosts) {
    if (!excluded_.contains(host.name)) wanted.push_back(host);
  }
  std::map<std::string, std::string> silent = excluded_;
  for (const launcher::HostFailure& failure : fleet_.connect(wanted))
    silent[failure.host] = failure.what;
  if (!gpus_) return silent;
  gpus_->of_machines = fleet_.ask_for_gpus(wanted);
  for (const launcher::Host& host : wanted) {
    const std::string machine = fleet_.machine_id(host.name);
    const auto answer = gpus_->of_machines.find(machine);
    if (answer == gpus_->of_machines.end()) continue;
    for (const RankSeat& seat : seats_of(host, machine, answer->second, {}, gpus_->may_share)) {
      if (!seat.gpu) silent.try_emplace(host.name, seat.why_none);
    }
  }
  return silent;
}

Master FleetAccess::choose_master(const std::vector<launcher::Host>& hosts) {
  std::vector<launcher::HostFailure> failures;
  Master master = find_master(fleet_, hosts, wish_, failures);
  if (!failures.empty()) {
    throw launcher::PreflightError(
        fmt::format("host {}: {}", failures.front().host, failures.front().what));
  }
  return master;
}

Machine FleetAccess::machine_of(const std::string& host) const {
  const launcher::AgentHello& hello = fleet_.agent_of(host).hello();
  const bool is_own = fleet_.is_own(host);
  Machine machine{.id = fleet_.machine_id(host),
                  .cores = hello.cores,
                  .num_usable_cores = hello.num_usable_cores,
                  .inherits_environment = is_own || fleet_.has_own_environment(),
                  .makes_rank_secret = !is_own && !fleet_.shared_secret().empty()};
  if (gpus_) machine.gpus = gpus_->of_machines.at(machine.id).gpus;
  return machine;
}

launcher::Spawner& FleetAccess::spawner_for(const std::vector<launcher::Host>& hosts) {
  spawner_ = fleet_.spawner(hosts);
  return *spawner_;
}

}  // namespace dstrain
