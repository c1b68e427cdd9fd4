#include "engine/plan/schedule_play.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// An exchange of another rank that an exchange waits for.
struct Partner {
  std::size_t rank = 0;
  std::size_t action = 0;
};
using Partners = std::vector<std::vector<std::vector<Partner>>>;  // [rank][action]

Partners partners_of(const Schedule& schedule) {
  Partners partners;
  for (const auto& actions : schedule.ranks) {
    partners.emplace_back(actions.size());
  }
  for (const auto& [send, receive] : pair_messages(schedule)) {
    partners[send.rank][send.action].push_back({receive.rank, receive.action});
    partners[receive.rank][receive.action].push_back({send.rank, send.action});
  }
  return partners;
}

/// The time at which an exchange that begins at `arrival` ends; absent if a partner has not reached
/// its own yet.
std::optional<double> end_of_exchange(const Arrivals& arrivals,
                                      const std::vector<Partner>& partners,
                                      double arrival) {
  for (const Partner& partner : partners) {
    if (arrivals[partner.rank].size() <= partner.action) {
      return std::nullopt;
    }
    arrival = std::max(arrival, arrivals[partner.rank][partner.action]);
  }
  return arrival;
}

}  // namespace

std::vector<MessagePair> pair_messages(const Schedule& schedule) {
  struct Line {
    std::vector<MessagePlace> sends;
    std::vector<MessagePlace> receives;
  };
  std::map<std::pair<std::size_t, std::size_t>, Line> lines;  // by sender and receiver
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const auto& actions = schedule.ranks[rank];
    for (std::size_t action = 0; action < actions.size(); ++action) {
      for (std::size_t i = 0; i < actions[action].messages.size(); ++i) {
        const Message& message = actions[action].messages[i];
        const auto peer = static_cast<std::size_t>(message.peer);
        if (message.direction == Message::Direction::kSend) {
          lines[{rank, peer}].sends.push_back({rank, action, i});
        } else {
          lines[{peer, rank}].receives.push_back({rank, action, i});
        }
      }
    }
  }
  std::vector<MessagePair> pairs;
  for (const auto& [ranks, line] : lines) {
    check(line.sends.size() == line.receives.size(),
          "pipeline schedule: rank {} sends {} message(s) to rank {}, which receives {}",
          ranks.first, line.sends.size(), ranks.second, line.receives.size());
    for (std::size_t i = 0; i < line.sends.size(); ++i) {
      pairs.push_back({line.sends[i], line.receives[i]});
    }
  }
  return pairs;
}

// An action that has been reached stays reached, so the order in which ranks are visited does not
// matter.
Arrivals play(const Schedule& schedule, double forward_cost, double backward_cost) {
  const Partners partners = partners_of(schedule);
  Arrivals arrivals(schedule.ranks.size(), std::vector<double>{0});
  const auto step = [&](std::size_t rank) {
    const std::size_t at = arrivals[rank].size() - 1;
    if (at == schedule.ranks[rank].size()) {
      return false;
    }
    std::optional<double> end = arrivals[rank].back();
    const Action& action = schedule.ranks[rank][at];
    switch (action.kind) {
      case Action::Kind::kForward:
        *end += action.together * forward_cost;
        break;
      case Action::Kind::kBackward:
        *end += action.together * backward_cost;
        break;
      case Action::Kind::kExchange:
        end = end_of_exchange(arrivals, partners[rank][at], *end);
        break;
    }
    if (end) {
      arrivals[rank].push_back(*end);
    }
    return end.has_value();
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      while (step(rank)) {
        moved = true;
      }
    }
  }
  return arrivals;
}

}  // namespace dstrain
