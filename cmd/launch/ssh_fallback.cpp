#include "cmd/launch/ssh_fallback.h"

#include <map>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "launcher/hosts/local_host.h"

namespace dstrain {
namespace {

using launcher::HostFailure;

/// One line for each reason.
void tell(const std::map<std::string, HostFailure>& refused) {
  std::map<std::string, std::vector<std::string>> hosts;  // by reason
  for (const auto& [host, failure] : refused)
    hosts[failure.openssh_for].push_back(host);
  for (const auto& [reason, names] : hosts) {
    spdlog::info("{}{}: logging in with OpenSSH's client, needed for {}", names.front(),
                 names.size() == 1 ? "" : fmt::format(" and {} more", names.size() - 1), reason);
  }
}

}  // namespace

SshFallback::SshFallback(asio::io_context& loop, const FleetOptions& options)
    : loop_(loop), options_(options), own_(loop, options) {}

void SshFallback::start(const std::vector<std::string>& hosts, const OnStarted& each) {
  auto [own, openssh] = split(hosts);
  std::map<std::string, HostFailure> refused;
  const bool has_openssh = !launcher::program_in_path("ssh").empty();
  own_.start(own.hosts, [&](std::size_t i, StartedAgent started) {
    if (!started.failure || started.failure->openssh_for.empty()) {
      return each(own.indices[i], std::move(started));
    }
    if (!has_openssh) {
      started.failure->fix += fmt::format(
          "{}OpenSSH's client (package openssh-client), which is not installed here, would log in",
          started.failure->fix.empty() ? "" : "; ");
      return each(own.indices[i], std::move(started));
    }
    openssh.add(own.hosts[i], own.indices[i]);
    refused.emplace(own.hosts[i], std::move(*started.failure));
  });
  if (openssh.hosts.empty()) return;
  tell(refused);
  if (!openssh_) openssh_.emplace(loop_, options_);
  by_openssh_.insert(openssh.hosts.begin(), openssh.hosts.end());
  openssh_->start(openssh.hosts, [&](std::size_t i, StartedAgent started) {
    const auto first = refused.find(openssh.hosts[i]);
    const bool is_same_phase =
        started.failure && first != refused.end() && first->second.phase == started.failure->phase;
    // The keys that were tried here in vain are reported as well: one of them may be the one that
    // was meant to work.
    if (is_same_phase) started.failure->what = first->second.what + "; " + started.failure->what;
    each(openssh.indices[i], std::move(started));
  });
}

void SshFallback::install_and_start(const std::vector<std::string>& hosts, const OnStarted& each) {
  const auto [own, openssh] = split(hosts);
  own_.install_and_start(own.hosts, own.telling(each));
  if (openssh_) openssh_->install_and_start(openssh.hosts, openssh.telling(each));
}

std::string SshFallback::path_on(const std::string& host) const {
  return by_openssh_.contains(host) ? openssh_->path_on(host) : own_.path_on(host);
}

AgentStarter::OnStarted SshFallback::Part::telling(const OnStarted& each) const {
  return
      [this, &each](std::size_t i, StartedAgent started) { each(indices[i], std::move(started)); };
}

void SshFallback::Part::add(const std::string& host, std::size_t index) {
  hosts.push_back(host);
  indices.push_back(index);
}

SshFallback::Parts SshFallback::split(const std::vector<std::string>& hosts) const {
  Parts parts;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    (by_openssh_.contains(hosts[i]) ? parts.openssh : parts.own).add(hosts[i], i);
  return parts;
}

}  // namespace dstrain
