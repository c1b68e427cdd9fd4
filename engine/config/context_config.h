// ContextParallelConfig: which ranks share sequences, and how (engine/plan/token_share.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace dstrain {

/// The kind of traffic between ranks that share sequences, while they attend.
enum class ContextKind : std::uint8_t {
  kRing,     ///< "ring": keys and values
  kUlysses,  ///< "ulysses": tokens for heads
  kUsp       ///< "usp": tokens for heads among neighbours, keys and values with all others
};

/// The order in which the chunks of a sequence are dealt to the ranks of a ring.
enum class ContextOrder : std::uint8_t {
  kZigzag,     ///< "zigzag": two chunks each, the r-th from the front and from the back
  kContiguous  ///< "contiguous": one chunk each
};

/// "context_parallel": ranks that have other tokens of the same sequences.
struct ContextParallelConfig {
  int size = 1;  ///< also context_parallel_size
  /// sequence_parallel_size, DeepSpeed's name for the size of "ulysses". Resolved: none.
  std::optional<int> ulysses_ranks;
  /// hierarchical_context_parallel_sizes, Megatron's name for the sizes of "usp": ranks that
  /// exchange heads, and ranks that exchange keys and values. Resolved: none.
  std::vector<std::int64_t> hierarchical_sizes;
  std::optional<ContextKind> kind;  ///< also cp_comm_type; absent: ring, until it is resolved
  ContextOrder order = ContextOrder::kZigzag;  ///< of a ring of several
  /// Neighbours among which "usp" exchanges heads. Absent: as many as a host's ranks and the model
  /// allow, until it is resolved.
  std::optional<int> ulysses_size;

  /// The number of ranks among which heads are exchanged; of what is resolved.
  [[nodiscard]] int heads() const {
    const ContextKind what = kind.value_or(ContextKind::kRing);
    return what == ContextKind::kUsp ? ulysses_size.value_or(1)
                                     : (what == ContextKind::kUlysses ? size : 1);
  }
  /// Sequences must be multiples of so many tokens.
  [[nodiscard]] std::int64_t unit() const {
    const bool has_two_chunks = order == ContextOrder::kZigzag && size > heads();
    return std::int64_t{size} * (has_two_chunks ? 2 : 1);
  }
  bool operator==(const ContextParallelConfig&) const = default;
};

/// Whether `ranks` ranks can attend with equally many of a model's heads each: with key/value heads
/// of their own, or each with one that neighbours share.
inline bool can_deal_heads(std::int64_t ranks, std::int64_t heads, std::int64_t key_value_heads) {
  return heads % ranks == 0 && (key_value_heads % ranks == 0 || ranks % key_value_heads == 0);
}

}  // namespace dstrain
