// Orthogonalizer: finds the matrix nearest to a given one among those with singular values of about
// 1, by Newton and Schulz's iteration with Jordan et al.'s polynomial (kernels/math/muon.h). Works
// in scratch that is declared beforehand for the largest matrix.
//
// R rows, C columns, K the smaller of them
#pragma once

#include <cstdint>
#include <vector>

#include "engine/plan/blueprint.h"
#include "engine/runtime/site.h"

namespace dstrain {

class Orthogonalizer {
 public:
  /// Declares the buffers, for all hidden matrices of `blueprint`, in `dtype` (f32 or bf16), in
  /// which the products are computed.
  static std::vector<BufferRef> declare(DType dtype, Blueprint& blueprint);

  /// `buffers` as declared.
  explicit Orthogonalizer(std::vector<BufferRef> buffers) : buffers_(std::move(buffers)) {}

  /// Enqueues the work on u_RC, of the dtype declared; the result is [R, C] and lies in scratch
  /// until the next call.
  [[nodiscard]] ConstTensor orthogonalize(const Site& site, ConstTensor u_RC) const;

 private:
  std::vector<BufferRef> buffers_;
};

}  // namespace dstrain
