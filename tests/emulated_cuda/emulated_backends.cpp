// The emulated GPU alone: the processor has its own tests.
#include "tests/ops/lab.h"

namespace dstrain::test {

std::vector<BackendUnderTest> backends_under_test() {
  return {{.name = "emulated cuda", .make = [](int /*threads*/) { return make_cuda_backend(0); }}};
}

}  // namespace dstrain::test
