#include "cmd/launch/own_agent.h"

#include <utility>

#include <asio.hpp>
#include <sys/socket.h>

#include "cmd/launch/build_id.h"
#include "cmd/launch/host_machine.h"
#include "cmd/launch/job_secret.h"
#include "cmd/rank/rank_env.h"
#include "engine/base/usable_cores.h"
#include "kernels/cpu/memory_info.h"

namespace dstrain {

launcher::AgentOptions own_agent_options(std::string address) {
  const UsableCores cores = usable_cores();
  return {.version = own_version(),
          .build_id = own_build_id(),
          .address = std::move(address),
          .cores = cores.ids,
          .num_usable_cores = cores.count(),
          .available_memory_bytes = read_memory_info().available_bytes,
          .processor = processor_here(),
          .hash_file = hash_of_file,
          .look_at_gpus = gpus_here};
}

launcher::AgentOptions own_agent_options(std::string address, std::string shared_secret) {
  launcher::AgentOptions options = own_agent_options(std::move(address));
  options.prepare = [shared = std::move(shared_secret)](launcher::ProcessSpec& process) {
    for (auto& [name, value] : process.environment) {
      if (name != kTokenSaltVariable) continue;
      name = kTokenVariable;
      value = derive_rank_secret(shared, value);
    }
  };
  return options;
}

std::string address_of_socket(int socket) {
  asio::ip::tcp::endpoint endpoint;
  auto size = static_cast<socklen_t>(endpoint.capacity());
  if (getsockname(socket, endpoint.data(), &size) != 0) return {};
  endpoint.resize(size);
  return endpoint.address().to_string();
}

}  // namespace dstrain
