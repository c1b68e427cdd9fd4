// HostAccess: how the launcher reaches the hosts of a run: this machine alone (local_access.h), or
// hosts over SSH (fleet_access.h). The loop of attempts, and the layout of a job, know no other
// difference.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <asio.hpp>

#include "launcher/agent/host_question.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/process/process.h"

namespace dstrain {

/// The place where rank 0 listens, and the address by which each host is reached by the others.
struct Master {
  std::string address;
  std::uint16_t port = 0;
  std::string listen_address{};  ///< rank 0's store listens on it; or kListenOnAll
  std::map<std::string, std::string> own_addresses{};  ///< by host; the route decides for others
  std::map<std::string, double> way_ms{};  ///< of connecting, by host, where it was tried
};

/// The machine behind a host's name. Several names may be one machine, whose cores they share.
struct Machine {
  std::string id;
  std::vector<int> cores;                   ///< ranks may use these; neighbours stand together
  int num_usable_cores = 0;                 ///< cores at a time; fewer under a container's quota
  bool inherits_environment = true;         ///< ranks have all of the launcher's variables
  bool makes_rank_secret = false;           ///< its agent derives it from shared_secret()
  std::vector<launcher::GpuReport> gpus{};  ///< empty: ranks compute on the processor
};

class HostAccess {
 public:
  HostAccess() = default;
  HostAccess(const HostAccess&) = delete;
  HostAccess& operator=(const HostAccess&) = delete;
  virtual ~HostAccess() = default;

  virtual asio::io_context& loop() = 0;
  /// Tries again to reach the hosts. Returns those that do not answer, each with the reason.
  virtual std::map<std::string, std::string> find_silent(
      const std::vector<launcher::Host>& hosts) = 0;
  /// Chooses a place for one attempt, whose port is free now. Throws launcher::PreflightError.
  virtual Master choose_master(const std::vector<launcher::Host>& hosts) = 0;
  [[nodiscard]] virtual Machine machine_of(const std::string& host) const = 0;
  /// The secret shared by the launcher and agents that connected by themselves; empty if there are
  /// none.
  [[nodiscard]] virtual std::string shared_secret() const { return {}; }
  /// The spawner of ranks on these hosts; valid until the next call.
  virtual launcher::Spawner& spawner_for(const std::vector<launcher::Host>& hosts) = 0;
};

}  // namespace dstrain
