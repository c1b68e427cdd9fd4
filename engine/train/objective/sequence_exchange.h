// SequenceExchange: brings the losses of a micro-batch's targets to the host, of whole sequences
// though ranks share them, and this rank's part of their weights to the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/layer_context.h"
#include "engine/train/run_plan.h"

namespace dstrain {

class SequenceExchange {
 public:
  /// Both outlive it.
  SequenceExchange(const RunPlan& plan, const LayerContext& context);
  /// The host's memory that it takes; 0 where targets weigh alike.
  static std::int64_t host_bytes(const RunPlan& plan);

  /// `losses`: f32 [N], this rank's tokens. Waits for them. Returns [B, T], valid until the next
  /// call. Collective over the ranks that share the sequences.
  std::span<const float> fetch(ConstTensor losses);
  /// [B, T], to be filled in before send().
  [[nodiscard]] std::span<float> weights() { return weights_; }
  /// Copies this rank's part of weights() to f32 [N].
  void send(Tensor weights);

 private:
  /// Calls visit(begin of a run of this rank's tokens in [B, T], its length), in the order of N.
  template <typename Visit>
  void for_each_own_run(Visit&& visit) const;

  const RunPlan& plan_;
  const LayerContext& context_;
  std::vector<float> own_;  // N
  std::vector<float> losses_;
  std::vector<float> weights_;
};

}  // namespace dstrain
