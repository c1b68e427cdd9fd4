// SequenceExchange: brings what a micro-batch's targets were found to lose, and to be worth, to the
// host, of whole sequences though ranks share them, and this rank's part of the weights to the
// device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/layer_context.h"
#include "engine/model/target_weigher.h"
#include "engine/train/objective/objective.h"
#include "engine/train/run_plan.h"

namespace dstrain {

class SequenceExchange {
 public:
  /// Both outlive it.
  SequenceExchange(const RunPlan& plan, const LayerContext& context);
  /// The host's memory that it takes; 0 where targets weigh alike.
  static std::int64_t host_bytes(const RunPlan& plan);

  /// The number of [B, T] that go either way: losses, and values where the model has them.
  static std::int64_t kinds(const Architecture& model) { return model.values ? 2 : 1; }

  /// Waits for what was found. The result is valid until the next call. Collective over the ranks
  /// that share the sequences.
  SequenceNumbers fetch(const TargetNumbers& found);
  /// To be filled in before send().
  [[nodiscard]] SequenceWeights weights();
  /// Copies this rank's part of weights() to the device.
  void send(const TargetWeights& to);

 private:
  /// Calls visit(begin of a run of this rank's tokens in [B, T], its length), in the order of N.
  template <typename Visit>
  void for_each_own_run(Visit&& visit) const;

  const RunPlan& plan_;
  const LayerContext& context_;
  std::size_t all_;           // B · T
  std::vector<float> own_;    // N
  std::vector<float> found_;  // [kinds, B, T], as the next
  std::vector<float> weights_;
};

}  // namespace dstrain
