// The operands of dropout (kernels/math/dropout.h), of rows of the residual stream and of
// attention's probabilities.
//
// Samples are numbered through the run. The number of a micro-batch's first one lies in the
// device's memory, so that a recorded step, whose arguments stay, may run for every micro-batch.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/core/expect.h"
#include "kernels/math/dropout.h"

namespace dstrain {

struct Dropout {
  float probability = 0.0F;  ///< of an element to become 0, in [0, 1); 0: there is no dropout
  std::uint64_t key = 0;     ///< of the place in the model
  /// i32 [2]: the number of the batch's first sample, low word and high word; kNothingDropped for
  /// a batch that keeps all of its elements, as those of an evaluation do.
  ConstTensor first_sample{};

  [[nodiscard]] bool drops() const { return probability > 0.0F; }
};

/// Dropout of rows of [N, C], token after token of one sample after the other: plane 0, positions
/// along, columns across. Where a batch holds a chunk of every sample, its rows have the positions
/// of the chunk, so that they lose what they lose among the whole sample's.
struct DropoutRows {
  Dropout dropout;
  std::int64_t sequence = 1;        ///< T, tokens that the batch has of a sample
  std::int64_t first_row = 0;       ///< of these rows among the batch's B · T
  std::int64_t first_position = 0;  ///< of the batch's first token of each sample
  std::int64_t first_column = 0;    ///< of these columns among the whole tensor's
};

/// Noise for rows of [N, C], drawn as dropout of them is (ops_list.inc). The probability of `place`
/// counts for nothing.
struct NoiseRows {
  DropoutRows place;
  float magnitude = 0.0F;
};

constexpr std::array<std::int32_t, 2> kNothingDropped = {-1, -1};

/// The words in which the device is given a sample's number.
inline std::array<std::int32_t, 2> first_sample_words(std::int64_t sample) {
  return {static_cast<std::int32_t>(static_cast<std::uint32_t>(sample)),
          static_cast<std::int32_t>(sample >> 32)};
}

/// The dropout of a sample, read from memory that the host can read.
inline SampleDropout sample_dropout(const Dropout& dropout, std::int64_t index) {
  return sample_dropout(dropout.key, dropout.probability,
                        static_cast<const std::int32_t*>(dropout.first_sample.data()), index);
}

inline void expect_dropout(const Dropout& dropout) {
  check(dropout.probability >= 0.0F && dropout.probability < 1.0F, "dropout: a probability of {}",
        dropout.probability);
  if (dropout.drops()) {
    expect(dropout.first_sample, "dropout: the first sample", DType::kI32, 2);
  }
}

inline void expect_place(const DropoutRows& rows) {
  check(rows.sequence >= 1 && rows.first_row >= 0 && rows.first_position >= 0 &&
            rows.first_column >= 0,
        "dropout: rows from {} and columns from {} on in sequences of {} from position {} on",
        rows.first_row, rows.first_column, rows.sequence, rows.first_position);
}

/// Checks the operands and returns N and C.
inline Matrix expect_noise(const NoiseRows& rows, const ConstTensor& x_NC) {
  expect_place(rows.place);
  expect(rows.place.dropout.first_sample, "noise: the first sample", DType::kI32, 2);
  expect_compute_dtype(x_NC.dtype(), "noise: x");
  return as_matrix(x_NC);
}

/// Checks the operands and returns N and C.
inline Matrix expect_dropout(const DropoutRows& rows,
                             const ConstTensor& x_NC,
                             const ConstTensor& y_NC) {
  expect_dropout(rows.dropout);
  check(rows.dropout.drops(), "dropout: of nothing");
  expect_place(rows);
  expect_compute_dtype(x_NC.dtype(), "dropout: x");
  expect(y_NC, "dropout: y", x_NC.dtype(), x_NC.numel());
  return as_matrix(x_NC);
}

}  // namespace dstrain
