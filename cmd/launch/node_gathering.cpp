#include "cmd/launch/node_gathering.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include <asio.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "cmd/exit_codes.h"
#include "cmd/launch/job_secret.h"
#include "cmd/launch/wire_channel.h"
#include "engine/base/amount_text.h"
#include "launcher/agent/agent_protocol.h"
#include "launcher/process/errors.h"
#include "launcher/process/run_until.h"

namespace dstrain {
namespace {

using launcher::Host;
using launcher::HostFailure;

// The patience with nodes that are to come back; silent hosts are waited for longer anyway.
constexpr std::chrono::seconds kReturnPatience{20};

}  // namespace

NodeGathering::NodeGathering(asio::io_context& loop, GatheringOptions options)
    : loop_(loop), options_(std::move(options)) {
  const launcher::AgentListenerOptions listening{.address = options_.place.address,
                                                 .port = options_.place.port,
                                                 .make_seal = encrypted_channels()};
  try {
    listener_.emplace(
        loop, hash_under(options_.token),
        [this](launcher::ArrivedAgent agent) { take_in(std::move(agent)); }, listening);
  } catch (const std::system_error& error) {
    const std::string where =
        fmt::format("port {} of {}", listening.port,
                    listening.address.empty() ? "this machine" : listening.address);
    if (error.code() == asio::error::address_in_use) {
      throw GatheringPlaceTaken(
          fmt::format("{}, at which the other nodes are to connect, is in use; give "
                      "all nodes another --master_port",
                      where));
    }
    throw launcher::PreflightError(
        fmt::format("cannot listen on {}, at which the other nodes are to "
                    "connect: {}",
                    where, error.code().message()));
  }
}

std::vector<Host> NodeGathering::gather() {
  const std::size_t others = static_cast<std::size_t>(options_.own.num_nodes) - 1;
  spdlog::info("node 0 of {} waits for {} at port {} for {} s", options_.own.num_nodes,
               describe_missing(), options_.place.port, options_.patience.count());
  launcher::run_until(
      loop_, [&] { return arrived_.size() == others || !misfit_.empty(); }, options_.patience);
  if (!misfit_.empty()) {
    throw launcher::UsageError(misfit_);
  }
  if (arrived_.size() < others) {
    const std::string why = fmt::format(
        "{} of {} nodes did not come within {} s: {}; start the same command there, each with its "
        "--node_rank and the job's token",
        others - arrived_.size(), options_.own.num_nodes, options_.patience.count(),
        describe_missing());
    throw RendezvousError(why);
  }
  is_running_ = true;
  hosts_ = name_hosts();
  return hosts_;
}

void NodeGathering::start(const std::vector<std::string>& hosts, const OnStarted& each) {
  const auto rank_of_host = [this](const std::string& name) {
    const auto host = std::find_if(hosts_.begin(), hosts_.end(),
                                   [&](const Host& known) { return known.name == name; });
    return static_cast<int>(host - hosts_.begin());
  };
  const auto is_there = [&](const std::string& name) {
    return arrived_.contains(rank_of_host(name));
  };
  launcher::run_until(
      loop_, [&] { return std::all_of(hosts.begin(), hosts.end(), is_there); }, kReturnPatience);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const int rank = rank_of_host(hosts[i]);
    const auto arrival = arrived_.find(rank);
    StartedAgent started;
    if (arrival == arrived_.end()) {
      started.failure = HostFailure{
          .host = hosts[i],
          .phase = "node",
          .what = fmt::format("node {} has left and did not come back within {} s", rank,
                              kReturnPatience.count()),
          .fix = fmt::format("start the same command there again, with --node_rank {}", rank)};
    } else {
      started.stream = std::move(arrival->second.agent.stream);
      arrived_.erase(arrival);
    }
    each(i, std::move(started));
  }
}

std::string NodeGathering::path_on(const std::string& /*host*/) const {
  return "its dstrain";
}

bool NodeGathering::is_own(const std::string& host) const {
  return !hosts_.empty() && hosts_.front().name == host;
}

void NodeGathering::take_in(launcher::ArrivedAgent agent) {
  const std::optional<NodeCard> card = parse_node_card(agent.name);
  if (!card) {
    spdlog::warn(
        "an agent that calls itself {} is refused: it is not a node that was started by hand",
        agent.name);
    return;
  }
  std::string why = why_not(*card, options_.own);
  const auto rank = static_cast<std::size_t>(why.empty() ? rank_of(*card) : 0);
  if (why.empty() && rank < options_.hostfile.size() &&
      options_.hostfile[rank].slots != card->host.slots) {
    why = fmt::format(
        "node {} ({}) was started with slots {}, and the hostfile of node 0 gives {} "
        "slots {}: give all the same --hostfile and filters",
        rank, card->host.name, fmt::join(card->host.slots, ","), options_.hostfile[rank].name,
        fmt::join(options_.hostfile[rank].slots, ","));
  }
  if (is_running_ && (rank == 0 || !why.empty() || !options_.may_restart)) {
    if (why.empty()) {
      why = options_.may_restart
                ? "the run is under way: a node that comes back says which by its --node_rank"
                : "the run is under way, and does not restart: --max-restarts is 0";
    }
    return send_away(std::move(agent.stream), kExitRendezvous, std::move(why));
  }
  if (!why.empty()) {
    misfit_ = why;
    return send_away(std::move(agent.stream), kExitUsage, std::move(why));
  }
  if (rank == 0) {
    return send_away(std::move(agent.stream), kExitRendezvous,
                     fmt::format("all {} nodes are there already", options_.own.num_nodes));
  }
  const auto node = static_cast<int>(rank);
  spdlog::info("node {}: {}, {}", node, card->host.name,
               counted(static_cast<std::int64_t>(card->host.slots.size()), "slot"));
  const auto earlier = arrived_.find(node);
  if (earlier != arrived_.end()) {  // which was ended and started again, as a rule
    send_away(std::move(earlier->second.agent.stream), kExitRendezvous,
              fmt::format("another process has come as node {}, and takes its place", node));
  }
  arrived_.insert_or_assign(node, Arrival{.card = *card, .agent = std::move(agent)});
}

int NodeGathering::rank_of(const NodeCard& card) const {
  if (card.node_rank) return *card.node_rank;
  for (int rank = 1; rank < options_.own.num_nodes; ++rank) {
    if (!is_running_ && !arrived_.contains(rank)) return rank;
  }
  return 0;  // none is free
}

void NodeGathering::send_away(std::unique_ptr<launcher::ByteStream> stream,
                              int exit_code,
                              std::string why) {
  using launcher::encode;
  using launcher::ToAgent;
  spdlog::warn("{}", why);
  stream->write(encode(ToAgent(launcher::LauncherHello{.patience_ms = 10'000})));
  stream->write(encode(ToAgent(launcher::Bye{.exit_code = exit_code, .why = std::move(why)})));
  stream->close_input();
  leaving_.push_back(std::move(stream));
}

void NodeGathering::dismiss(int exit_code, const std::string& why) {
  constexpr std::chrono::milliseconds kPatience{2000};
  for (auto& [rank, arrival] : arrived_)
    send_away(std::move(arrival.agent.stream), exit_code, why);
  arrived_.clear();
  launcher::run_until(
      loop_,
      [this] {
        return std::all_of(leaving_.begin(), leaving_.end(),
                           [](const auto& stream) { return stream->queued_bytes() == 0; });
      },
      kPatience);
}

std::string NodeGathering::describe_missing() const {
  std::vector<std::string> missing;
  for (int rank = 1; rank < options_.own.num_nodes; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (arrived_.contains(rank)) continue;
    missing.push_back(index < options_.hostfile.size()
                          ? fmt::format("node {} ({})", rank, options_.hostfile[index].name)
                          : fmt::format("node {}", rank));
  }
  return fmt::format("{}", fmt::join(missing, ", "));
}

std::vector<Host> NodeGathering::name_hosts() const {
  std::vector<Host> hosts = {options_.own.host};
  for (const auto& [rank, arrival] : arrived_)
    hosts.push_back(arrival.card.host);
  std::set<std::string> taken;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (rank < options_.hostfile.size()) hosts[rank].name = options_.hostfile[rank].name;
    if (!taken.insert(hosts[rank].name).second) hosts[rank].name += fmt::format("#{}", rank);
    taken.insert(hosts[rank].name);
  }
  return hosts;
}

}  // namespace dstrain
