// VectorLoops: the innermost loops of the CPU backend, as one table of function pointers for each
// instruction set (available_loops in kernels/cpu/isa.h chooses). Each works on raw pointers in
// one thread; checks, partition over threads and scratch memory are left to kernels/cpu/*.cpp.
// Plain structs without initialisers: this header is compiled for every instruction set (vec.h).
//
// N rows, C width, D head dim, F feed-forward width, V vocabulary; T: float, BF16 or F16
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cpu/vector/optimizer_loops.h"
#include "kernels/group_norm_rows.h"
#include "kernels/math/bit_sums.h"
#include "kernels/math/dropout.h"
#include "kernels/op_kinds.h"

namespace dstrain {

template <typename T>
struct NormForwardRows {
  bool centered;        ///< LayerNorm: subtract the mean; RMSNorm: do not
  float weight_offset;  ///< added to the weight
  float epsilon;
  std::int64_t rows;
  std::int64_t width;
  const T* x;
  const T* delta;  ///< nullptr: nothing to add
  const T* weight;
  const T* bias;  ///< nullptr: none
  T* residual;    ///< only written with delta
  T* y;
  float* stats;  ///< [rows][2]
};

template <typename T>
struct NormBackwardRows {
  bool centered;
  float weight_offset;
  bool add_to_dx;
  std::int64_t rows;
  std::int64_t width;
  const T* dy;
  const T* x;
  const T* weight;
  const float* stats;
  T* dx;
  float* dweight;  ///< [width], added to
  float* dbias;    ///< [width], added to; nullptr: not wanted
};

template <typename T>
struct RopeRows {
  std::int64_t rows;
  std::int64_t first_row;  ///< position of row r: (first_row + r) mod sequence
  std::int64_t sequence;
  const std::int32_t* positions;  ///< of the rows, in place of these; nullptr: none
  std::int64_t row_stride;
  std::int64_t heads;  ///< query and key heads, which lie side by side
  std::int64_t head_dim;
  std::int64_t pairs;   ///< of each head, of its first 2 · pairs numbers
  float direction;      ///< 1 forward, -1 backward
  const float* cosine;  ///< [positions][pairs]
  const float* sine;
  T* qkv;  ///< first of the rows
};

/// A part of a factor of a product: its rows, if it is the left one, or columns, as vectors of
/// terms. Packed as f32 they are panels [terms][as many as a tile has], with zeros for those that
/// do not exist, and kPanelPadding behind each.
template <typename T>
struct OperandPart {
  const T* from;
  bool vectors_together;  ///< the elements of a term lie side by side, not those of a vector
  std::int64_t stride;    ///< between terms then, otherwise between vectors
  std::int64_t vectors;
  std::int64_t terms;
  std::int64_t panel_stride;
};
inline constexpr std::int64_t kPanelPadding = 16;

/// c = start + a · b, of packed factors.
template <typename T>
struct PackedProduct {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t terms;
  const float* a;
  std::int64_t a_panel_stride;
  const float* b;
  std::int64_t b_panel_stride;
  const float* start;  ///< may be c; nullptr: 0
  std::int64_t start_stride;
  T* c;
  std::int64_t c_stride;
};

/// sums = bias + a · bᵀ of few rows of a, which are packed as columns are (pack_columns), chunk by
/// chunk of terms; b is read as it lies. Each element is summed up as multiply_packed does.
template <typename T>
struct FewRowsProduct {
  static constexpr std::int64_t kMostRows = 32;

  std::int64_t rows;
  std::int64_t columns;  ///< rows of b
  std::int64_t terms;
  std::int64_t chunk_terms;
  const float* a;
  std::int64_t a_panel_stride;
  std::int64_t a_chunk_stride;
  const T* b;         ///< [columns, terms]
  const float* bias;  ///< nullptr: none
  float* wide;        ///< scratch: as many of b's rows as two tiles have, wide_stride apart
  float* sums;        ///< [rows, columns]

  static constexpr std::int64_t wide_stride(std::int64_t terms) { return terms + kPanelPadding; }
};

/// Rows [begin, end) among sixteen neighbours of one sample: positions 16 · block + begin, ….
template <typename T>
struct DropoutBlock {
  SampleDropout dropout;
  std::uint32_t block;
  int begin;
  int end;
  std::int64_t width;
  std::int64_t first_column;
  const T* x;  ///< first of the rows
  T* y;        ///< may be x
};

/// The columns of T that lie together in a panel: R · kRankPanel floats' worth, in the way that an
/// instruction set multiplies fastest (low_rank.cpp, low_rank_dot.cpp).
inline constexpr std::int64_t kRankPanel = 64;

/// What a panel, or the numbers of ranks, are packed for.
enum class LowRankUse : std::uint8_t { kReduce, kAdd, kGradient };

/// `columns` columns of T [R, …], whose rows are `stride` apart, or of Tᵀ, whose rows are R apart.
template <typename T>
struct RankPanel {
  LowRankUse use;  ///< kReduce or kAdd
  bool transposed;
  std::int64_t ranks;
  std::int64_t columns;
  std::int64_t stride;
  const T* t;
};

/// N rows of C columns, whose rows are `stride` elements apart, and of R ranks.
template <typename T>
struct LowRankRows {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t ranks;
  std::int64_t stride;
  float scale;
  const float* panels;
  const float* numbers;  ///< [N, R], packed
  T* numbers_written;    ///< [N][R]
  const T* wide;
  T* wide_written;
};

/// One sequence and one key/value head with the query heads that read it.
template <typename T>
struct AttentionTask {
  std::int64_t sequence;        ///< queries
  std::int64_t keys;            ///< and keys of it
  std::int64_t first_position;  ///< of the queries among the keys; negative: they come before
  std::int64_t first_key;       ///< position of the first key in the sample
  std::int64_t head_dim;
  std::int64_t group;         ///< query heads of this key/value head
  std::int64_t query_stride;  ///< elements from one position to the next in q
  std::int64_t key_stride;
  std::int64_t value_stride;
  std::int64_t dq_stride;  ///< backward only, as the next two
  std::int64_t dk_stride;
  std::int64_t dv_stride;
  std::int64_t out_stride;  ///< the same in out and dout
  float scale;              ///< 1 / sqrt(head_dim)
  float cap;                ///< AttentionReach's, as the next three
  const float* slopes;      ///< [group]; nullptr: none
  std::int64_t window;
  const std::int32_t* document_positions;  ///< of this sequence; nullptr: it is one document
  SampleDropout dropout;        ///< of probabilities: keys along, queries across, heads as planes
  std::uint32_t first_plane;    ///< the first query head of `group`
  std::int64_t first_block;     ///< blocks of kAttentionTile queries of all `group` heads, counted
  std::int64_t last_block;      ///< head by head, [first_block, last_block)
  std::int64_t first_key_tile;  ///< backward: the tiles of kAttentionTile keys that count,
  std::int64_t last_key_tile;   ///< [first_key_tile, last_key_tile)
  const T* q;                   ///< first position of the first query head; heads side by side
  const T* k;
  const T* v;
  T* out_written;            ///< forward only
  float* logsumexp_written;  ///< [group][sequence]; forward only
  const T* out;              ///< backward only, from here on
  const float* logsumexp;    ///< [group][sequence]
  const T* dout;
  float* delta;  ///< [group][sequence]; written with dq
  T* dq;         ///< of the blocks' queries; nullptr: not wanted
  T* dk;         ///< of the tiles' keys, and of all the blocks; nullptr: not wanted, nor dv
  T* dv;
  void* scratch;  ///< attention_scratch_bytes(), aligned to 64
};

/// One query of all heads that read one key/value head, over the keys that it sees.
template <typename T>
struct QueryAttention {
  std::int64_t keys;
  std::int64_t head_dim;
  std::int64_t group;       ///< query heads of this key/value head
  std::int64_t key_stride;  ///< elements from one key to the next
  std::int64_t value_stride;
  float scale;            ///< 1 / sqrt(head_dim)
  float cap;              ///< AttentionReach's, as the next
  const float* slopes;    ///< [group]; nullptr: none
  std::int64_t distance;  ///< of the first key, before the query
  const T* q;             ///< heads side by side
  const T* k;             ///< first key that the query sees
  const T* v;
  float* scores;             ///< scratch [keys]
  T* out_written;            ///< as q
  float* logsumexp_written;  ///< of the first head; nullptr: not wanted
  std::int64_t sums_stride;  ///< from one head's to the next's
};

/// Queries and keys of one tile of scores.
constexpr std::int64_t kAttentionTile = 64;

/// Σ exp(x) = total · exp(largest); of nothing, {-infinity, 0}.
struct ExpSum {
  float largest;
  float total;
};

/// Loops over tensors of T.
template <typename T>
struct TypedLoops {
  void (*add)(const T* a, const T* b, T* y, std::int64_t n);
  void (*dropout)(const DropoutBlock<T>& rows);
  void (*activation_forward)(ActivationKind kind, const T* x, T* y, std::int64_t n);
  void (*activation_backward)(ActivationKind kind, const T* x, const T* dy, T* dx, std::int64_t n);
  void (*gated_forward)(
      GatedActivation activation, const T* gate_up, T* y, std::int64_t rows, std::int64_t width);
  void (*gated_backward)(GatedActivation activation,
                         const T* gate_up,
                         const T* dy,
                         T* d_gate_up,
                         std::int64_t rows,
                         std::int64_t width);
  void (*norm_forward)(const NormForwardRows<T>& rows);
  void (*norm_backward)(const NormBackwardRows<T>& rows);
  /// sums: [rows][groups].
  void (*group_squares)(const GroupNormRows<T>& rows, float* sums);
  void (*group_products)(const GroupNormRows<T>& rows, float* sums);
  void (*group_norm_forward)(const GroupNormRows<T>& rows);
  /// dweight: [width], added to.
  void (*group_norm_backward)(const GroupNormRows<T>& rows, float* dweight);
  void (*rope)(const RopeRows<T>& rows);
  /// sums[c] += the sum over `rows` rows of x[r][c].
  void (*add_column_sums)(const T* x, std::int64_t rows, std::int64_t width, float* sums);
  /// y += x.
  void (*accumulate)(const T* x, float* y, std::int64_t n);
  ExpSum (*sum_of_exp)(const T* logits, std::int64_t n);
  /// Replaces n logits by (exp(logit - logsumexp) - onehot) · gradient_scale, where there is a cap
  /// also times its slope; a target outside [0, n) is none of them.
  void (*cross_entropy_gradient)(T* logits,
                                 std::int64_t n,
                                 std::int64_t target,
                                 float logsumexp,
                                 float gradient_scale,
                                 float cap);
  void (*soft_cap)(T* x, float cap, std::int64_t n);
  /// y = or += x · factors + bias; without factors x + bias, and bias may be missing, too; y may be
  /// x.
  void (*scale_columns)(
      const T* x, const float* factors, const T* bias, T* y, bool adds, std::int64_t n);
  /// dx = dy · factors, and sums += dy · x · inverses; dx may be dy.
  void (*scale_columns_backward)(const T* dy,
                                 const T* x,
                                 const float* factors,
                                 const float* inverses,
                                 T* dx,
                                 float* sums,
                                 std::int64_t n);
  /// Σ a · b
  float (*row_product)(const T* a, const float* b, std::int64_t n);
  /// dw loses what lies along w.
  void (*project_row)(const T* w, float inverse_length, float* dw, std::int64_t width);
  float (*dot)(const T* a, const T* b, std::int64_t n);
  double (*sum_of_squares)(const T* x, std::int64_t n);
  /// The checksum of the bits, and of those of an f32 rounded to T.
  BitSums (*bit_sums)(const T* x, std::int64_t n);
  BitSums (*bit_sums_of_cast)(const float* x, std::int64_t n);
  /// y = x, rounded where y's type is narrower.
  void (*cast_to_f32)(const T* x, float* y, std::int64_t n);
  void (*cast_to_bf16)(const T* x, BF16* y, std::int64_t n);
  void (*cast_to_f16)(const T* x, F16* y, std::int64_t n);
  /// y = scale · x, or y += scale · x; y may be x.
  void (*scale_to_f32)(const T* x, float scale, float* y, bool adds, std::int64_t n);
  void (*scale_to_bf16)(const T* x, float scale, BF16* y, bool adds, std::int64_t n);
  void (*scale_to_f16)(const T* x, float scale, F16* y, bool adds, std::int64_t n);
  /// y = of_y · y + of_x · x, rounded once.
  void (*weigh)(const T* x, float of_x, T* y, float of_y, std::int64_t n);
  /// max |x|; NaN if there is one.
  float (*largest_magnitude)(const T* x, std::int64_t n);
  /// q = the 8-bit floats nearest to x · factor (f8.h).
  void (*to_f8e4m3)(const T* x, float factor, std::uint8_t* q, std::int64_t n);
  void (*to_f8e5m2)(const T* x, float factor, std::uint8_t* q, std::int64_t n);
  /// The codes of a block in 8 bits, or of n elements and n others in 4 (block_code.h), of
  /// x · inverse.
  void (*encode_8_bits)(const T* x, float inverse, std::uint8_t* codes, std::int64_t n);
  void (*encode_4_bits)(
      const T* low, const T* high, float inverse, std::uint8_t* codes, std::int64_t n);
  /// y = or += code · scale; of the 4 bits from bit `shift` of each byte on.
  void (*decode_8_bits)(const std::uint8_t* codes, float scale, T* y, bool adds, std::int64_t n);
  void (*decode_4_bits)(
      const std::uint8_t* codes, int shift, float scale, T* y, bool adds, std::int64_t n);
  /// Bytes of scratch for one task at a time.
  std::int64_t (*attention_scratch_bytes)(std::int64_t keys, std::int64_t head_dim);
  void (*attention_forward)(const AttentionTask<T>& task);
  void (*attention_backward)(const AttentionTask<T>& task);
  void (*query_attention)(const QueryAttention<T>& task);
  /// y[o] = Σ x[i] · w[o][i] + bias[o] (nullptr: none) for `outputs` rows of w.
  void (*row_products)(const float* x,
                       const T* w,
                       const T* bias,
                       std::int64_t inputs,
                       std::int64_t outputs,
                       float* y);
  void (*pack_rows)(const OperandPart<T>& of, float* panels);
  void (*pack_columns)(const OperandPart<T>& of, float* panels);
  void (*multiply_packed)(const PackedProduct<T>& of);
  void (*multiply_few_rows)(const FewRowsProduct<T>& of);
  /// With zeros behind its columns.
  void (*pack_rank_panel)(const RankPanel<T>& of, float* panel);
  /// h [rows][ranks], for kAdd or kGradient, in as many floats, and as many as ranks where there is
  /// an odd number of either.
  void (*pack_rank_numbers)(
      LowRankUse use, const T* h, std::int64_t rows, std::int64_t ranks, float* numbers);
  /// numbers_written = scale · wide · Tᵀ.
  void (*reduce_to_rank)(const LowRankRows<T>& rows);
  /// wide_written += numbers · T.
  void (*add_from_rank)(const LowRankRows<T>& rows);
  /// panel [R][kRankPanel] = numbersᵀ · wide, for at most kRankPanel columns.
  void (*rank_gradient)(const LowRankRows<T>& rows, float* panel);
};

/// The signs of n neighbours in several messages, and what they sum up to (sign_code.h).
struct SignRows {
  std::int64_t count;         ///< messages
  std::int64_t stride;        ///< bytes from a message to the next
  const std::uint8_t* signs;  ///< of the first message, from the first neighbour's byte on
  const std::uint8_t* scales;
  float factor;  ///< of the sum
  bool adds;
  std::int64_t n;
  float* y;
};

struct VectorLoops {
  TypedLoops<float> f32;
  TypedLoops<BF16> bf16;
  TypedLoops<F16> f16;
  /// to[c][r] = from[r][c] of `rows` rows of `columns` side by side; `to_stride` from a row of `to`
  /// to the next.
  void (*transpose)(const float* from,
                    std::int64_t rows,
                    std::int64_t columns,
                    float* to,
                    std::int64_t to_stride);
  /// The size of a tile in products of packed factors.
  std::int64_t tile_rows;
  std::int64_t tile_columns;
  double (*sum)(const float* x, std::int64_t n);
  /// Writes the signs of n elements, which become what signs and scale leave out. Unused bits of
  /// the last byte are 0.
  void (*encode_signs)(float* x, float scale, std::uint8_t* signs, std::int64_t n);
  void (*sum_signs)(const SignRows& rows);
  /// Writes the `keep` largest magnitudes of a block of n (top_code.h), which become 0, and their
  /// places. keep ≤ n ≤ TopCode::kBlock.
  void (*take_largest)(
      float* x, std::int64_t n, std::int64_t keep, float* values, std::uint16_t* places);
  /// products_RR (upper triangle) = the products of each two columns of x_NR, summed over rows.
  void (*column_products)(const float* x_NR, std::int64_t n, std::int64_t r, double* products_RR);
  /// x_NR = x_NR · factors_RR, of which the upper triangle counts; r ≤ 64.
  void (*combine_columns)(float* x_NR, std::int64_t n, std::int64_t r, const double* factors_RR);
  /// y = scale · q; exact for powers of two that keep it within bf16's range.
  void (*from_f8e4m3)(const std::uint8_t* q, float scale, BF16* y, std::int64_t n);
  void (*from_f8e5m2)(const std::uint8_t* q, float scale, BF16* y, std::int64_t n);
  OptimizerLoops optimizers;
};

}  // namespace dstrain
