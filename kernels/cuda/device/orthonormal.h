// Orthonormal columns (kernels/math/orthonormal.h).
//
// N rows, R columns, B row_blocks(N)
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/math/orthonormal.h"

namespace dstrain::cuda {

/// Blocks of rows whose products of columns are added up apart.
std::int64_t row_blocks(std::int64_t rows);

/// One round. products_BRR and factors_RR are scratch, and scales_R goes from one round to the
/// next; columns ≤ kMostOrthonormalColumns, and neither rows nor columns are 0.
void orthonormalize(const Launch& to,
                    OrthonormalRound round,
                    std::int64_t rows,
                    std::int64_t columns,
                    double epsilon,
                    float* p_NR,
                    double* products_BRR,
                    double* factors_RR,
                    double* scales_R);

}  // namespace dstrain::cuda
