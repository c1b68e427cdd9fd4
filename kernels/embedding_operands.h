// The checks of an embedding's operands that all devices share. Shapes: kernels/ops.h.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/ops.h"

namespace dstrain {

struct EmbeddingSizes {
  std::int64_t tokens;
  std::int64_t width;
  std::int64_t table_rows;
};

/// Tables have the dtype of x forward, f32 backward, where they are the gradients; position_PC may
/// be empty.
inline EmbeddingSizes expect_embedding(const ConstTensor& tokens_N,
                                       const ConstTensor& x_NC,
                                       const ConstTensor& table_VC,
                                       const ConstTensor& position_PC,
                                       const ConstTensor& positions_N,
                                       std::int64_t sequence,
                                       DType of_tables) {
  const auto [tokens, width] = as_matrix(x_NC);
  const auto [table_rows, table_width] = as_matrix(table_VC);
  expect(tokens_N, "tokens", DType::kI32, tokens);
  expect(table_VC, "token table", of_tables, table_rows * width);
  check(table_width == width, "token table of width {} for rows of width {}", table_width, width);
  if (!positions_N.empty()) {
    expect(positions_N, "positions", DType::kI32, tokens);
  }
  if (!position_PC.empty()) {
    const auto [positions, position_width] = as_matrix(position_PC);
    expect(position_PC, "position table", of_tables, positions * position_width);
    check(position_width == width && sequence >= 1 && sequence <= positions,
          "position table of shape {} for sequences of {} × {}", position_PC.shape().to_string(),
          sequence, width);
  }
  return {.tokens = tokens, .width = width, .table_rows = table_rows};
}

}  // namespace dstrain
