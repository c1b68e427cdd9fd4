// RankGroups: the communicators of one rank, one for each set of ranks that it works with. Members
// are arithmetic (Topology); only members meet.
#pragma once

#include <memory>

#include "engine/comm/rendezvous.h"
#include "engine/plan/topology.h"
#include "engine/spec/config.h"

namespace dstrain {

struct RankGroups {
  /// Collective over the world: every rank makes its groups in this order.
  RankGroups(Rendezvous& rendezvous, const Topology& topology, const Config& config);

  /// Over whom the squares of gradients are summed: all ranks where each owns a slice (stages 1 to
  /// 3), else those that hold other parts of the model; nullptr where there is nobody else.
  [[nodiscard]] Communicator* norm(int zero_stage) const;

  std::unique_ptr<Communicator> world;
  std::unique_ptr<Communicator> data;      ///< same part of the model, other data
  std::unique_ptr<Communicator> tensor;    ///< same layers and data, other parts of the layers
  std::unique_ptr<Communicator> model;     ///< same data, other parts of the model
  std::unique_ptr<Communicator> pipeline;  ///< same data and part of the layers, other layers
  /// First and last stage of `pipeline`, where a tied table lies on both; else nullptr.
  std::unique_ptr<Communicator> tied;
  /// Neighbours in `tensor` that hold the same key/value heads, where there are fewer heads than
  /// ranks and more than one; else nullptr.
  std::unique_ptr<Communicator> shared_heads;
};

}  // namespace dstrain
