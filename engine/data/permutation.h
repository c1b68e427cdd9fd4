// A keyed permutation of [0, n): element i in constant time and no memory, where shuffling would
// need a table as long as the data set. A Feistel network over the next power of two, walked until
// it lands inside [0, n) (Black & Rogaway 2002, "Ciphers with arbitrary finite domains").
#pragma once

#include <cstdint>

namespace dstrain {

/// Returns where `index` of [0, n) goes. Different (key, stream) give unrelated permutations.
std::int64_t permuted(std::int64_t index, std::int64_t n, std::uint64_t key, std::uint64_t stream);

}  // namespace dstrain
