// Attention, its gradient, its sinks, attention over a cache, and RoPE.
//
// N = B · T tokens, H query heads, K key/value heads, D head dim; a row of qkv: q (H·D) ‖ k (K·D) ‖
// v; of a cache: k ‖ v
#include "kernels/cuda/device/attention.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "kernels/attention_operands.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/attention_sinks.h"
#include "kernels/cuda/device/elementwise.h"
#include "kernels/cuda/device/flash_attention.h"
#include "kernels/cuda/scratch.h"
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
cuda::AttentionInputs<T> inputs_of(const AttentionOperands& in) {
  const AttentionShape& shape = in.shape;
  const std::int64_t keys = keys_of(in);
  const std::int64_t most = INT32_MAX - std::max(keys, shape.sequence);
  check(keys <= INT32_MAX && std::abs(first_position_of(in)) <= most &&
            std::abs(in.reach.first_query) <= most && std::abs(in.reach.first_key) <= most,
        "attention: {} keys from position {} on, queries from {} on are too many for one launch",
        keys, in.reach.first_key, in.reach.first_query);
  const std::int64_t window = in.reach.window;
  return {.batch = static_cast<int>(shape.batch),
          .queries = static_cast<int>(shape.sequence),
          .keys = static_cast<int>(keys),
          .first_position = static_cast<int>(first_position_of(in)),
          .window = window == 0 || window > INT32_MAX ? INT32_MAX : static_cast<int>(window),
          .query_heads = static_cast<int>(shape.query_heads),
          .group = static_cast<int>(shape.query_heads / shape.key_value_heads),
          .head_dim = static_cast<int>(shape.head_dim),
          .scale = score_scale(in.reach, shape.head_dim),
          .cap = in.reach.cap,
          .slopes = pointer<float>(in.reach.slopes_H),
          .document_positions = pointer<std::int32_t>(in.reach.document_positions),
          .dropout = {.key = in.dropout.key,
                      .probability = in.dropout.probability,
                      .first_sample = pointer<std::int32_t>(in.dropout.first_sample)},
          .first_head = static_cast<int>(in.dropout.first_head),
          .first_query = static_cast<int>(in.reach.first_query),
          .first_key = static_cast<int>(in.reach.first_key),
          .q = in.q.template begin<T>(),
          .k = in.k.template begin<T>(),
          .v = in.v.template begin<T>(),
          .query_stride = in.q.stride(),
          .key_stride = in.k.stride(),
          .value_stride = in.v.stride()};
}

/// Whether cuda::flash_takes holds for everything that a backward reads and writes.
template <typename T>
bool flash_takes(const cuda::AttentionBackward<T>& back) {
  const cuda::AttentionInputs<T>& in = back.inputs;
  return cuda::flash_takes(in, back.dout) && cuda::flash_takes(in, back.dq) &&
         cuda::flash_takes(in, back.dk) && cuda::flash_takes(in, back.dv) &&
         back.dq_stride % 2 == 0 && back.dk_stride % 2 == 0 && back.dv_stride % 2 == 0;
}

template <typename S>
cuda::AttentionSinks<S> sinks_of(const AttentionShape& shape, const ConstTensor& sinks_H) {
  return {.tokens = shape.batch * shape.sequence,
          .sequence = shape.sequence,
          .heads = static_cast<int>(shape.query_heads),
          .head_dim = static_cast<int>(shape.head_dim),
          .sinks = pointer<S>(sinks_H)};
}

/// f with the types of sinks and of out, which is f32 or the same.
template <typename F>
void with_sink_dtypes(const ConstTensor& sinks_H, const ConstTensor& out, F&& f) {
  with_dtype(sinks_H.dtype(), [&]<typename S>() {
    if (out.dtype() == DType::kF32) {
      f.template operator()<S, float>();
    } else {
      f.template operator()<S, S>();
    }
  });
}

bool is_packed(const AttentionOperands& in) {
  return is_packed(in.shape, in.q, in.k, in.v);
}

}  // namespace

void CudaOps::rope(const AttentionShape& shape,
                   Tensor qkv,
                   ConstTensor cos_PR,
                   ConstTensor sin_PR,
                   ConstTensor positions_N,
                   Pass pass,
                   Stream& stream) {
  expect_rope(shape, qkv, cos_PR, sin_PR, positions_N);
  with_dtype(qkv.dtype(), [&]<typename T>() {
    cuda::rope<T>(on(stream), {.qkv = pointer<T>(qkv),
                               .cosine = pointer<float>(cos_PR),
                               .sine = pointer<float>(sin_PR),
                               .rows = shape.batch * shape.sequence,
                               .sequence = shape.sequence,
                               .positions = pointer<std::int32_t>(positions_N),
                               .row_stride = qkv_width(shape),
                               .heads = static_cast<int>(shape.query_heads + shape.key_value_heads),
                               .head_dim = static_cast<int>(shape.head_dim),
                               .pairs = static_cast<int>(rotated_pairs(cos_PR)),
                               .direction = pass == Pass::kForward ? 1.0F : -1.0F});
  });
}

void CudaOps::attention_forward(const AttentionForward& attention, Stream& stream) {
  const auto& [in, out, logsumexp_BHT] = attention;
  expect_attention(in, out, logsumexp_BHT);
  expect_launchable(in.shape);
  const Launch to = on(stream);
  with_dtype(in.q.dtype(), [&, &in = in, &out = out, &logsumexp_BHT = logsumexp_BHT]<typename T>() {
    const cuda::AttentionInputs<T> inputs = inputs_of<T>(in);
    if constexpr (!std::is_same_v<T, float>) {
      if (cuda::flash_takes(inputs, out.data())) {
        const auto own = [&] {
          cuda::flash_forward(to, inputs, pointer<T>(out), pointer<float>(logsumexp_BHT));
        };
        if (!is_packed(in) || !is_plain(in)) {
          own();
          return;
        }
        attention_.run(
            {.pass = Pass::kForward, .dtype = in.q.dtype(), .shape = in.shape},
            {.qkv = in.q.matrix().data(), .out = out.data(), .logsumexp = logsumexp_BHT.data()},
            to.stream, own);
        return;
      }
    }
    cuda::attention_forward(to, inputs, pointer<T>(out), pointer<float>(logsumexp_BHT));
  });
}

void CudaOps::attention_backward(const AttentionBackward& back, Stream& stream) {
  expect_attention_backward(back);
  const AttentionOperands& in = back.in;
  expect_launchable(in.shape);
  const Launch to = on(stream);
  with_dtype(in.q.dtype(), [&]<typename T>() {
    const cuda::AttentionInputs<T> inputs = inputs_of<T>(in);
    const cuda::AttentionBackward<T> backward{.inputs = inputs,
                                              .out = pointer<T>(back.out),
                                              .dout = pointer<T>(back.dout),
                                              .logsumexp = pointer<float>(back.logsumexp_BHT),
                                              .delta = pointer<float>(back.delta_BHT),
                                              .dq = back.dq.template begin<T>(),
                                              .dk = back.dk.template begin<T>(),
                                              .dv = back.dv.template begin<T>(),
                                              .dq_stride = back.dq.stride(),
                                              .dk_stride = back.dk.stride(),
                                              .dv_stride = back.dv.stride()};
    const auto own = [&] {
      cuda::attention_delta(to, backward);
      if constexpr (!std::is_same_v<T, float>) {
        if (flash_takes(backward)) {
          cuda::flash_backward(to, backward);
          return;
        }
      }
      cuda::attention_backward(to, backward);
    };
    if constexpr (!std::is_same_v<T, float>) {
      if (flash_takes(backward) && is_packed(in) && is_plain(in) &&
          is_packed(in.shape, back.dq, back.dk, back.dv)) {
        attention_.run({.pass = Pass::kBackward, .dtype = in.q.dtype(), .shape = in.shape},
                       {.qkv = in.q.matrix().data(),
                        .out = back.out.data(),
                        .logsumexp = back.logsumexp_BHT.data(),
                        .dout = back.dout.data(),
                        .delta = back.delta_BHT.data(),
                        .dqkv = back.dq.matrix().data()},
                       to.stream, own);
        return;
      }
    }
    own();
  });
}

void CudaOps::merge_attention(const AttentionShape& shape,
                              ConstTensor other_out,
                              ConstTensor other_logsumexp_BHT,
                              Tensor out,
                              Tensor logsumexp_BHT,
                              Stream& stream) {
  expect_merge(shape, other_out, other_logsumexp_BHT, out, logsumexp_BHT);
  expect_launchable(shape);
  with_dtype(out.dtype(), [&]<typename T>() {
    cuda::merge_attention(on(stream), static_cast<int>(shape.batch),
                          static_cast<int>(shape.sequence), static_cast<int>(shape.query_heads),
                          static_cast<int>(shape.head_dim), pointer<T>(other_out),
                          pointer<float>(other_logsumexp_BHT), pointer<T>(out),
                          pointer<float>(logsumexp_BHT));
  });
}

void CudaOps::add_sinks(const AttentionShape& shape,
                        ConstTensor sinks_H,
                        Tensor out,
                        Tensor logsumexp_BHT,
                        Stream& stream) {
  expect_sinks(shape, sinks_H, out, logsumexp_BHT);
  expect_launchable(shape);
  const Launch to = on(stream);
  with_sink_dtypes(sinks_H, out, [&]<typename S, typename T>() {
    cuda::add_sinks<S, T>(to, sinks_of<S>(shape, sinks_H), pointer<T>(out),
                          pointer<float>(logsumexp_BHT));
  });
}

void CudaOps::sinks_backward(const AttentionShape& shape,
                             ConstTensor sinks_H,
                             ConstTensor out,
                             ConstTensor logsumexp_BHT,
                             ConstTensor dout,
                             Tensor d_sinks_H,
                             Write write,
                             Stream& stream) {
  expect_sinks_backward(shape, sinks_H, out, logsumexp_BHT, dout, d_sinks_H);
  expect_launchable(shape);
  const Launch to = on(stream);
  const std::int64_t parts = cuda::sink_parts(shape.batch * shape.sequence) * shape.query_heads;
  const Scratch sums(parts * size_of(DType::kF32), to.stream);
  with_sink_dtypes(sinks_H, out, [&]<typename S, typename T>() {
    cuda::sinks_backward<S, T>(to, sinks_of<S>(shape, sinks_H), pointer<T>(out), pointer<T>(dout),
                               pointer<float>(logsumexp_BHT), sums.as<float>(),
                               pointer<float>(d_sinks_H), write == Write::kAdd);
  });
}

void CudaOps::attention_cached(const AttentionShape& shape,
                               std::int64_t first_position,
                               const AttentionReach& reach,
                               ConstTensor qkv,
                               Tensor cache,
                               Tensor out,
                               Tensor logsumexp_HT,
                               Stream& stream) {
  expect_attention_cached(shape, first_position, reach, qkv, cache, out, logsumexp_HT);
  expect_launchable(shape);
  const Launch to = on(stream);
  const std::int64_t query_width = shape.query_heads * shape.head_dim;
  const std::int64_t cached_width = 2 * shape.key_value_heads * shape.head_dim;
  with_dtype(qkv.dtype(), [&]<typename T>() {
    T* const stored = pointer<T>(cache);
    cuda::append_to_cache(to, pointer<T>(qkv) + query_width, query_width + cached_width,
                          stored + first_position * cached_width, shape.sequence, cached_width);
    const std::int64_t seen = first_position + shape.sequence;
    const ConstTensor rows = ConstTensor(cache).rows(0, seen);
    const cuda::AttentionInputs<T> inputs =
        inputs_of<T>({.shape = shape,
                      .reach = {.first_query = first_position,
                                .window = reach.window,
                                .scale = reach.scale,
                                .cap = reach.cap,
                                .slopes_H = reach.slopes_H},
                      .q = {qkv, 0, query_width},
                      .k = {rows, 0, cached_width / 2},
                      .v = {rows, cached_width / 2, cached_width / 2}});
    cuda::attention_forward(to, inputs, pointer<T>(out), pointer<float>(logsumexp_HT));
  });
}

}  // namespace dstrain
