#include "kernels/cpu/cpu_backend.h"

#include "engine/base/usable_cores.h"
#include "kernels/core/check.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"

namespace dstrain {

Backend make_cpu_backend(int threads) {
  return make_cpu_backend(threads, supported_isas().back());
}

Backend make_cpu_backend(int threads, CpuIsa isa) {
  check(threads >= 0, "a CPU backend with {} threads", threads);
  const int team = threads == 0 ? num_usable_cores() : threads;
  return {.device = std::make_unique<CpuDevice>(team, isa),
          .ops = std::make_unique<CpuOps>(team, isa)};
}

}  // namespace dstrain
