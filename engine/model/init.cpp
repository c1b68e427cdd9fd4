#include "engine/model/init.h"

#include <algorithm>
#include <numbers>

#include "engine/base/fnv_hash.h"
#include "kernels/math/philox.h"

namespace dstrain {
void initial_values(const ParamDecl& param,
                    std::uint64_t seed,
                    std::int64_t begin,
                    std::span<float> out,
                    int threads) {
  if (param.init == Init::kOnes || param.init == Init::kZeros) {
    std::fill(out.begin(), out.end(), param.init == Init::kOnes ? 1.0F : 0.0F);
    return;
  }
  // Element k of the box is element whole(k) of the tensor, whatever the box.
  const Shape start = param.box_start();
  const Shape extent = param.box_extent();
  check(param.shape.rank() <= 2, "{} has {} dims; boxes have rows and columns", param.name,
        param.shape.rank());
  const bool matrix = param.shape.rank() == 2;
  const std::int64_t width = matrix ? extent[1] : std::max<std::int64_t>(1, extent.numel());
  const std::int64_t whole_width = matrix ? param.shape[1] : param.shape.numel();
  const std::int64_t first = matrix ? start[0] * whole_width + start[1] : start[0];
  const auto stream = fnv_hash<std::uint64_t>(param.name);  // of its own for every tensor
  const auto count = static_cast<std::int64_t>(out.size());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t k = begin + i;
    const std::int64_t whole = first + k / width * whole_width + k % width;
    const auto at = static_cast<std::uint64_t>(whole);
    const float value =
        param.init == Init::kNormal
            ? normal_at(seed, stream, at)
            : std::numbers::sqrt3_v<float> * (2.0F * uniform_at(seed, stream, at) - 1.0F);
    out[static_cast<std::size_t>(i)] = param.deviation * value;
  }
}

}  // namespace dstrain
