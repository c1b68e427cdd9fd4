// The play of a schedule: which send meets which receive, and who gets how far when, over links
// that buffer nothing and cost no time. validate() and the timings stand on it.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/plan/schedule.h"

namespace dstrain {

/// Place of a message: of a rank, the action, and in it the message.
struct MessagePlace {
  std::size_t rank = 0;
  std::size_t action = 0;
  std::size_t message = 0;
};

/// The i-th send from one rank to another and the i-th receive there.
struct MessagePair {
  MessagePlace send;
  MessagePlace receive;
};
/// Throws InternalError if one rank sends another more or less than that one receives.
std::vector<MessagePair> pair_messages(const Schedule& schedule);

/// When each rank comes to each of its actions, and last when it is through with them all. Shorter
/// than that where the rank waits for ever: in the last action that it has come to.
using Arrivals = std::vector<std::vector<double>>;  // [rank][action]
Arrivals play(const Schedule& schedule, double forward_cost, double backward_cost);

}  // namespace dstrain
