#include "cmd/launch/local_access.h"

#include <utility>

#include "engine/base/usable_cores.h"
#include "launcher/hosts/local_host.h"

namespace dstrain {

LocalAccess::LocalAccess(std::string master_address,
                         std::uint16_t master_port,
                         std::vector<launcher::GpuReport> gpus)
    : master_address_(std::move(master_address)),
      master_port_(master_port),
      gpus_(std::move(gpus)),
      spawner_(loop_) {}

Master LocalAccess::choose_master(const std::vector<launcher::Host>& hosts) {
  Master master{.address = master_address_.empty() ? "127.0.0.1" : master_address_};
  master.listen_address = master.address;
  launcher::Listener listener = launcher::listen_on(master.address, master_port_);
  master.port = listener.port;
  spawner_.hold_listener(std::move(listener.socket));
  for (const launcher::Host& host : hosts)
    master.own_addresses[host.name] = "127.0.0.1";
  return master;
}

Machine LocalAccess::machine_of(const std::string& /*host*/) const {
  const UsableCores cores = usable_cores();
  return {.id = "",
          .cores = cores.ids,
          .num_usable_cores = cores.count(),
          .inherits_environment = true,
          .gpus = gpus_};
}

}  // namespace dstrain
