// LayerContext: an ExecContext with the groups that split layers meet in, and with the tokens that
// a forward of generation computes.
#pragma once

#include <optional>
#include <span>

#include "engine/parallel/tensor_parallel.h"
#include "engine/plan/shard_map.h"
#include "engine/runtime/exec_context.h"

namespace dstrain {

/// The ranks that have other tokens of the same sequences (engine/plan/token_share.h).
struct ContextGroups {
  Communicator* ring = nullptr;   ///< nullptr: the sequences' keys are all here
  Communicator* heads = nullptr;  ///< nullptr: heads are not exchanged for tokens
  Stream* passing = nullptr;      ///< of what goes round the ring while others compute
};

/// The tokens that a forward computes, for layers that extend a cache
/// (LayerShape::cache_positions): of each of these texts the next, one or several in a row.
struct Extension {
  struct Text {
    std::int64_t first_row = 0;  ///< of the caches, where those of the text begin
    Range positions;             ///< of its tokens
  };
  std::span<const Text> texts;
  std::int64_t tokens = 0;

  /// Calls visit(text, the rows that its tokens have among all).
  template <typename Visit>
  void for_each_text(Visit&& visit) const {
    std::int64_t row = 0;
    for (const Text& text : texts) {
      visit(text, Range{row, row + text.positions.size()});
      row += text.positions.size();
    }
  }
};

struct LayerContext : ExecContext {
  const TensorParallel& tensor_parallel;
  ContextGroups context_groups{};
  Communicator* expert_ranks = nullptr;  ///< that hold other experts; nullptr: all are here
  Stream* expert_passing = nullptr;      ///< of rows that travel to them and back while others
                                         ///< compute; nullptr: none travels meanwhile
  /// Empty in training, where a forward computes a micro-batch.
  std::optional<Extension> extension{};
  // Of the micro-batch whose backward computes, for layers that have losses of their own:
  float token_scale = 0.0F;                ///< MicroBatch::token_scale
  Write losses_write = Write::kOverwrite;  ///< whether its losses are the step's first

  /// The rows of an activation that this forward computes: the first of the buffer's where it
  /// extends a cache, all of them in training.
  [[nodiscard]] Tensor activation(BufferRef ref, int slot) const {
    const Tensor whole = buffer(ref, slot);
    return extension ? whole.rows(0, extension->tokens) : whole;
  }
};

}  // namespace dstrain
