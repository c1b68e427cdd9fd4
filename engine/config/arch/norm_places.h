// What families of models differ by in their norms.
#pragma once

#include <cstdint>

namespace dstrain {

/// Where the two norms of a block stand.
enum class NormPlacement : std::uint8_t {
  kBeforeBranch,  ///< x + f(norm(x))
  kAfterBranch,   ///< x + norm(f(x)): OLMo 2
  kAroundBranch   ///< x + norm(f(norm(x))), two norms a branch: Gemma 2
};

/// The numbers that one RMS norm of queries and keys, before they are rotated, goes over.
enum class QueryKeyNorm : std::uint8_t {
  kNone,
  kPerHead,   ///< each head by itself, all with one weight [D]: Qwen3
  kFullWidth  ///< all heads of a token together, weights [H·D] and [K·D]: OLMo 2
};

}  // namespace dstrain
