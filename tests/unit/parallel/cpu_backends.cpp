// The processor alone, as it computes here: what the optimizer runs on where states are the host's.
#include "tests/ops/lab.h"

namespace dstrain::test {

std::vector<BackendUnderTest> backends_under_test() {
  return {{.name = "cpu", .make = [](int threads) { return make_cpu_backend(threads); }}};
}

}  // namespace dstrain::test
