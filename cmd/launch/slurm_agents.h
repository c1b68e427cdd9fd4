// SlurmAgents: agents as tasks of one srun in the allocation that the launcher runs in. They
// connect back (agent_listener.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio.hpp>

#include "cmd/launch/agent_starter.h"
#include "cmd/launch/fleet_options.h"
#include "launcher/agent/agent_listener.h"
#include "launcher/process/local_stream.h"
#include "launcher/supervision/line_splitter.h"

namespace dstrain {

class SlurmAgents final : public AgentStarter {
 public:
  /// Throws launcher::PreflightError where there is no srun.
  SlurmAgents(asio::io_context& loop, const FleetOptions& options);
  /// Gives the srun whose agents have ended a little time to end by itself.
  ~SlurmAgents() override;

  void start(const std::vector<std::string>& hosts, const OnStarted& each) override;
  /// Reports a failure for every host, since nothing can be sent through Slurm.
  [[nodiscard]] std::string path_on(const std::string& host) const override;
  [[nodiscard]] std::string shared_secret() const override { return secret_; }

 private:
  /// One srun; its agents are those of one start().
  struct Step {
    std::unique_ptr<launcher::LocalStream> srun;
    launcher::LineSplitter out{};
    launcher::LineSplitter err{};
    std::string last_words{};
    bool has_ended = false;
  };
  /// The address at which the agents of these hosts connect: on options.listen, on the address of
  /// options.interface, or on that from which packets to the hosts leave. Throws
  /// launcher::PreflightError where there is none.
  void listen_for(const std::vector<std::string>& hosts);
  Step& run_srun(const std::vector<std::string>& hosts);
  [[nodiscard]] std::string places() const;

  asio::io_context& loop_;
  const FleetOptions options_;
  const std::string srun_;
  const std::string secret_;
  std::vector<std::string> own_addresses_;           ///< told to the agents
  launcher::AgentListener::OnAgent on_agent_;        ///< set while start() runs
  std::optional<launcher::AgentListener> listener_;  ///< once there were hosts to listen for
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace dstrain
