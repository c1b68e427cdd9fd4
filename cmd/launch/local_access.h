// LocalAccess: a run on this machine alone, under one name or several. Its ranks are children of
// the launcher, and meet on the loopback.
#pragma once

#include <string>

#include "cmd/launch/host_access.h"
#include "launcher/process/local_process.h"

namespace dstrain {

class LocalAccess final : public HostAccess {
 public:
  /// The address and port are those of --master_addr and --master_port, empty and 0 unless given.
  /// `gpus` is empty where ranks compute on the processor.
  LocalAccess(std::string master_address,
              std::uint16_t master_port,
              std::vector<launcher::GpuReport> gpus);

  asio::io_context& loop() override { return loop_; }
  std::map<std::string, std::string> find_silent(
      const std::vector<launcher::Host>& /*hosts*/) override {
    return {};
  }
  Master choose_master(const std::vector<launcher::Host>& hosts) override;
  [[nodiscard]] Machine machine_of(const std::string& host) const override;
  launcher::Spawner& spawner_for(const std::vector<launcher::Host>& /*hosts*/) override {
    return spawner_;
  }

 private:
  const std::string master_address_;
  const std::uint16_t master_port_;
  const std::vector<launcher::GpuReport> gpus_;
  asio::io_context loop_;
  launcher::LocalSpawner spawner_;
};

}  // namespace dstrain
