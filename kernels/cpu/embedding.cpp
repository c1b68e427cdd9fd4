// Embedding tables: rows gathered, and gradients of rows added.
//
// N tokens, T sequence, C width, V vocabulary or a slice of it, P positions
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/embedding_operands.h"

namespace dstrain {
namespace {

/// Finds the worst token, so that the error names it; tokens come from files.
void check_tokens(const ConstTensor& tokens_N, std::int64_t vocab_size, const char* what) {
  const auto tokens = tokens_N.as<std::int32_t>();
  const auto [lowest, highest] = std::minmax_element(tokens.begin(), tokens.end());
  check(tokens.empty() || (*lowest >= 0 && *highest < vocab_size),
        "{}: token ids from {} to {} are outside the vocabulary [0, {})", what, *lowest, *highest,
        vocab_size);
}

/// The rows of a table, and the entries of the vocabulary that they stand for.
struct TableRows {
  std::int64_t first;
  std::int64_t count;
  [[nodiscard]] bool has(std::int64_t token) const {
    return first <= token && token < first + count;
  }
};

}  // namespace

void CpuOps::embedding_forward(ConstTensor tokens_N,
                               ConstTensor table_VC,
                               const VocabSlice& slice,
                               ConstTensor position_PC,
                               ConstTensor positions_N,
                               std::int64_t sequence,
                               Tensor x_NC,
                               Stream& stream) {
  const auto [tokens, width, table_rows] =
      expect_embedding(tokens_N, x_NC, table_VC, position_PC, positions_N, sequence, x_NC.dtype());
  const TableRows held{slice.first, table_rows};
  stream.run([=, this, tokens = tokens, width = width, vocab_size = slice.vocab_size] {
    note_moved(x_NC, x_NC);
    check_tokens(tokens_N, vocab_size, "embedding");
    const auto* const ids = pointer<std::int32_t>(tokens_N);
    const auto* const positions = pointer<std::int32_t>(positions_N);
    constexpr std::int64_t kRows = 32;
    with_loops(loops_, x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const T* const table = pointer<T>(table_VC);
      const T* const position = pointer<T>(position_PC);
      T* const x = pointer<T>(x_NC);
      parallel_pieces(threads_, tokens, kRows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = begin; n < end; ++n) {
          T* const out = x + n * width;
          if (!held.has(ids[n])) {
            std::fill_n(out, width, T{});
            continue;
          }
          const T* const row = table + (ids[n] - held.first) * width;
          if (position == nullptr) {
            std::copy_n(row, width, out);
          } else {
            const std::int64_t at = positions == nullptr ? n % sequence : positions[n];
            loops.add(row, position + at * width, out, width);
          }
        }
      });
    });
  });
}

// One task per slice of columns, which goes through all tokens in order: no two tasks touch the
// same element, whatever the tokens are, and a frequent token is not a bottleneck.
void CpuOps::embedding_backward(ConstTensor tokens_N,
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
  const TableRows held{slice.first, table_rows};
  stream.run([=, this, tokens = tokens, width = width, vocab_size = slice.vocab_size] {
    note_moved(dx_NC, dx_NC, dx_NC);  // as much of the table
    check_tokens(tokens_N, vocab_size, "embedding gradient");
    if (table_write == Write::kOverwrite) {
      note_moved(dtable_VC);
      zero_bytes(dtable_VC.data(), dtable_VC.bytes());
    }
    if (!dposition_PC.empty() && position_write == Write::kOverwrite) {
      zero_bytes(dposition_PC.data(), dposition_PC.bytes());
    }
    const auto* const ids = pointer<std::int32_t>(tokens_N);
    float* const table = pointer<float>(dtable_VC);
    float* const position = pointer<float>(dposition_PC);
    constexpr std::int64_t kColumns = 64;
    with_loops(loops_, dx_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      const T* const dx = pointer<T>(dx_NC);
      parallel_pieces(threads_, width, kColumns, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = 0; n < tokens; ++n) {
          const T* const columns = dx + n * width + begin;
          if (held.has(ids[n])) {
            const std::int64_t row = ids[n] - held.first;
            loops.accumulate(columns, table + row * width + begin, end - begin);
          }
          if (position != nullptr) {
            loops.accumulate(columns, position + (n % sequence) * width + begin, end - begin);
          }
        }
      });
    });
  });
}

}  // namespace dstrain
