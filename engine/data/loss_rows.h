// The tokens of a micro-batch that go through the loss head: those whose targets count, and a few
// others, so that micro-batches have few different sizes, for each of which devices prepare their
// products anew. In fine-tuning many targets do not count, as those of prompts, and logits are a
// large part of a small model's work.
#pragma once

#include <cstdint>
#include <span>

namespace dstrain {

struct LossRows {
  /// The most different sizes, apart from rounding.
  static constexpr std::int64_t kSizes = 16;

  std::span<std::int32_t> rows_N;     ///< the tokens that go through the head, M of them
  std::span<std::int32_t> places_N;   ///< the place of each token among those, or -1
  std::span<std::int32_t> targets_N;  ///< of those tokens, M

  /// Fills the three, of which what lies behind M is left as it is, and returns M, at least one.
  /// The tokens whose targets count come first, in their order.
  std::int64_t choose(std::span<const std::int32_t> targets) const;
};

}  // namespace dstrain
