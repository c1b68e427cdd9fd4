// AgentSpawner: the Spawner of a job over several hosts. It hands each process to the agent of its
// host.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <asio.hpp>

#include "launcher/agent/agent_host.h"
#include "launcher/process/process.h"

namespace dstrain::launcher {

class AgentSpawner final : public Spawner {
 public:
  /// The agents must outlive it. `hosts`: which of them serves which host of the job; names of one
  /// machine may share an agent.
  explicit AgentSpawner(std::map<std::string, AgentHost*> hosts) : hosts_(std::move(hosts)) {}

  std::unique_ptr<Process> start(const ProcessSpec& spec, ProcessEvents events) override;
  void sweep() noexcept override;

 private:
  std::map<std::string, AgentHost*> hosts_;
};

/// Says bye to all and runs the loop until they are gone, for `patience` at most. Returns the names
/// of those that did not end in time.
std::vector<std::string> dismiss_agents(asio::io_context& loop,
                                        const std::vector<AgentHost*>& hosts,
                                        std::chrono::milliseconds patience,
                                        const Bye& bye = {});

}  // namespace dstrain::launcher
