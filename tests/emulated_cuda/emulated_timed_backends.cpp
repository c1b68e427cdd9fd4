// The emulated GPU, on which it pays to compute an activation within its product: so the tests of
// linear layers see those products too.
#include "tests/emulated_cuda/emulated_cublas_lt.h"
#include "tests/emulated_cuda/temporary_file.h"
#include "tests/ops/lab.h"

namespace dstrain::test {

std::vector<BackendUnderTest> backends_under_test() {
  static const TemporaryFile file;
  return {{.name = "emulated cuda, timed", .make = [](int /*threads*/) {
             emulated::cublas_lt() = {};
             return make_cuda_backend(0, {.matmul_algorithms_file = file.path()});
           }}};
}

}  // namespace dstrain::test
