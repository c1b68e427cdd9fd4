// Activation checkpointing, as the user wrote it: part of config.h.
#pragma once

#include <cstdint>
#include <optional>

namespace dstrain {

/// What backward computes again instead of keeping it from forward.
enum class RecomputeGranularity : std::uint8_t {
  kNone,
  kSelective,  ///< what takes one elementwise or row-wise pass: norms, activation functions
  kFull        ///< a whole block, from the residual stream that enters it
};

/// "activation_checkpointing".
struct RecomputeConfig {
  RecomputeGranularity granularity = RecomputeGranularity::kNone;
  std::optional<std::int64_t> layers;  ///< the number of blocks, from the first; absent: all
  /// partition_activations: tensor-parallel ranks keep a part each of a block's input, and gather
  /// it before the block computes again. False once resolved wherever that changes nothing.
  bool partitions_inputs = false;
  /// cpu_checkpointing: blocks' inputs, or those parts, lie in the host's memory from forward to
  /// backward. Likewise false.
  bool inputs_on_host = false;

  [[nodiscard]] RecomputeGranularity of_block(std::int64_t block) const {
    return !layers || block < *layers ? granularity : RecomputeGranularity::kNone;
  }
  [[nodiscard]] bool partitions_input_of(std::int64_t block) const {
    return partitions_inputs && of_block(block) != RecomputeGranularity::kNone;
  }
  [[nodiscard]] bool keeps_input_on_host(std::int64_t block) const {
    return inputs_on_host && of_block(block) != RecomputeGranularity::kNone;
  }
  bool operator==(const RecomputeConfig&) const = default;
};

}  // namespace dstrain
