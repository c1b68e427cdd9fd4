#include "cmd/launch/launch_by_hand.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "cmd/exit_codes.h"
#include "cmd/launch/job_secret.h"
#include "cmd/launch/node_gathering.h"
#include "cmd/launch/node_join.h"
#include "cmd/rank/rank_env.h"
#include "engine/base/network_address.h"
#include "launcher/agent/host_probe.h"
#include "launcher/hosts/environment.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/errors.h"
#include "launcher/ssh/ssh_target.h"

namespace dstrain {
namespace {

using launcher::Host;
using launcher::UsageError;

constexpr std::uint16_t kNodePort = 29500;  // torchrun's and DeepSpeed's
constexpr std::chrono::seconds kPatience{300};

std::chrono::seconds patience_of(const LaunchFlags& flags) {
  return flags.fleet.has_connect_timeout ? flags.fleet.connect_timeout : kPatience;
}

/// The address that --master_addr means on node 0, or what the user says instead; empty: all. A
/// machine's own name is the loopback on many, and the address of a router that leads here is none
/// of its own.
std::string listening_address(const LaunchFlags& flags) {
  if (flags.listen == kListenOnAll) {
    spdlog::warn("node 0 listens on all interfaces, as --listen all says");
    return "";
  }
  if (!flags.listen.empty()) return flags.listen;
  if (!flags.interface.empty()) return launcher::address_of_interface(flags.interface);
  try {
    for (const launcher::Place& place : places_of(flags.master_address, flags.master_port)) {
      const bool is_meant =
          place.address == flags.master_address || flags.master_address == "localhost";
      if (launcher::is_this_machine(place.address) && (is_meant || !is_loopback(place.address))) {
        return place.address;
      }
    }
  } catch (const std::runtime_error& error) {
    throw UsageError(fmt::format("--master_addr {}", error.what()));
  }
  const std::vector<std::string> own = launcher::own_addresses();
  if (own.size() == 1) return own.front();
  throw UsageError(fmt::format(
      "--master_addr {} is not an address of this machine ({}), which is node 0: --listen "
      "ADDRESS names the one on which it listens for the others, --listen all allows any",
      flags.master_address, fmt::join(own, ", ")));
}

/// Without --node_rank the node whose address it is leads.
bool is_at_endpoint(const LaunchFlags& flags) {
  const auto is_own = [](const launcher::Place& place) {
    return launcher::is_this_machine(place.address);
  };
  try {
    const auto places = places_of(flags.master_address, flags.master_port);
    return std::any_of(places.begin(), places.end(), is_own);
  } catch (const std::runtime_error&) {
    return false;  // unknown here, yet
  }
}

/// Variables that ranks of this node get from it.
void set_asked_variables(const launcher::EnvironmentFlags& flags) {
  const auto asked = launcher::asked_variables(
      flags, [](const std::string& name) { return process_environment(name.c_str()); });
  for (const auto& [name, value] : asked)
    setenv(name.c_str(), value.c_str(), 1);
}

int lead_run(const LaunchFlags& flags,
             const NodesByHand& nodes,
             const std::string& token,
             const LeadRun& lead) {
  const std::string own_address = listening_address(flags);
  NodeGathering* gathering = nullptr;
  FleetAccess access(
      [&](asio::io_context& loop) {
        auto made = std::make_unique<NodeGathering>(
            loop,
            GatheringOptions{
                .place = {.address = own_address, .port = flags.master_port},
                .token = token,
                .own = make_node_card(flags, 0, static_cast<int>(nodes.hosts.size()), nodes.own),
                .hostfile = nodes.has_hostfile ? nodes.hosts : std::vector<Host>(),
                .patience = patience_of(flags),
                .may_restart = flags.max_restarts > 0});
        gathering = made.get();
        return made;
      },
      MasterWish{.address = flags.interface.empty() ? own_address : "",
                 .interface = flags.interface,
                 .listen = flags.listen});
  const auto part = [&](int exit_code, const std::string& why) {
    access.fleet().set_farewell({.exit_code = exit_code, .why = why});
    gathering->dismiss(exit_code, why);
  };
  try {
    const std::vector<Host> hosts = gathering->gather();
    const int exit_code = lead(hosts, access);
    part(exit_code, "");
    return exit_code;
  } catch (const std::exception&) {
    const Failure failure = describe_current_exception();
    part(failure.exit_code, failure.message);
    throw;
  }
}

int join(const LaunchFlags& flags, const NodesByHand& nodes, const std::string& token) {
  set_asked_variables(flags.environment);
  return join_run({.address = flags.master_address,
                   .port = flags.master_port,
                   .token = token,
                   .own = make_node_card(flags, nodes.own_rank,
                                         static_cast<int>(nodes.hosts.size()), nodes.own),
                   .patience = patience_of(flags)});
}

}  // namespace

bool is_by_hand(const LaunchFlags& flags) {
  const ByHandFlags& by_hand = flags.by_hand;
  if (by_hand.no_ssh && !by_hand.node_rank) {
    throw UsageError("--no_ssh needs --node_rank K, the number of this node, from 0");
  }
  const bool meets_others = !flags.peer.rdzv_endpoint.empty() && !flags.peer.standalone;
  if (!by_hand.node_rank && !meets_others) return false;
  if (flags.hostfile.empty() && flags.filter.num_nodes.value_or(meets_others ? 1 : 0) == 1) {
    if (by_hand.node_rank.value_or(0) == 0) return false;  // alone
    throw UsageError(
        fmt::format("--node_rank {} of --num_nodes 1: expected 0", *by_hand.node_rank));
  }
  if (flags.fleet.launcher != HostLauncher::kSsh) {
    throw UsageError(
        "--node_rank is for nodes that are started by hand, --launcher for those that are not: "
        "leave one of them out");
  }
  return true;
}

NodesByHand find_nodes_by_hand(LaunchFlags& flags,
                               const std::vector<Host>& chosen,
                               bool has_hostfile) {
  NodesByHand nodes{.own_rank = flags.by_hand.node_rank, .has_hostfile = has_hostfile};
  if (has_hostfile) {
    nodes.hosts = chosen;
  } else {
    if (!flags.filter.num_nodes) {
      throw UsageError(
          "--node_rank needs --num_nodes N, the number of nodes, or a --hostfile with all of them");
    }
    for (int rank = 0; rank < *flags.filter.num_nodes; ++rank)
      nodes.hosts.push_back({.name = fmt::format("node{}", rank), .slots = chosen.front().slots});
  }
  const auto count = static_cast<int>(nodes.hosts.size());
  if (!nodes.own_rank && has_hostfile) {
    const auto own = std::find_if(nodes.hosts.begin(), nodes.hosts.end(), [](const Host& host) {
      return launcher::is_this_machine(launcher::parse_ssh_target(host.name).host);
    });
    if (own == nodes.hosts.end()) {
      throw UsageError("no host of the hostfile is this machine: give its --node_rank");
    }
    nodes.own_rank = static_cast<int>(own - nodes.hosts.begin());
  }
  if (nodes.own_rank.value_or(0) >= count) {
    throw UsageError(fmt::format("--node_rank {} of {} nodes: expected 0 to {}", *nodes.own_rank,
                                 count, count - 1));
  }
  nodes.own = nodes.hosts[static_cast<std::size_t>(nodes.own_rank.value_or(0))];
  if (flags.master_address.empty() && has_hostfile) {
    flags.master_address = launcher::parse_ssh_target(nodes.hosts.front().name).host;
  }
  if (flags.master_address.empty()) {
    throw UsageError("--node_rank needs --master_addr: a name or an address of node 0");
  }
  if (flags.master_port == 0) flags.master_port = kNodePort;
  return nodes;
}

int launch_by_hand(const LaunchFlags& flags, const NodesByHand& nodes, const LeadRun& lead) {
  // A config that cannot be read is reported here, before anybody waits.
  static_cast<void>(load_config(flags.run.config, options_of(flags.run)));
  const std::string token = read_job_token(flags.by_hand.token_file);
  unsetenv(kTokenVariable);  // it is not for the ranks
  const bool may_lead = nodes.own_rank ? *nodes.own_rank == 0 : is_at_endpoint(flags);
  if (may_lead) {
    try {
      return lead_run(flags, nodes, token, lead);
    } catch (const GatheringPlaceTaken& error) {
      if (nodes.own_rank) throw launcher::PreflightError(error.what());
    }
    // Another node of this machine was here first.
  }
  return join(flags, nodes, token);
}

}  // namespace dstrain
