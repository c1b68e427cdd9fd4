// FleetAccess: a run over several hosts, this machine perhaps among them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cmd/launch/fleet.h"
#include "cmd/launch/fleet_options.h"
#include "cmd/launch/host_access.h"
#include "cmd/launch/master_place.h"

namespace dstrain {

class FleetAccess final : public HostAccess {
 public:
  /// Hosts that are reached as the options say.
  FleetAccess(const FleetOptions& options, MasterWish wish);
  /// Hosts whose agents connect by themselves; the function makes the starter that waits for them.
  using MakeStarter = std::function<std::unique_ptr<AgentStarter>(asio::io_context& loop)>;
  FleetAccess(const MakeStarter& make_starter, MasterWish wish);

  [[nodiscard]] Fleet& fleet() { return fleet_; }
  [[nodiscard]] const MasterWish& wish() const { return wish_; }
  /// Declares that ranks compute on GPUs: from now on hosts are asked for their GPUs before each
  /// attempt, and a host that has none for some of its slots counts as one that does not answer.
  void use_gpus(bool may_share) { gpus_ = Gpus{.may_share = may_share, .of_machines = {}}; }
  /// Treats a host that the preflight found wrong as one that does not answer, for the whole run.
  void exclude(const std::string& host, const std::string& why) { excluded_[host] = why; }

  asio::io_context& loop() override { return loop_; }
  std::map<std::string, std::string> find_silent(const std::vector<launcher::Host>& hosts) override;
  Master choose_master(const std::vector<launcher::Host>& hosts) override;
  [[nodiscard]] Machine machine_of(const std::string& host) const override;
  [[nodiscard]] std::string shared_secret() const override { return fleet_.shared_secret(); }
  launcher::Spawner& spawner_for(const std::vector<launcher::Host>& hosts) override;

 private:
  struct Gpus {
    bool may_share = false;
    std::map<std::string, launcher::HostAnswer> of_machines{};
  };

  const MasterWish wish_;
  asio::io_context loop_;
  Fleet fleet_;
  std::unique_ptr<launcher::Spawner> spawner_;
  std::map<std::string, std::string> excluded_;
  std::optional<Gpus> gpus_;  ///< empty: ranks compute on processors
};

}  // namespace dstrain
