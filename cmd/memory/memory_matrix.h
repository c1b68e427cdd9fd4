// MemoryMatrix: what the rank that holds most takes in each ZeRO stage with each recomputation, one
// row each: DeepSpeed's table, with activations and everything else.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/train/memory_estimate.h"

namespace dstrain {

struct MatrixRow {
  int zero_stage = 0;
  RecomputeGranularity recompute = RecomputeGranularity::kNone;
  bool as_configured = false;
  std::string refused;  ///< why there is no such run; then the rest is empty
  int rank = 0;         ///< that holds most, libraries included
  ComponentBytes bytes;
  std::int64_t overhead_bytes = 0;
  [[nodiscard]] std::int64_t total_bytes() const { return bytes.total() + overhead_bytes; }
};

std::vector<MatrixRow> memory_matrix(const ConfigWith& config_with,
                                     int world_size,
                                     const EstimatedDevice& device);

/// Sizes are in the unit that fits; with a limit, a column says whether the run fits.
std::string matrix_text(const std::vector<MatrixRow>& rows,
                        const std::optional<MemoryLimit>& limit);
/// Sizes are in bytes. CSV has a header line.
std::string matrix_json(const std::vector<MatrixRow>& rows,
                        const std::optional<MemoryLimit>& limit);
std::string matrix_csv(const std::vector<MatrixRow>& rows, const std::optional<MemoryLimit>& limit);

}  // namespace dstrain
