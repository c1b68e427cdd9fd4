// Ops: everything this transformer asks of a device, and nothing else.
//
// All operations are enqueued on a stream and allocate nothing that outlives them. Tensors are
// dense and row-major. "compute dtype" is f32, bf16 or f16; all activations and parameters of one
// run share it. Arithmetic inside an operation and every gradient of a parameter is f32. Results do
// not depend on the number of threads unless the comment says so.
//
// N tokens (B sequences × T positions), C width, H query heads, K key/value heads, D head dim,
// F feed-forward width, I / O inputs and outputs of a linear layer, V the vocabulary or a slice of
// it, R ranks that hold the slices
#pragma once

#include <compare>
#include <cstdint>

#include "kernels/core/device.h"
#include "kernels/core/tensor.h"
#include "kernels/math/activation.h"
#include "kernels/math/adagrad.h"
#include "kernels/math/adamw.h"
#include "kernels/math/lamb.h"
#include "kernels/math/lion.h"
#include "kernels/math/muon.h"
#include "kernels/math/sgd.h"
#include "kernels/math/stochastic_rounding.h"

namespace dstrain {

/// Whether an output is overwritten or added to.
enum class Write : std::uint8_t { kOverwrite, kAdd };

/// kLayerNorm: Ba et al. 2016, (x - mean) / sqrt(var + eps) * weight + bias.
/// kRmsNorm: Zhang & Sennrich 2019, x / sqrt(mean(x²) + eps) * weight; has no bias.
enum class NormKind : std::uint8_t { kLayerNorm, kRmsNorm };

enum class Pass : std::uint8_t { kForward, kBackward };

struct AttentionShape {
  std::int64_t batch = 0;            ///< B
  std::int64_t sequence = 0;         ///< T
  std::int64_t query_heads = 0;      ///< H, a multiple of K
  std::int64_t key_value_heads = 0;  ///< K; query head h reads key/value head h / (H / K)
  std::int64_t head_dim = 0;         ///< D

  friend auto operator<=>(const AttentionShape&, const AttentionShape&) = default;
};

struct NormForward {
  NormKind kind;
  float epsilon;
  ConstTensor x_NC;
  ConstTensor delta_NC;  ///< optional: added to x before the norm
  ConstTensor weight_C;
  ConstTensor bias_C;  ///< optional
  Tensor residual_NC;  ///< gets x + delta, just what y is the norm of; unused without; may be x
  Tensor y_NC;
  Tensor stats_N2;  ///< f32: mean (0 for RMSNorm) and 1/deviation of each row
};

struct NormBackward {
  NormKind kind;
  ConstTensor dy_NC;
  ConstTensor x_NC;  ///< what was normalised: NormForward::residual (or x without delta)
  ConstTensor weight_C;
  ConstTensor stats_N2;
  Tensor dx_NC;
  Write dx_write;    ///< kAdd: dx already holds the gradient that bypasses the norm
  Tensor dweight_C;  ///< f32
  Tensor dbias_C;    ///< f32, optional
  Write parameter_write;
};

/// What an optimizer works on: one flat range of each.
struct OptimizerTensors {
  ConstTensor gradient;   ///< f32, bf16 or f16
  Tensor master;          ///< f32 or bf16
  Tensor first_moment;    ///< f32 or bf16; empty where the optimizer has none
  Tensor second_moment;   ///< likewise
  Tensor parameters;      ///< f32, bf16 or f16: copy of the new master; empty: not wanted
  RoundingNoise noise{};  ///< master and moments in bf16 are rounded stochastically
};

/// A tensor in F8E4M3 or F8E5M2 that stands for q · scale; scale: f32, one element, on the device.
struct ScaledTensor {
  ConstTensor q;
  ConstTensor scale;
};

/// x_RC (compute dtype) becomes the nearest q with q · scale ≈ x (f8.h), row by row, transposed, or
/// both; what is not wanted is empty. Where a transposed one is wanted, R and C are multiples
/// of 16.
struct Quantization {
  ConstTensor x_RC;
  ConstTensor scale;  ///< f32, one element, a power of two; unused where both q are empty
  Tensor q_RC;
  Tensor q_CR;
  Tensor amax;  ///< f32, one element = max(amax, max |x|), and NaN if x has one
};

/// Which entries of the vocabulary the V rows of a table, or the V columns of logits, stand for:
/// [first, first + V). The tables of Megatron-LM (Shoeybi et al. 2019, §3) are padded to a multiple
/// of the ranks and cut into equal slices; entries from vocab_size on are that padding. No token or
/// target may name them. The whole vocabulary is the slice that begins at 0.
struct VocabSlice {
  std::int64_t first = 0;
  std::int64_t vocab_size = 0;  ///< of the whole, without padding
};

class Ops {
 public:
  Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;
  virtual ~Ops() = default;

  // ---- linear layers: weight is [outputs, inputs], y = x · weightᵀ + bias --------------------
  /// y_NO (compute dtype or f32) = x_NI · w_OIᵀ + bias_O (optional, compute dtype).
  virtual void linear_forward(
      ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO, Stream& stream) = 0;
  /// dx_NI = dy_NO · w_OI.
  virtual void linear_backward_input(ConstTensor dy_NO,
                                     ConstTensor w_OI,
                                     Tensor dx_NI,
                                     Stream& stream) = 0;
  /// pre_NO = x_NI · w_OIᵀ + bias_O (optional), y_NO = act(pre_NO), all of one compute dtype. y may
  /// be of the pre that was not yet rounded to its dtype.
  virtual void linear_activation_forward(ActivationKind kind,
                                         ConstTensor x_NI,
                                         ConstTensor w_OI,
                                         ConstTensor bias_O,
                                         Tensor pre_NO,
                                         Tensor y_NO,
                                         Stream& stream) = 0;
  /// d_pre_NI = (dy_NO · w_OI) · act'(pre_NI): back through the layer that read act(pre), and
  /// through act. The product may be rounded to its dtype in between, or not.
  virtual void linear_activation_backward(ActivationKind kind,
                                          ConstTensor dy_NO,
                                          ConstTensor w_OI,
                                          ConstTensor pre_NI,
                                          Tensor d_pre_NI,
                                          Stream& stream) = 0;
  /// dw_OI (f32) = or += dy_NOᵀ · x_NI.
  virtual void linear_backward_weight(
      ConstTensor dy_NO, ConstTensor x_NI, Tensor dw_OI, Write write, Stream& stream) = 0;
  /// dbias_O (f32) = or += column sums of dy_NO.
  virtual void linear_backward_bias(ConstTensor dy_NO,
                                    Tensor dbias_O,
                                    Write write,
                                    Stream& stream) = 0;
  /// y_NO += bias_O in every row, both of one compute dtype: what linear_forward could not add
  /// because y was first to be summed over ranks that each hold some of the inputs.
  virtual void add_bias(Tensor y_NO, ConstTensor bias_O, Stream& stream) = 0;

  // ---- products in 8 bits: Micikevicius et al. 2022 -------------------------------------------
  virtual void quantize(const Quantization& quantization, Stream& stream) = 0;
  /// c_MN (bf16 or f32) = or += a_MK · b_NKᵀ + bias_N (optional, bf16 as c is then, with
  /// kOverwrite); accumulated in f32. a and b: F8E4M3 or F8E5M2, at most one of them the latter. M,
  /// N and K are multiples of 16; kAdd only into f32.
  virtual void scaled_product(const ScaledTensor& a_MK,
                              const ScaledTensor& b_NK,
                              ConstTensor bias_N,
                              Tensor c_MN,
                              Write write,
                              Stream& stream) = 0;

  // ---- embedding -----------------------------------------------------------------------------
  /// x_NC = table_VC[token - slice.first] (+ position_PC[n mod T], optional), added in f32 and
  /// rounded once. tokens_N: i32 in [0, vocab_size).
  /// A token of another slice gives a row of zeros, without its position: the rank that holds the
  /// token adds it. So if every rank of a vocabulary is given position_PC, the sum of their x is
  /// what one rank with the whole table computes, exactly (but that -0 + 0 is +0).
  virtual void embedding_forward(ConstTensor tokens_N,
                                 ConstTensor table_VC,
                                 const VocabSlice& slice,
                                 ConstTensor position_PC,
                                 std::int64_t sequence,
                                 Tensor x_NC,
                                 Stream& stream) = 0;
  /// dtable_VC = or += the rows of dx_NC whose tokens are of the slice; with kOverwrite, rows that
  /// no token names become zero. dposition_PC (optional) = or += all rows of dx_NC, whichever
  /// slice their tokens are of. Both f32, added in token order. So every rank that is given the
  /// whole dx_NC has the whole dposition_PC, in the same bits: it is not to be summed over ranks.
  virtual void embedding_backward(ConstTensor tokens_N,
                                  ConstTensor dx_NC,
                                  const VocabSlice& slice,
                                  std::int64_t sequence,
                                  Tensor dtable_VC,
                                  Tensor dposition_PC,
                                  Write table_write,
                                  Write position_write,
                                  Stream& stream) = 0;

  // ---- normalisation, with the residual addition before it ------------------------------------
  virtual void norm_forward(const NormForward& norm, Stream& stream) = 0;
  virtual void norm_backward(const NormBackward& norm, Stream& stream) = 0;
  /// y = a + b, compute dtype; y may be a or b.
  virtual void add(ConstTensor a, ConstTensor b, Tensor y, Stream& stream) = 0;

  // ---- attention -------------------------------------------------------------------------------
  /// Rotates query and key heads of packed rows q‖k‖v in place: pairs (i, i + D/2), Hugging Face's
  /// half-split layout of RoPE (Su et al. 2021). cos_TD, sin_TD: f32 [T, D/2]. kBackward rotates
  /// by the opposite angle, which is the gradient.
  virtual void rope(const AttentionShape& shape,
                    Tensor qkv,
                    ConstTensor cos_TD,
                    ConstTensor sin_TD,
                    Pass pass,
                    Stream& stream) = 0;
  /// Causal softmax(q·kᵀ/sqrt(D))·v. qkv: [N, (H + 2K)·D], rows q‖k‖v, each head-major.
  /// out: [N, H·D]. logsumexp_BHT: f32, kept for backward. Never holds more than a tile of scores.
  virtual void attention_forward(const AttentionShape& shape,
                                 ConstTensor qkv,
                                 Tensor out,
                                 Tensor logsumexp_BHT,
                                 Stream& stream) = 0;
  /// Generation: the positions [first_position, first_position + T) of one sequence (B = 1), those
  /// before them having gone through earlier calls. Keys and values of qkv go into their rows of
  /// the cache; then every query attends to the rows up to its own, to the last `window` of them
  /// if that is not 0.
  /// cache: [P, 2K·D], a position a row k‖v, each head-major, of qkv's dtype. out: [T, H·D].
  virtual void attention_cached(const AttentionShape& shape,
                                std::int64_t first_position,
                                std::int64_t window,
                                ConstTensor qkv,
                                Tensor cache,
                                Tensor out,
                                Stream& stream) = 0;
  /// dqkv (overwritten) from dout; recomputes the scores. delta_BHT: f32 scratch.
  virtual void attention_backward(const AttentionShape& shape,
                                  ConstTensor qkv,
                                  ConstTensor out,
                                  ConstTensor logsumexp_BHT,
                                  ConstTensor dout,
                                  Tensor delta_BHT,
                                  Tensor dqkv,
                                  Stream& stream) = 0;

  // ---- feed-forward activation
  // -------------------------------------------------------------------
  /// y_NF = act(x_NF).
  virtual void activation_forward(ActivationKind kind,
                                  ConstTensor x_NF,
                                  Tensor y_NF,
                                  Stream& stream) = 0;
  /// dx_NF = dy_NF · act'(x_NF); dx may be dy.
  virtual void activation_backward(
      ActivationKind kind, ConstTensor x_NF, ConstTensor dy_NF, Tensor dx_NF, Stream& stream) = 0;
  /// y_NF = act(gate) · up, where a row of gate_up is gate‖up, [N, 2F].
  virtual void gated_activation_forward(ActivationKind kind,
                                        ConstTensor gate_up,
                                        Tensor y_NF,
                                        Stream& stream) = 0;
  /// d_gate_up [N, 2F] from dy_NF; may be gate_up itself.
  virtual void gated_activation_backward(ActivationKind kind,
                                         ConstTensor gate_up,
                                         ConstTensor dy_NF,
                                         Tensor d_gate_up,
                                         Stream& stream) = 0;

  // ---- loss
  // ----------------------------------------------------------------------------------------
  /// losses_N (f32) = -log softmax(logits_NV)[target] over the first vocab_size columns; those
  /// behind are padding and not read. targets_N: i32 in [0, vocab_size).
  virtual void cross_entropy_forward(ConstTensor logits_NV,
                                     ConstTensor targets_N,
                                     std::int64_t vocab_size,
                                     Tensor losses_N,
                                     Stream& stream) = 0;
  /// As above, and overwrites the logits with their gradient, (softmax - onehot) · gradient_scale,
  /// zero for padding.
  virtual void cross_entropy_forward_backward(Tensor logits_NV,
                                              ConstTensor targets_N,
                                              std::int64_t vocab_size,
                                              float gradient_scale,
                                              Tensor losses_N,
                                              Stream& stream) = 0;
  // The same in three steps where each of R ranks has a slice of the columns: partial on every
  // rank, its stats gathered in rank order, combine and gradient on every rank. All targets go to
  // all ranks. One rank with one slice gets the bits of the two operations above.
  //
  /// stats_N3 (f32) of the slice's columns, without padding: the largest logit,
  /// Σ exp(logit - largest), and the target's logit, which is 0 where another slice has the target
  /// (so the sum over ranks is the logit, and keeps infinities and NaN). A slice that is all
  /// padding has -infinity, 0, 0.
  virtual void cross_entropy_partial(ConstTensor logits_NV,
                                     ConstTensor targets_N,
                                     const VocabSlice& slice,
                                     Tensor stats_N3,
                                     Stream& stream) = 0;
  /// logsumexp_N = log Σ exp(logits) and losses_N = logsumexp - the target's logit (both f32), in
  /// rank order: ranks with the same stats_RN3 get the same bits.
  virtual void cross_entropy_combine(ConstTensor stats_RN3,
                                     Tensor logsumexp_N,
                                     Tensor losses_N,
                                     Stream& stream) = 0;
  /// The logits become their gradient, (exp(logit - logsumexp) - onehot) · gradient_scale, zero
  /// for padding.
  virtual void cross_entropy_gradient(Tensor logits_NV,
                                      ConstTensor targets_N,
                                      const VocabSlice& slice,
                                      ConstTensor logsumexp_N,
                                      float gradient_scale,
                                      Stream& stream) = 0;

  // ---- sums, plumbing
  // -------------------------------------------------------------------
  /// total (f64, one element) = or += the sum of an f32 tensor, in a fixed order.
  virtual void sum(ConstTensor values, Tensor total, Write write, Stream& stream) = 0;
  /// total (f64, one element) = or += the sum of squares of a tensor, in a fixed order.
  virtual void sum_of_squares(ConstTensor values, Tensor total, Write write, Stream& stream) = 0;
  /// sums_4 (i32; in memory a BitSums, kernels/math/bit_sums.h) = the checksum of the bits that the
  /// tensor has, f32, bf16 or f16; or of those that cast() to `as` would make of one in f32.
  virtual void bit_sums(ConstTensor values, DType as, Tensor sums_4, Stream& stream) = 0;
  /// Converts between f32, bf16 and f16, rounding to nearest even; or copies. What f16 cannot hold
  /// becomes infinity.
  virtual void cast(ConstTensor in, Tensor out, Stream& stream) = 0;
  /// y = or += scale · x, computed in f32; x and y: f32, bf16 or f16, each its own. y may be x
  /// where the dtypes are the same.
  virtual void add_scaled(ConstTensor x, float scale, Tensor y, Write write, Stream& stream) = 0;
  /// Sets every byte to zero.
  virtual void zero(Tensor tensor, Stream& stream) = 0;

  // ---- optimizers: one pass over a flat range, formulas in kernels/math -------------------------
  /// Both moments. Adam too (AdamwStep::gradient_decay).
  virtual void adamw(const AdamwStep& step, const OptimizerTensors& tensors, Stream& stream) = 0;
  /// The first moment is the buffer; none without momentum.
  virtual void sgd(const SgdStep& step, const OptimizerTensors& tensors, Stream& stream) = 0;
  /// The second moment is the sum of squares.
  virtual void adagrad(const AdagradStep& step,
                       const OptimizerTensors& tensors,
                       Stream& stream) = 0;
  /// The first moment alone.
  virtual void lion(const LionStep& step, const OptimizerTensors& tensors, Stream& stream) = 0;
  /// LAMB's first pass over a tensor or a part of it: the moments, and squares_2 (f64) = the sums
  /// of squares of the old parameters and of the direction, in a fixed order. f32 state only.
  virtual void lamb_moments(const LambStep& step,
                            const OptimizerTensors& tensors,
                            Tensor squares_2,
                            Stream& stream) = 0;
  /// The second pass: master and parameters, with squares_2 of the whole tensor.
  virtual void lamb_apply(const LambStep& step,
                          const OptimizerTensors& tensors,
                          ConstTensor squares_2,
                          Stream& stream) = 0;
  /// Muon: the momentum buffer (f32) in place, and the update to be orthogonalised (any dtype).
  virtual void muon_momentum(
      const MuonStep& step, ConstTensor gradient, Tensor buffer, Tensor update, Stream& stream) = 0;
  /// y = x / (sqrt(sum_of_squares) + epsilon); the sum f64, one element; x and y f32, bf16 or f16.
  virtual void divide_by_norm(
      ConstTensor x, ConstTensor sum_of_squares, float epsilon, Tensor y, Stream& stream) = 0;
};

}  // namespace dstrain
