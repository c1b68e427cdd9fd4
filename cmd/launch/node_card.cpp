#include "cmd/launch/node_card.h"

#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cmd/launch/build_id.h"
#include "cmd/launch/launch_flags.h"
#include "engine/base/checksum.h"
#include "launcher/agent/agent_listener.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/errors.h"
#include "launcher/supervision/screen_text.h"

namespace dstrain {
namespace {

constexpr const char* kMark = "node-card-2";
constexpr int kAnyRank = -1;
/// First and last slot of each.
using Ranges = std::vector<std::pair<int, int>>;
/// The mark, rank, number of nodes, hashes of config, overrides and job, slots, host name.
using Fields = std::
    tuple<std::string, int, int, std::uint64_t, std::uint64_t, std::uint64_t, Ranges, std::string>;

Ranges ranges_of(const std::vector<int>& slots) {
  Ranges ranges;
  for (const int slot : slots) {
    if (ranges.empty() || ranges.back().second + 1 != slot) ranges.emplace_back(slot, slot);
    ranges.back().second = slot;
  }
  return ranges;
}

/// Returns nothing where they are not ascending slots.
std::optional<std::vector<int>> slots_in(const Ranges& ranges) {
  constexpr int kMostSlots = 1 << 16;
  std::vector<int> slots;
  for (const auto& [first, last] : ranges) {
    const int before = slots.empty() ? -1 : slots.back();
    if (first <= before || last < first || last >= kMostSlots) return std::nullopt;
    for (int slot = first; slot <= last; ++slot)
      slots.push_back(slot);
  }
  return slots.empty() ? std::nullopt : std::optional(std::move(slots));
}

}  // namespace

NodeCard make_node_card(const LaunchFlags& flags,
                        std::optional<int> node_rank,
                        int num_nodes,
                        const launcher::Host& own) {
  RunFlags changes = flags.run;
  changes.config.clear();
  return {.node_rank = node_rank,
          .num_nodes = num_nodes,
          .config = hash_of_file(flags.run.config),
          .overrides = checksum(fmt::format("{}", fmt::join(to_arguments(changes), "\n"))),
          .job = checksum(flags.by_hand.job_id),
          .host = {.name = launcher::own_hostname(), .slots = own.slots}};
}

std::string to_text(const NodeCard& card) {
  const std::string text =
      nlohmann::json(Fields(kMark, card.node_rank.value_or(kAnyRank), card.num_nodes, card.config,
                            card.overrides, card.job, ranges_of(card.host.slots), card.host.name))
          .dump();
  if (text.size() > launcher::kMaxAgentNameBytes) {
    throw launcher::UsageError(fmt::format(
        "the slots of this node, {}, are in too many separate ranges to report to node 0: "
        "choose consecutive slots",
        launcher::ranges_text(card.host.slots)));
  }
  return text;
}

std::optional<NodeCard> parse_node_card(std::string_view text) {
  try {
    const auto [mark, rank, num_nodes, config, overrides, job, ranges, name] =
        nlohmann::json::parse(text).get<Fields>();
    const std::optional<std::vector<int>> slots = slots_in(ranges);
    if (mark != kMark || rank < kAnyRank || name.empty() || !slots) return std::nullopt;
    return NodeCard{.node_rank = rank == kAnyRank ? std::nullopt : std::optional(rank),
                    .num_nodes = num_nodes,
                    .config = config,
                    .overrides = overrides,
                    .job = job,
                    .host = {.name = name, .slots = *slots}};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string why_not(const NodeCard& card, const NodeCard& leader) {
  const std::string who = card.node_rank
                              ? fmt::format("node {} ({})", *card.node_rank, card.host.name)
                              : fmt::format("node {}", card.host.name);
  if (card.num_nodes != leader.num_nodes) {
    return fmt::format(
        "{} was started for {} nodes, and node 0 ({}) for {}: give all the same "
        "--num_nodes",
        who, card.num_nodes, leader.host.name, leader.num_nodes);
  }
  if (card.node_rank && (*card.node_rank == 0 || *card.node_rank >= leader.num_nodes)) {
    return fmt::format("{} was started as --node_rank {}: expected 1 to {}, since {} is node 0",
                       who, *card.node_rank, leader.num_nodes - 1, leader.host.name);
  }
  if (card.job != leader.job) {
    return fmt::format("{} was started with another --rdzv_id than node 0 ({})", who,
                       leader.host.name);
  }
  if (card.config != leader.config) {
    return fmt::format(
        "{} was started with a CONFIG that is not the same as on node 0 ({}): copy "
        "it from there",
        who, leader.host.name);
  }
  if (card.overrides != leader.overrides) {
    return fmt::format("{} was started with other --set flags than node 0 ({}): give all the same",
                       who, leader.host.name);
  }
  return {};
}

}  // namespace dstrain
