#include "engine/model/init.h"

#include <algorithm>
#include <string_view>

#include "kernels/math/philox.h"

namespace dstrain {
namespace {

/// FNV-1a, 64 bits: gives every tensor name a random stream of its own.
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace

void initial_values(const ParamDecl& param,
                    std::uint64_t seed,
                    std::int64_t begin,
                    std::span<float> out,
                    int threads) {
  if (param.init != Init::kNormal) {
    std::fill(out.begin(), out.end(), param.init == Init::kOnes ? 1.0F : 0.0F);
    return;
  }
  const std::uint64_t stream = stream_of(param.name);
  const auto count = static_cast<std::int64_t>(out.size());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    out[static_cast<std::size_t>(i)] =
        param.deviation * normal_at(seed, stream, static_cast<std::uint64_t>(begin + i));
  }
}

}  // namespace dstrain
