// The kernels that compute attention of training in bf16 and f16 on a GPU.
#pragma once

#include <cstdint>

namespace dstrain {

enum class AttentionKernels : std::uint8_t {
  kOwn,    ///< dstrain's
  kCudnn,  ///< cuDNN's, where it has some that give the same result in every run
  kFaster  ///< per shape whichever a measurement finds to be faster, kept as algorithms of products
};

/// The bytes beside the plan that a pass through cuDNN may take. A pass that needs more is left to
/// dstrain's kernels: cuDNN's backward keeps dS, of about 6 · B · H · T² bytes.
constexpr std::int64_t kMostCudnnWorkspace = std::int64_t{1} << 30;

}  // namespace dstrain
