// ExpertTally: what the host knows of the experts of one rank's blocks: how many rows each expert
// has in a micro-batch under way, and how busy they were over a step.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace dstrain {

class ExpertTally {
 public:
  /// Of the micro-batches whose backward this rank computed since begin_step().
  struct Layer {
    std::int64_t sequences = 0;  ///< or parts of them, where ranks share sequences
    std::int64_t tokens = 0;
    std::vector<std::int64_t> rows{};  ///< by expert: the tokens that went through it
  };

  void begin_step() {
    for (auto& [block, layer] : layers_) {
      layer = {.rows = std::vector<std::int64_t>(layer.rows.size())};
    }
  }

  /// The rows of each expert of a block in the micro-batch of a slot: written by its forward, and
  /// read until the next one.
  std::vector<std::int32_t>& rows(std::int64_t block, int slot, std::int64_t experts) {
    std::vector<std::int32_t>& rows = rows_[{block, slot}];
    rows.resize(static_cast<std::size_t>(experts));
    return rows;
  }

  /// Counts a micro-batch of a block.
  void count(std::int64_t block,
             std::int64_t sequences,
             std::int64_t tokens,
             std::span<const std::int32_t> rows) {
    Layer& layer = layers_[block];
    layer.rows.resize(rows.size());
    for (std::size_t expert = 0; expert < rows.size(); ++expert) {
      layer.rows[expert] += rows[expert];
    }
    layer.sequences += sequences;
    layer.tokens += tokens;
  }
  /// By block.
  [[nodiscard]] const std::map<std::int64_t, Layer>& layers() const { return layers_; }

 private:
  std::map<std::pair<std::int64_t, int>, std::vector<std::int32_t>> rows_;
  std::map<std::int64_t, Layer> layers_;
};

}  // namespace dstrain
