// RankGroups: the communicators of one rank, one for each set of ranks that it works with. Members
// are arithmetic (Topology), known before anybody meets; only members meet. What the host agrees on
// (metrics, norms, checkpoints) goes through groups for host memory, the engine's tensors through
// groups for the device's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/rendezvous.h"
#include "engine/config/config.h"
#include "engine/plan/topology.h"

namespace dstrain {

/// One set of ranks.
struct GroupPlan {
  std::string name;          ///< unique in the job
  std::vector<int> members;  ///< in the world, ascending
};

/// The sets that one rank belongs to, in the order in which every rank makes its groups.
struct RankGroupPlans {
  GroupPlan world;     ///< for host memory
  GroupPlan data;      ///< same part of the model, other data
  GroupPlan tensor;    ///< same layers and data, other parts of the layers
  GroupPlan model;     ///< same data, other parts of the model; for host memory
  GroupPlan pipeline;  ///< same data and part of the layers, other layers
  /// First and last stage of `pipeline`, where a tied table lies on both; else nobody.
  GroupPlan tied;
  /// Neighbours in `tensor` that hold the same key/value heads, where there are fewer heads than
  /// ranks and more than one; else nobody.
  GroupPlan shared_heads;
  /// All ranks, for checkpoints written beside training, from host memory; else nobody.
  GroupPlan checkpoint;
};
RankGroupPlans plan_rank_groups(const Topology& topology, const Config& config, int rank);

struct RankGroups {
  /// Collective over the world. `host` and `device` may be one, where the host is the device.
  RankGroups(Rendezvous& host, Rendezvous& device, const Topology& topology, const Config& config);

  /// Over whom the squares of gradients are summed, in host memory: all ranks where each owns a
  /// slice (stages 1 to 3), else those that hold other parts of the model; nullptr where there is
  /// nobody else.
  [[nodiscard]] Communicator* norm(int zero_stage) const;

  /// All of them. From any thread.
  void abort() noexcept;

  // As in RankGroupPlans; nullptr for nobody.
  std::unique_ptr<Communicator> world;
  std::unique_ptr<Communicator> data;
  std::unique_ptr<Communicator> tensor;
  std::unique_ptr<Communicator> model;
  std::unique_ptr<Communicator> pipeline;
  std::unique_ptr<Communicator> tied;
  std::unique_ptr<Communicator> shared_heads;
  /// All ranks, for checkpoints written beside training; nullptr where none are.
  std::unique_ptr<Communicator> checkpoint;
};

}  // namespace dstrain
