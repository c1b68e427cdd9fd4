// Embedding tables: rows gathered, and gradients of rows added. Tokens are looked at on the GPU:
// one outside the vocabulary leaves the outputs untouched, and the next wait throws (fault_box.h).
//
// N tokens, T sequence, C width, V vocabulary or a slice of it, P positions
#include "kernels/cuda/device/embedding.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/typed.h"

namespace dstrain {
namespace {

void expect_positions(const ConstTensor& position_PC, std::int64_t sequence, std::int64_t width) {
  const auto [positions, position_width] = as_matrix(position_PC);
  check(position_width == width && sequence >= 1 && sequence <= positions,
        "position table of shape {} for sequences of {} × {}", position_PC.shape().to_string(),
        sequence, width);
}

}  // namespace

void CudaOps::embedding_forward(ConstTensor tokens_N,
                                ConstTensor table_VC,
                                const VocabSlice& slice,
                                ConstTensor position_PC,
                                std::int64_t sequence,
                                Tensor x_NC,
                                Stream& stream) {
  const auto [tokens, width] = as_matrix(x_NC);
  const auto [table_rows, table_width] = as_matrix(table_VC);
  expect(tokens_N, "tokens", DType::kI32, tokens);
  expect(table_VC, "token table", x_NC.dtype(), table_rows * width);
  check(table_width == width, "token table of width {} for x of width {}", table_width, width);
  if (!position_PC.empty()) {
    expect(position_PC, "position table", x_NC.dtype(), position_PC.numel());
    expect_positions(position_PC, sequence, width);
  }
  const Launch to = on(stream);
  const auto* const ids = pointer<std::int32_t>(tokens_N);
  cuda::check_ids(to, FaultSource::kTokens, ids, tokens, slice.vocab_size);
  with_dtype(x_NC.dtype(),
             [&, tokens = tokens, width = width, table_rows = table_rows]<typename T>() {
               cuda::embedding_forward<T>(to, {.ids = ids,
                                               .tokens = tokens,
                                               .width = width,
                                               .table = pointer<T>(table_VC),
                                               .first = slice.first,
                                               .table_rows = table_rows,
                                               .positions = pointer<T>(position_PC),
                                               .sequence = sequence,
                                               .x = pointer<T>(x_NC)});
             });
}

void CudaOps::embedding_backward(ConstTensor tokens_N,
                                 ConstTensor dx_NC,
                                 const VocabSlice& slice,
                                 std::int64_t sequence,
                                 Tensor dtable_VC,
                                 Tensor dposition_PC,
                                 Write table_write,
                                 Write position_write,
                                 Stream& stream) {
  const auto [tokens, width] = as_matrix(dx_NC);
  const auto [table_rows, table_width] = as_matrix(dtable_VC);
  expect(tokens_N, "tokens", DType::kI32, tokens);
  expect(dtable_VC, "gradient of the token table", DType::kF32, table_rows * width);
  check(table_width == width, "token table of width {} for dx of width {}", table_width, width);
  const bool has_positions = !dposition_PC.empty();
  if (has_positions) {
    expect(dposition_PC, "gradient of the position table", DType::kF32, dposition_PC.numel());
    expect_positions(dposition_PC, sequence, width);
  }
  const Launch to = on(stream);
  const auto* const ids = pointer<std::int32_t>(tokens_N);
  cuda::check_ids(to, FaultSource::kTokensOfGradient, ids, tokens, slice.vocab_size);
  if (table_write == Write::kOverwrite) {
    cuda::zero_unless_fault(to, pointer<float>(dtable_VC), dtable_VC.numel());
  }
  if (has_positions && position_write == Write::kOverwrite) {
    cuda::zero_unless_fault(to, pointer<float>(dposition_PC), dposition_PC.numel());
  }
  const Scratch keys(
      cuda::embedding_keys(tokens) * static_cast<std::int64_t>(sizeof(std::uint64_t)), to.stream);
  with_dtype(dx_NC.dtype(),
             [&, tokens = tokens, width = width, table_rows = table_rows]<typename T>() {
               cuda::embedding_backward<T>(
                   to,
                   {.ids = ids,
                    .tokens = tokens,
                    .width = width,
                    .dx = pointer<T>(dx_NC),
                    .first = slice.first,
                    .table_rows = table_rows,
                    .sequence = sequence,
                    .dtable = pointer<float>(dtable_VC),
                    .dpositions = has_positions ? pointer<float>(dposition_PC) : nullptr},
                   keys.as<std::uint64_t>());
             });
}

}  // namespace dstrain
