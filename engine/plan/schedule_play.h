// Plays a schedule: finds which send meets which receive, and how far each rank gets when, over
// links that buffer nothing and cost no time. validate() and the timings are built on it.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/plan/schedule.h"

namespace dstrain {

/// The place of a message: its rank, the action there, and the message in that.
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

/// The time at which each rank reaches each of its actions, and last the time at which it has done
/// them all. The list of a rank that waits for ever is shorter: it ends with the action that it
/// waits in.
using Arrivals = std::vector<std::vector<double>>;  // [rank][action]
Arrivals play(const Schedule& schedule, double forward_cost, double backward_cost);

}  // namespace dstrain
