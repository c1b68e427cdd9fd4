// Attention, its gradient, attention over a cache, and RoPE.
//
// N = B · T tokens, H query heads, K key/value heads, D head dim; a row of qkv: q (H·D) ‖ k (K·D) ‖
// v; of a cache: k ‖ v
#include "kernels/cuda/device/attention.h"

#include <type_traits>

#include "kernels/attention_operands.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/elementwise.h"
#include "kernels/cuda/device/flash_attention.h"
#include "kernels/cuda/typed.h"

namespace dstrain {
namespace {

/// Kernels count heads, positions and sequences in 32 bits, and a grid's last two dims in 16.
void expect_launchable(const AttentionShape& shape) {
  constexpr std::int64_t kMostOfAGrid = 65535;
  check(shape.head_dim <= cuda::kWidestHead, "attention: heads of {}, a GPU takes up to {}",
        shape.head_dim, cuda::kWidestHead);
  check(shape.batch <= kMostOfAGrid && shape.query_heads <= kMostOfAGrid &&
            shape.sequence <= INT32_MAX / shape.query_heads,
        "attention: {} sequences of {} with {} heads are too many for one launch", shape.batch,
        shape.sequence, shape.query_heads);
}

template <typename T>
cuda::AttentionInputs<T> inputs_of(const AttentionShape& shape, const T* qkv) {
  const std::int64_t depth = shape.head_dim;
  return {.batch = static_cast<int>(shape.batch),
          .queries = static_cast<int>(shape.sequence),
          .keys = static_cast<int>(shape.sequence),
          .first_position = 0,
          .window = static_cast<int>(shape.sequence),
          .query_heads = static_cast<int>(shape.query_heads),
          .group = static_cast<int>(shape.query_heads / shape.key_value_heads),
          .head_dim = static_cast<int>(depth),
          .scale = attention_scale(depth),
          .q = qkv,
          .k = qkv + shape.query_heads * depth,
          .v = qkv + (shape.query_heads + shape.key_value_heads) * depth,
          .query_stride = qkv_width(shape),
          .key_stride = qkv_width(shape)};
}

}  // namespace

void CudaOps::rope(const AttentionShape& shape,
                   Tensor qkv,
                   ConstTensor cos_TD,
                   ConstTensor sin_TD,
                   Pass pass,
                   Stream& stream) {
  expect_rope(shape, qkv, cos_TD, sin_TD);
  with_dtype(qkv.dtype(), [&]<typename T>() {
    cuda::rope<T>(on(stream), {.qkv = pointer<T>(qkv),
                               .cosine = pointer<float>(cos_TD),
                               .sine = pointer<float>(sin_TD),
                               .rows = shape.batch * shape.sequence,
                               .sequence = shape.sequence,
                               .row_stride = qkv_width(shape),
                               .heads = static_cast<int>(shape.query_heads + shape.key_value_heads),
                               .head_dim = static_cast<int>(shape.head_dim),
                               .direction = pass == Pass::kForward ? 1.0F : -1.0F});
  });
}

void CudaOps::attention_forward(const AttentionShape& shape,
                                ConstTensor qkv,
                                Tensor out,
                                Tensor logsumexp_BHT,
                                Stream& stream) {
  expect_attention_forward(shape, qkv, out, logsumexp_BHT);
  expect_launchable(shape);
  const Launch to = on(stream);
  with_dtype(qkv.dtype(), [&]<typename T>() {
    const cuda::AttentionInputs<T> inputs = inputs_of(shape, pointer<T>(qkv));
    if constexpr (!std::is_same_v<T, float>) {
      if (cuda::flash_takes(inputs, out.data())) {
        attention_.run({.pass = Pass::kForward, .dtype = qkv.dtype(), .shape = shape},
                       {.qkv = qkv.data(), .out = out.data(), .logsumexp = logsumexp_BHT.data()},
                       to.stream, [&] {
                         cuda::flash_forward(to, inputs, pointer<T>(out),
                                             pointer<float>(logsumexp_BHT));
                       });
        return;
      }
    }
    cuda::attention_forward(to, inputs, pointer<T>(out), pointer<float>(logsumexp_BHT));
  });
}

void CudaOps::attention_backward(const AttentionShape& shape,
                                 ConstTensor qkv,
                                 ConstTensor out,
                                 ConstTensor logsumexp_BHT,
                                 ConstTensor dout,
                                 Tensor delta_BHT,
                                 Tensor dqkv,
                                 Stream& stream) {
  expect_attention_backward(shape, qkv, out, logsumexp_BHT, dout, delta_BHT, dqkv);
  expect_launchable(shape);
  const Launch to = on(stream);
  with_dtype(qkv.dtype(), [&]<typename T>() {
    const cuda::AttentionInputs<T> inputs = inputs_of(shape, pointer<T>(qkv));
    T* const dq = pointer<T>(dqkv);
    const cuda::AttentionBackward<T> backward{.inputs = inputs,
                                              .out = pointer<T>(out),
                                              .dout = pointer<T>(dout),
                                              .logsumexp = pointer<float>(logsumexp_BHT),
                                              .delta = pointer<float>(delta_BHT),
                                              .dq = dq,
                                              .dk = dq + (inputs.k - inputs.q),
                                              .dv = dq + (inputs.v - inputs.q)};
    if constexpr (!std::is_same_v<T, float>) {
      if (cuda::flash_takes(inputs, dout.data()) && cuda::flash_takes(inputs, dqkv.data())) {
        attention_.run({.pass = Pass::kBackward, .dtype = qkv.dtype(), .shape = shape},
                       {.qkv = qkv.data(),
                        .out = out.data(),
                        .logsumexp = logsumexp_BHT.data(),
                        .dout = dout.data(),
                        .delta = delta_BHT.data(),
                        .dqkv = dqkv.data()},
                       to.stream, [&] {
                         cuda::attention_delta(to, backward);
                         cuda::flash_backward(to, backward);
                       });
        return;
      }
    }
    cuda::attention_delta(to, backward);
    cuda::attention_backward(to, backward);
  });
}

void CudaOps::attention_cached(const AttentionShape& shape,
                               std::int64_t first_position,
                               std::int64_t window,
                               ConstTensor qkv,
                               Tensor cache,
                               Tensor out,
                               Stream& stream) {
  expect_attention_cached(shape, first_position, window, qkv, cache, out);
  expect_launchable(shape);
  const Launch to = on(stream);
  const std::int64_t query_width = shape.query_heads * shape.head_dim;
  const std::int64_t cached_width = 2 * shape.key_value_heads * shape.head_dim;
  with_dtype(qkv.dtype(), [&]<typename T>() {
    T* const stored = pointer<T>(cache);
    cuda::append_to_cache(to, pointer<T>(qkv) + query_width, query_width + cached_width,
                          stored + first_position * cached_width, shape.sequence, cached_width);
    cuda::AttentionInputs<T> inputs = inputs_of(shape, pointer<T>(qkv));
    inputs.keys = static_cast<int>(first_position + shape.sequence);
    inputs.first_position = static_cast<int>(first_position);
    inputs.window = static_cast<int>(keys_in_window(first_position + shape.sequence, window));
    inputs.k = stored;
    inputs.v = stored + cached_width / 2;
    inputs.key_stride = cached_width;
    cuda::attention_forward(to, inputs, pointer<T>(out), nullptr);
  });
}

}  // namespace dstrain
