// Matrix products of the CUDA backend on the emulated GPU: the options that choose how they are
// computed. That they are right is op_conformance_emulated_cuda_test's subject.
//
// N tokens, I inputs, O outputs
#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// y of one token, one output and two inputs.
double product(const CudaOptions& options, DType dtype, const Values& x, const Values& w) {
  Lab lab(make_cuda_backend(0, options));
  const Tensor y_NO = lab.unset(DType::kF32, {1, 1});
  lab.ops().linear_forward(lab.put(x, dtype, {1, 2}), lab.put(w, dtype, {1, 2}), {}, y_NO,
                           lab.stream());
  return lab.get(y_NO).front();
}

}  // namespace

TEST_CASE("f32 is multiplied in full unless TF32 is asked for", "[cuda][matmul]") {
  // TF32 keeps 10 bits behind the point: 2⁻¹⁰ stays, 2⁻¹² goes.
  const Values x{1.0 + 0x1p-12, 1.0 + 0x1p-10};
  const Values w{1.0, 2.0};
  CHECK(product({}, DType::kF32, x, w) == 3.0 + 0x1p-12 + 0x1p-9);
  CHECK(product({.tf32 = true}, DType::kF32, x, w) == 3.0 + 0x1p-9);
  // f16 has 10 bits too, so nothing of it could be lost; its sums are f32's either way.
  const Values halves{1.0 + 0x1p-10, 0x1p-11};
  CHECK(product({.tf32 = true}, DType::kF16, halves, {1.0, 1.0}) == 1.0 + 0x1p-10 + 0x1p-11);
}

}  // namespace dstrain::test
