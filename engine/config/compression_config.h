// The "gradient_compression" of a run, as the user wrote it: part of config.h.
#pragma once

#include <cstdint>

namespace dstrain {

enum class CompressionKind : std::uint8_t {
  kNone,
  kPowerSgd,  ///< "powersgd": two thin factors of each matrix
  kTopK       ///< "top_k": the largest numbers of each block
};

/// "gradient_compression": what data-parallel ranks tell each other of their gradients.
struct CompressionConfig {
  CompressionKind kind = CompressionKind::kNone;
  std::int64_t start_step = 1000;  ///< updates with exact sums before
  int rank = 4;                    ///< kPowerSgd: columns of a factor
  double density = 0.01;           ///< kTopK: the share of a block's numbers that travels

  bool operator==(const CompressionConfig&) const = default;
};

}  // namespace dstrain
