#include "cmd/launch/node_card.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cmd/launch/build_id.h"
#include "cmd/launch/launch_flags.h"
#include "engine/checkpoint/checksum.h"
#include "launcher/agent/agent_listener.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

constexpr std::string_view kMark = "node-card-1";
constexpr std::string_view kAnyRank = "any";

/// "0-3,6".
std::string ranges_of(const std::vector<int>& slots) {
  std::string text;
  for (std::size_t begin = 0; begin < slots.size();) {
    std::size_t end = begin + 1;
    while (end < slots.size() && slots[end] == slots[end - 1] + 1)
      ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", slots[begin]);
    if (end - begin > 1) text += fmt::format("-{}", slots[end - 1]);
    begin = end;
  }
  return text;
}

template <typename Number>
bool take(std::string_view text, Number& number, int base = 10) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc() && stop == end;
}

bool take_slots(std::string_view text, std::vector<int>& slots) {
  constexpr int kMostSlots = 1 << 16;
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), range.size() + 1));
    const std::size_t dash = range.find('-');
    int first = 0;
    int last = 0;
    if (!take(range.substr(0, dash), first)) return false;
    last = first;
    if (dash != std::string_view::npos && !take(range.substr(dash + 1), last)) return false;
    if (first < 0 || last < first || last >= kMostSlots) return false;
    if (!slots.empty() && first <= slots.back()) return false;
    for (int slot = first; slot <= last; ++slot)
      slots.push_back(slot);
  }
  return !slots.empty();
}

std::string rank_text(const NodeCard& card) {
  return card.node_rank ? std::to_string(*card.node_rank) : std::string(kAnyRank);
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
  const std::string text = fmt::format("{} {} {} {:x} {:x} {:x} {} {}", kMark, rank_text(card),
                                       card.num_nodes, card.config, card.overrides, card.job,
                                       ranges_of(card.host.slots), card.host.name);
  if (text.size() > launcher::kMaxAgentNameBytes) {
    throw launcher::UsageError(
        fmt::format("the slots of this node, {}, are too many separate ones to tell node 0 about: "
                    "choose consecutive slots",
                    ranges_of(card.host.slots)));
  }
  return text;
}

std::optional<NodeCard> parse_node_card(std::string_view text) {
  std::vector<std::string_view> words;
  while (words.size() < 7) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    words.push_back(text.substr(0, space));
    text.remove_prefix(space + 1);
  }
  NodeCard card;
  card.host.name = text;
  if (words[0] != kMark || text.empty()) return std::nullopt;
  int rank = 0;
  if (words[1] != kAnyRank) {
    if (!take(words[1], rank) || rank < 0) return std::nullopt;
    card.node_rank = rank;
  }
  constexpr int kHex = 16;
  const bool is_whole = take(words[2], card.num_nodes) && take(words[3], card.config, kHex) &&
                        take(words[4], card.overrides, kHex) && take(words[5], card.job, kHex) &&
                        take_slots(words[6], card.host.slots);
  return is_whole ? std::optional(std::move(card)) : std::nullopt;
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
