#include "kernels/cuda/attention_choice.h"

#include <chrono>

#include <fmt/format.h>

#include "kernels/cuda/cuda_check.h"

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

/// Milliseconds of one run, once the first has loaded kernels and taken scratch.
template <typename F>
double time_ms(cudaStream_t stream, F&& run) {
  constexpr int kRuns = 8;
  run();
  cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize before timing attention");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRuns; ++i) {
    run();
  }
  cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize after timing attention");
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
  return passed.count() / kRuns;
}

}  // namespace

void AttentionChoice::run(const AttentionPass& pass,
                          const AttentionPointers& pointers,
                          cudaStream_t stream,
                          const std::function<void()>& own) {
  if (wanted_ == AttentionKernels::kOwn) {
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
  if (wanted_ == AttentionKernels::kCudnn) {
    tell(fmt::format("{}: {}'s kernels", description, cudnn_->name()));
    return true;
  }
  const double cudnn_ms = time_ms(stream, [&] { cudnn_->run(pass, pointers, stream); });
  const double own_ms = time_ms(stream, own);
  const bool is_faster = cudnn_ms < own_ms;
  tell(fmt::format("{}: {} {:.3f} ms, dstrain's kernels {:.3f} ms: {}", description, cudnn_->name(),
                   cudnn_ms, own_ms, is_faster ? "cuDNN's" : "dstrain's"));
  return is_faster;
}

bool AttentionChoice::is_open() {
  if (cudnn_ != nullptr || is_missing_) {
    return cudnn_ != nullptr;
  }
  try {
    cudnn_ = std::make_unique<CudnnAttention>(device_);
  } catch (const CudaError& error) {
    if (wanted_ == AttentionKernels::kCudnn) {
      throw;
    }
    is_missing_ = true;
    tell(fmt::format("attention by dstrain's kernels: {}", error.what()));
  }
  return cudnn_ != nullptr;
}

void AttentionChoice::tell(const std::string& sentence) const {
  if (tell_) {
    tell_(sentence);
  }
}

}  // namespace dstrain
