#include "kernels/cuda/attention_choice.h"

#include <stdexcept>
#include <vector>

#include <fmt/format.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/timing.h"

namespace dstrain {
namespace {

/// "attention forward 16×1024×12×64 bf16", with the key/value heads where they are fewer.
std::string describe(const AttentionPass& p) {
  const AttentionShape& s = p.shape;
  const std::string heads = s.query_heads == s.key_value_heads
                                ? fmt::format("{}", s.query_heads)
                                : fmt::format("{}/{}", s.query_heads, s.key_value_heads);
  return fmt::format("attention {} {}×{}×{}×{} {}",
                     p.pass == Pass::kForward ? "forward" : "backward", s.batch, s.sequence, heads,
                     s.head_dim, name_of(p.dtype));
}

/// The name for our kernels in the file.
constexpr const char* kOwnName = "dstrain";
constexpr const char* kCudnnName = "cuDNN";

/// "NVIDIA H100 80GB HBM3, sm_90, 132 multiprocessors, cuDNN 9.19.0".
std::string device_name(int device, const std::string& library) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return fmt::format("{}, sm_{}{}, {} multiprocessors, {}", properties.name, properties.major,
                     properties.minor, properties.multiProcessorCount, library);
}

}  // namespace

void AttentionChoice::run(const AttentionPass& pass,
                          const AttentionPointers& pointers,
                          cudaStream_t stream,
                          const std::function<void()>& own) {
  if (options_.wanted == AttentionKernels::kOwn) {
    own();
    return;
  }
  const std::lock_guard lock(mutex_);
  auto found = chosen_.find(pass);
  if (found == chosen_.end()) {
    found = chosen_.emplace(pass, choose_cudnn(pass, pointers, stream, own)).first;
  }
  if (found->second) {
    cudnn_->run(pass, pointers, stream);
  } else {
    own();
  }
}

bool AttentionChoice::choose_cudnn(const AttentionPass& pass,
                                   const AttentionPointers& pointers,
                                   cudaStream_t stream,
                                   const std::function<void()>& own) {
  if (!is_open()) {
    return false;
  }
  const std::string description = describe(pass);
  if (const std::string& why_not = cudnn_->why_not(pass); !why_not.empty()) {
    tell(fmt::format("{}: dstrain's kernels, as {} has no plan for it: {}", description,
                     cudnn_->name(), why_not));
    return false;
  }
  if (options_.wanted == AttentionKernels::kCudnn) {
    tell(fmt::format("{}: {}'s kernels", description, cudnn_->name()));
    return true;
  }
  const auto measured = [&] { return measure(pass, pointers, stream, own); };
  const ChosenAlgorithm chosen =
      file_ == nullptr ? measured() : file_->choose(description, measured);
  if (chosen.name != kOwnName && chosen.name != kCudnnName) {
    throw std::runtime_error(fmt::format("{}: {} by \"{}\": expected \"{}\" or \"{}\"",
                                         file_->path(), description, chosen.name, kOwnName,
                                         kCudnnName));
  }
  tell(fmt::format("{}: {}'s kernels, {:.0f} µs", description, chosen.name, chosen.microseconds));
  return chosen.name == kCudnnName;
}

/// Times both on these operands: each run rewrites everything that is written.
ChosenAlgorithm AttentionChoice::measure(const AttentionPass& pass,
                                         const AttentionPointers& pointers,
                                         cudaStream_t stream,
                                         const std::function<void()>& own) {
  const std::vector<double> microseconds =
      microseconds_of({own, [&] { cudnn_->run(pass, pointers, stream); }}, stream);
  tell(fmt::format("{}: dstrain's kernels take {:.0f} µs, {}'s {:.0f} µs", describe(pass),
                   microseconds[0], cudnn_->name(), microseconds[1]));
  return microseconds[1] < microseconds[0]
             ? ChosenAlgorithm{.name = kCudnnName, .microseconds = microseconds[1]}
             : ChosenAlgorithm{.name = kOwnName, .microseconds = microseconds[0]};
}

bool AttentionChoice::is_open() {
  if (cudnn_ != nullptr || is_missing_) {
    return cudnn_ != nullptr;
  }
  try {
    cudnn_ = std::make_unique<CudnnAttention>(device_);
    if (options_.wanted == AttentionKernels::kFaster && !options_.file.empty()) {
      file_ = std::make_unique<AlgorithmFile>(options_.file, device_name(device_, cudnn_->name()));
    }
  } catch (const CudaError& error) {
    if (options_.wanted == AttentionKernels::kCudnn) {
      throw;
    }
    is_missing_ = true;
    tell(fmt::format("attention by dstrain's kernels: {}", error.what()));
  }
  return cudnn_ != nullptr;
}

void AttentionChoice::tell(const std::string& sentence) const {
  if (options_.tell) {
    options_.tell(sentence);
  }
}

}  // namespace dstrain
