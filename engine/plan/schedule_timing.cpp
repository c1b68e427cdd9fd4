// What a schedule costs in time, and its picture.
#include <algorithm>
#include <cstddef>
#include <string>

#include "engine/plan/schedule.h"
#include "engine/plan/schedule_play.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

Arrivals play_to_the_end(const Schedule& schedule, double forward_cost, double backward_cost) {
  Arrivals arrivals = play(schedule, forward_cost, backward_cost);
  for (std::size_t rank = 0; rank < arrivals.size(); ++rank) {
    check(arrivals[rank].size() == schedule.ranks[rank].size() + 1,
          "pipeline schedule: rank {} never comes to its end", rank);
  }
  return arrivals;
}

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
  const Arrivals arrivals = play_to_the_end(schedule, forward_cost, backward_cost);
  for (std::size_t rank = 0; rank < arrivals.size(); ++rank) {
    time = std::max(time, arrivals[rank].back());
    for (const Action& action : schedule.ranks[rank]) {
      busy += action.kind == Action::Kind::kForward    ? forward_cost
              : action.kind == Action::Kind::kBackward ? backward_cost
                                                       : 0;
    }
  }
  check(busy > 0, "a pipeline step that takes no time has no share of idle time");
  const double all = time * static_cast<double>(arrivals.size());
  return (all - busy) / all;
}

std::string to_text(const Schedule& schedule, const Action& action) {
  if (action.kind != Action::Kind::kExchange) {
    return name_of(schedule, action.kind == Action::Kind::kForward ? 'F' : 'B', action.chunk,
                   action.micro_batch);
  }
  std::string text;
  for (const Message& message : action.messages) {
    text += (text.empty() ? "" : ", ") + to_text(schedule, message);
  }
  return text.empty() ? "an exchange of nothing" : text;
}

std::string to_text(const Schedule& schedule) {
  constexpr double kForwardCells = 1;
  constexpr double kBackwardCells = 2;
  const Arrivals arrivals = play_to_the_end(schedule, kForwardCells, kBackwardCells);
  const std::size_t cell =
      name_of(schedule, 'B', schedule.chunks - 1, schedule.micro_batches - 1).size() + 1;
  const std::size_t digits = fmt::format("{}", schedule.pipeline_ranks - 1).size();
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string line;
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      if (action.kind == Action::Kind::kExchange) {
        continue;
      }
      line.resize(static_cast<std::size_t>(arrivals[rank][i]) * cell, ' ');
      line += to_text(schedule, action);
      if (action.kind == Action::Kind::kBackward) {
        line.resize(static_cast<std::size_t>(arrivals[rank][i] + kBackwardCells) * cell - 1, '-');
      }
    }
    text += fmt::format("rank {:>{}}: {}\n", rank, digits, line);
  }
  return text;
}

}  // namespace dstrain
