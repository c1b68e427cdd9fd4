// The collectives by name, and what they are for: what communicators, plans and records speak of.
#pragma once

#include <cstdint>
#include <string_view>

namespace dstrain {

enum class ReduceOp : std::uint8_t { kSum, kMax };

/// Tells error messages, traces and plans of traffic what the bytes are for.
enum class Purpose : std::uint8_t {
  kGradient,
  kParameter,
  kReplica,    ///< gradients that tensor-parallel ranks hold copies of
  kOptimizer,  ///< norms and what else an update must know of all ranks
  kActivation,
  kExperts,  ///< rows of tokens on their way to experts, and back
  kMetric,
  kIntegrity,  ///< whether copies of the state are still the same
  kControl
};
std::string_view name_of(Purpose purpose);

/// Names an operation of a communicator in error messages, traces and plans.
enum class Op : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kExchange,
  kBarrier,
};
std::string_view name_of(Op op);

}  // namespace dstrain
