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
#include <span>

#include "kernels/core/columns.h"
#include "kernels/core/device.h"
#include "kernels/core/tensor.h"
#include "kernels/logit_gradient.h"
#include "kernels/op_kinds.h"

namespace dstrain {

// Types that are only declared here are defined in the files named beside them, for code that makes
// one or looks into it: a change of a formula or of an optimizer's step then recompiles few files.
struct AttentionForward;  // attention.h
struct AttentionReach;
struct AttentionBackward;
struct BlockCode;  // math/block_code.h
struct CodedParts;
struct BlockCopy;    // block_copy.h
struct SignParts;    // math/sign_code.h
struct TopCode;      // math/top_code.h
struct Nf4Code;      // math/nf4_code.h
struct Int8Code;     // math/int8_code.h
struct DropoutRows;  // dropout.h
struct NoiseRows;
struct GroupNormForward;  // group_norm.h
struct GroupNormBackward;
struct ExpertChoice;  // routing.h
struct ExpertLoad;
struct ExpertChoiceBackward;
struct ExpertOrder;
struct WeightedRowsBackward;
struct OptimizerTensors;  // optimizers.h
struct ElementwiseStep;
struct LambStep;  // math/optimizer_steps.h
struct OneBitLambStep;
struct MuonStep;

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
  Tensor dx_NC;      ///< may be dy
  Write dx_write;    ///< kAdd: dx already holds the gradient that bypasses the norm
  Tensor dweight_C;  ///< f32
  Tensor dbias_C;    ///< f32, optional
  Write parameter_write;
};

/// A tensor in F8E4M3 or F8E5M2 that stands for q · scale; scale: f32, one element, on the device,
/// at a multiple of 16 bytes.
struct ScaledTensor {
  ConstTensor q;
  ConstTensor scale;
};

/// Turns x_RC (compute dtype) into the nearest q with q · scale ≈ x (f8.h), row by row, transposed,
/// or both; an output that is not wanted is empty. Where a transposed one is wanted, R and C are
/// multiples of 16.
struct Quantization {
  ConstTensor x_RC;
  ConstTensor scale;  ///< f32, one element, a power of two; unused where both q are empty
  Tensor q_RC;
  Tensor q_CR;
  Tensor amax;  ///< f32, one element = max(amax, max |x|), and NaN if x has one
};

/// The entries of the vocabulary that the V rows of a table, or the V columns of logits, stand for:
/// [first, first + V). The tables of Megatron-LM (Shoeybi et al. 2019, §3) are padded to a multiple
/// of the ranks and cut into equal slices; entries from vocab_size on are that padding. No token or
/// target may name them. The whole vocabulary is the slice that begins at 0.
struct VocabSlice {
  std::int64_t first = 0;
  std::int64_t vocab_size = 0;  ///< of the whole, without padding
};

/// The rows that each of E experts has of M, one expert after another. The numbers are in host
/// memory, and stay there until the stream has passed the operation.
using ExpertRows = std::span<const std::int32_t>;

class Ops {
 public:
  Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;
  virtual ~Ops() = default;

#define DSTRAIN_OPERATION = 0
#include "kernels/ops_list.inc"
#undef DSTRAIN_OPERATION
};

}  // namespace dstrain
