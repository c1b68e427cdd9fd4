#include "launcher/agent/agent_spawner.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "launcher/process/run_until.h"

namespace dstrain::launcher {

std::unique_ptr<Process> AgentSpawner::start(const ProcessSpec& spec, ProcessEvents events) {
  const auto host = hosts_.find(spec.host);
  if (host == hosts_.end()) {
    throw std::system_error(EHOSTUNREACH, std::generic_category(), "no agent on " + spec.host);
  }
  return host->second->start(spec, std::move(events));
}

void AgentSpawner::sweep() noexcept {
  std::set<AgentHost*> agents;
  for (const auto& [name, agent] : hosts_) {
    if (agents.insert(agent).second) agent->sweep();
  }
}

std::vector<std::string> dismiss_agents(asio::io_context& loop,
                                        const std::vector<AgentHost*>& hosts,
                                        std::chrono::milliseconds patience,
                                        const Bye& bye) {
  for (AgentHost* host : hosts)
    host->say_bye(bye);
  const auto has_closed = [](const AgentHost* host) { return host->has_closed(); };
  run_until(
      loop, [&] { return std::all_of(hosts.begin(), hosts.end(), has_closed); }, patience);
  std::vector<std::string> left;
  for (const AgentHost* host : hosts) {
    if (!host->has_closed()) left.push_back(host->name());
  }
  return left;
}

}  // namespace dstrain::launcher
