// Embedding tables: rows gathered, and gradients of rows added. Tokens are checked on the GPU: one
// outside the vocabulary leaves the outputs untouched, and the next wait throws (fault_box.h).
//
// N tokens, T sequence, C width, V vocabulary or a slice of it, P positions
#include "kernels/cuda/device/embedding.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/typed.h"
#include "kernels/embedding_operands.h"

namespace dstrain {
void CudaOps::embedding_forward(ConstTensor tokens_N,
                                ConstTensor table_VC,
                                const VocabSlice& slice,
                                ConstTensor position_PC,
                                ConstTensor positions_N,
                                std::int64_t sequence,
                                Tensor x_NC,
                                Stream& stream) {
  const auto [tokens, width, table_rows] =
      expect_embedding(tokens_N, x_NC, table_VC, position_PC, positions_N, sequence, x_NC.dtype());
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
                                               .position_ids = pointer<std::int32_t>(positions_N),
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
  const auto [tokens, width, table_rows] =
      expect_embedding(tokens_N, dx_NC, dtable_VC, dposition_PC, {}, sequence, DType::kF32);
  const bool has_positions = !dposition_PC.empty();
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
