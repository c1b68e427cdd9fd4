// CompressionLayout: what data-parallel ranks tell each other of gradients that are compressed, and
// where it lies in their messages. Matrices of at least 4096 elements are compressed whose gradient
// this rank has alone to itself: no copy of it is summed over other axes of the layout. Of all
// others the exact sums travel, in the same message.
//
//   powersgd  (Vogels et al. 2019, arXiv 1905.13727, algorithm 1)
//     P of each matrix [rows, rank] │ exact gradients     Σ all-reduce, f32
//     Q of each matrix [rank, columns]                    Σ all-reduce, f32
//   top_k     (kernels/math/top_code.h; matrices next to each other are one tensor)
//     codes of all matrices                               ⇠ all-gather, u8
//     exact gradients                                     Σ all-reduce, f32
//
// PowerSGD leaves a matrix exact of which P and Q would be no less than half of it. Nothing depends
// on a tensor's neighbours in other units, so all layouts of a pipeline see the same.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config/compression_config.h"
#include "engine/plan/shard_map.h"
#include "kernels/math/top_code.h"

namespace dstrain {

/// Buffers of the blueprint; those that a kind does not need are not declared.
struct CompressionBuffers {
  BufferRef sums{};     ///< f32: what is summed exactly, P's first
  BufferRef factors{};  ///< f32: all Q, kept from step to step
  BufferRef start{};    ///< f32: what all Q were at first
  BufferRef codes{};    ///< u8: the messages of all ranks
  BufferRef one_row{};  ///< u8: all ranks' codes of one row, one after another
};

class CompressionLayout {
 public:
  /// One matrix, or for top_k several next to each other.
  struct Row {
    int unit = 0;
    int param = 0;          ///< the (first) matrix, within the unit
    Range range;            ///< of its elements in the unit's flat buffer
    std::int64_t rows = 0;  ///< of a single matrix, as columns
    std::int64_t columns = 0;
    std::int64_t left = 0;   ///< where P begins in the sums, elements
    std::int64_t right = 0;  ///< and Q in the factors
    std::int64_t code = 0;   ///< and its code in a message, bytes
  };
  /// Neighbouring parameters whose gradients are summed exactly.
  struct Exact {
    int unit = 0;
    Range range;          ///< of the unit's flat buffer
    std::int64_t at = 0;  ///< in the sums, elements
  };

  /// For the tensors of all units, which `ranks` ranks share.
  CompressionLayout(const ShardMap& shards, const CompressionConfig& config, int ranks);

  [[nodiscard]] CompressionKind kind() const { return config_.kind; }
  [[nodiscard]] int ranks() const { return ranks_; }
  /// PowerSGD's, the columns of a P.
  [[nodiscard]] std::int64_t width() const { return config_.rank; }
  [[nodiscard]] TopCode code() const;
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  [[nodiscard]] const std::vector<Exact>& exact() const { return exact_; }
  /// Elements of f32 that are summed first, and of all Q.
  [[nodiscard]] std::int64_t sums() const { return sums_; }
  [[nodiscard]] std::int64_t factors() const { return factors_; }
  /// The bytes of a rank's message.
  [[nodiscard]] std::int64_t message_bytes() const { return message_bytes_; }

  /// Adds the buffers; none for one rank.
  [[nodiscard]] CompressionBuffers declare(Blueprint& blueprint) const;

 private:
  [[nodiscard]] bool is_compressed(const ParamDecl& param) const;
  void add_row(int unit, int param, Range range, const Shape& shape);
  void add_exact(int unit, Range range);
  void place();

  CompressionConfig config_;
  int ranks_;
  std::vector<Row> rows_;
  std::vector<Exact> exact_;
  std::int64_t sums_ = 0;
  std::int64_t factors_ = 0;
  std::int64_t message_bytes_ = 0;
  std::int64_t longest_code_ = 0;
};

}  // namespace dstrain
