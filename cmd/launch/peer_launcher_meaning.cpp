#include "cmd/launch/peer_launcher_meaning.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/launch/host_machine.h"
#include "engine/base/network_address.h"
#include "engine/base/usable_cores.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

using launcher::UsageError;

constexpr int kElasticRestarts = 100;             // DeepSpeed's
constexpr std::uint16_t kRendezvousPort = 29400;  // torchrun's

int to_count(std::string_view flag, std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) {
    throw UsageError(fmt::format("{} \"{}\": expected a whole number above 0", flag, text));
  }
  return number;
}

/// One fact that two flags may give.
template <typename Value>
void give(std::optional<Value>& known, const Value& value, const char* flag, const char* other) {
  if (known && *known != value) {
    throw UsageError(
        fmt::format("{} {} and {} {}: leave one of them out", flag, value, other, *known));
  }
  known = value;
}

void apply_nproc_per_node(LaunchFlags& flags) {
  const std::string& text = flags.peer.nproc_per_node;
  if (text.empty()) return;
  const char* const name = "--nproc_per_node";
  const launcher::HostAnswer gpus =
      text == "gpu" || text == "auto" ? gpus_here() : launcher::HostAnswer{};
  if (text == "gpu" && !gpus.error.empty()) {
    throw UsageError(fmt::format("{} gpu: {}", name, gpus.error));
  }
  int count = 0;
  if (text == "gpu" || (text == "auto" && gpus.error.empty())) {
    count = static_cast<int>(gpus.gpus.size());
  } else if (text == "cpu" || text == "auto") {
    count = num_usable_cores();
    // It goes in front, so that the user's own --set wins.
    flags.run.overrides.insert(flags.run.overrides.begin(), "training.device=cpu");
  } else if (!text.empty() && (text.front() < '0' || text.front() > '9')) {
    throw UsageError(fmt::format("{} \"{}\": expected a number, gpu, cpu or auto", name, text));
  } else {
    count = to_count(name, text);
  }
  if (text == "gpu" || text == "cpu" || text == "auto") {
    spdlog::info("{} {}: {} on each node, as many as this machine has", name, text, count);
  }
  give(flags.filter.num_gpus, count, name, "--num_gpus");
}

void apply_nnodes(LaunchFlags& flags) {
  const std::string& text = flags.peer.nnodes;
  if (text.empty()) return;
  const std::size_t colon = text.find(':');
  const int least = to_count("--nnodes", text.substr(0, colon));
  const int most =
      colon == std::string::npos ? least : to_count("--nnodes", text.substr(colon + 1));
  if (most < least) {
    throw UsageError(fmt::format("--nnodes {}: expected MIN:MAX with MAX at least MIN", text));
  }
  give(flags.filter.num_nodes, most, "--nnodes", "--num_nodes");
  if (least == most) return;
  spdlog::info("--nnodes {}: the run starts with {} nodes; a restart may use as few as {}", text,
               most, least);
  if (flags.min_nodes == 0) flags.min_nodes = least;
}

void apply_rendezvous(LaunchFlags& flags) {
  const PeerLauncherFlags& peer = flags.peer;
  if (!peer.rdzv_backend.empty() && peer.rdzv_backend != "c10d" && peer.rdzv_backend != "static") {
    throw UsageError(fmt::format(
        "--rdzv_backend {}: nodes meet at one of themselves, without another service; give "
        "--rdzv_endpoint HOST:PORT, or --node_rank K --master_addr HOST on every node",
        peer.rdzv_backend));
  }
  if (!peer.rdzv_endpoint.empty()) {
    const auto place = parse_host_and_port(peer.rdzv_endpoint);
    if (!place) {
      throw UsageError(
          fmt::format("--rdzv_endpoint \"{}\": expected HOST or HOST:PORT", peer.rdzv_endpoint));
    }
    std::optional<std::string> address;
    if (!flags.master_address.empty()) address = flags.master_address;
    give(address, place->host, "--rdzv_endpoint", "--master_addr");
    flags.master_address = *address;
    if (flags.master_port == 0) flags.master_port = place->port.value_or(kRendezvousPort);
  }
  std::string_view rest = peer.rdzv_conf;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::string_view name = item.substr(0, item.find('='));
    const std::string_view value = item.substr(std::min(item.size(), name.size() + 1));
    if (name == "timeout" || name == "join_timeout") {
      flags.fleet.connect_timeout =
          std::chrono::seconds{to_count("--rdzv_conf " + std::string(name), value)};
      flags.fleet.has_connect_timeout = true;
    } else {
      spdlog::info("--rdzv_conf {} has no effect here; timeout=SECONDS is honoured", name);
    }
  }
}

}  // namespace

void apply_peer_launcher_flags(LaunchFlags& flags) {
  PeerLauncherFlags& peer = flags.peer;
  if (!peer.refused.empty()) throw UsageError(peer.refused.front());
  for (const std::string& sentence : peer.without_effect)
    spdlog::info("{}", sentence);
  apply_nproc_per_node(flags);
  apply_nnodes(flags);
  apply_rendezvous(flags);
  if (peer.standalone && (flags.filter.num_nodes.value_or(1) > 1 || !flags.hostfile.empty())) {
    throw UsageError(
        "--standalone uses this machine alone: leave out either it, or --nnodes and --hostfile");
  }
  if (peer.elastic_training) {
    if (flags.max_restarts == 0) flags.max_restarts = kElasticRestarts;
    if (flags.min_nodes == 0) flags.min_nodes = 1;
  }
}

std::vector<std::string> without_deepspeed_switch(std::vector<std::string> arguments) {
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    for (const std::string name : {"openmpi", "mpich", "impi", "mvapich"}) {
      const bool is_next =
          arguments[i] == "--launcher" && i + 1 < arguments.size() && arguments[i + 1] == name;
      if (is_next || arguments[i] == "--launcher=" + name) {
        throw UsageError(fmt::format(
            "--launcher {}: MPI starts ranks itself: mpirun -n 8 -x MASTER_ADDR -x MASTER_PORT -x "
            "DSTRAIN_TOKEN dstrain train CONFIG",
            name));
      }
    }
    if (arguments[i].starts_with("--deepspeed=")) {
      arguments[i].replace(0, std::string_view("--deepspeed").size(), "--deepspeed_config");
    } else if (arguments[i] == "--deepspeed") {
      const bool has_value = i + 1 < arguments.size() && !arguments[i + 1].starts_with("-");
      if (has_value) {
        arguments[i] = "--deepspeed_config";
      } else {
        arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i--));
      }
    }
  }
  return arguments;
}

}  // namespace dstrain
