// The time that a schedule takes, and its actions as text.
#include <algorithm>
#include <cstddef>
#include <string>

#include "engine/plan/schedule.h"
#include "engine/plan/schedule_play.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

std::string name_of(const Schedule& schedule, char pass, int chunk, int micro_batch) {
  return schedule.chunks == 1 ? fmt::format("{}{}", pass, micro_batch)
                              : fmt::format("{}{}.{}", pass, micro_batch, chunk);
}

std::string to_text(const Schedule& schedule, const Message& message) {
  const bool sends = message.direction == Message::Direction::kSend;
  const bool activation = message.what == Message::What::kActivation;
  return fmt::format("{} {} of {} {} rank {}", sends ? "send" : "receive",
                     activation ? "activation" : "gradient",
                     name_of(schedule, activation ? 'F' : 'B', message.chunk, message.micro_batch),
                     sends ? "to" : "from", message.peer);
}

}  // namespace

double idle_share(const Schedule& schedule, double forward_cost, double backward_cost) {
  double time = 0;  // of the slowest rank
  double busy = 0;  // of all ranks together
  const Arrivals arrivals = play(schedule, forward_cost, backward_cost);
  for (std::size_t rank = 0; rank < arrivals.size(); ++rank) {
    check(arrivals[rank].size() == schedule.ranks[rank].size() + 1,
          "pipeline schedule: rank {} never comes to its end", rank);
    time = std::max(time, arrivals[rank].back());
    for (const Action& action : schedule.ranks[rank]) {
      busy += action.together * (action.kind == Action::Kind::kForward    ? forward_cost
                                 : action.kind == Action::Kind::kBackward ? backward_cost
                                                                          : 0);
    }
  }
  check(busy > 0, "a pipeline step that takes no time has no share of idle time");
  const double all = time * static_cast<double>(arrivals.size());
  return (all - busy) / all;
}

std::string to_text(const Schedule& schedule, const Action& action) {
  if (action.kind != Action::Kind::kExchange) {
    const std::string first = name_of(schedule, action.kind == Action::Kind::kForward ? 'F' : 'B',
                                      action.chunk, action.micro_batch);
    return action.together == 1
               ? first
               : fmt::format("{}-{}", first, action.micro_batch + action.together - 1);
  }
  std::string text;
  for (const Message& message : action.messages) {
    text += (text.empty() ? "" : ", ") + to_text(schedule, message);
  }
  return text.empty() ? "an exchange of nothing" : text;
}

}  // namespace dstrain
