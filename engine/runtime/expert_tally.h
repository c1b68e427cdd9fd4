// ExpertTally: what the host knows of the experts of one rank's blocks: how many rows each expert
// has in a micro-batch under way, and how busy they were over a step.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace dstrain {

/// The rows of one micro-batch of a block, or of a tile of its tokens, a row being a token for one
/// of its experts.
struct RoutedRows {
  std::vector<std::int32_t> chosen{};    ///< by expert of the layer: those of this rank's tokens
  std::vector<std::int32_t> wanted{};    ///< where experts drop tokens: the same, taken or not
  std::vector<std::int32_t> computed{};  ///< by expert of this rank: those that it computes
  // Where ranks have other experts; rows "as received" are ordered by the rank that they are from.
  std::vector<std::int32_t> received{};    ///< by rank, then by expert of this rank
  std::vector<std::int32_t> order{};       ///< the place as received of each row that is computed
  std::vector<std::int32_t> places{};      ///< the place among those of each row as received
  std::vector<std::int32_t> experts{};     ///< this rank's expert of each row as received
  std::vector<std::int64_t> to_ranks{};    ///< of `chosen`, by rank
  std::vector<std::int64_t> from_ranks{};  ///< of `received`, by rank
};

class ExpertTally {
 public:
  /// Of the micro-batches whose backward this rank computed since begin_step().
  struct Layer {
    std::int64_t sequences = 0;  ///< or parts of them, where ranks share sequences
    std::int64_t tokens = 0;
    std::vector<std::int64_t> rows{};  ///< by expert: the tokens that chose it
    std::int64_t dropped = 0;          ///< of all these choices, those beyond a capacity
  };

  void begin_step() {
    for (auto& [block, layer] : layers_) {
      layer = {.rows = std::vector<std::int64_t>(layer.rows.size())};
    }
  }

  /// Returns the rows of a tile of a block's micro-batch in a slot; the tile's forward writes them,
  /// and they are read until the next one.
  RoutedRows& rows(std::int64_t block, int slot, int tile) { return rows_[{block, slot, tile}]; }

  /// Counts a micro-batch of a block, or a tile of it: the `sequences` that it begins.
  void count(std::int64_t block,
             std::int64_t sequences,
             std::int64_t tokens,
             std::span<const std::int32_t> rows,
             std::int64_t dropped = 0) {
    Layer& layer = layers_[block];
    layer.rows.resize(rows.size());
    for (std::size_t expert = 0; expert < rows.size(); ++expert) {
      layer.rows[expert] += rows[expert];
    }
    layer.sequences += sequences;
    layer.tokens += tokens;
    layer.dropped += dropped;
  }
  /// By block.
  [[nodiscard]] const std::map<std::int64_t, Layer>& layers() const { return layers_; }

 private:
  std::map<std::tuple<std::int64_t, int, int>, RoutedRows> rows_;
  std::map<std::int64_t, Layer> layers_;
};

}  // namespace dstrain
