#include "kernels/cuda/fault_box.h"

#include <utility>

#include <fmt/format.h>

#include "kernels/core/check.h"
#include "kernels/cuda/cuda_check.h"

namespace dstrain {
namespace {

const char* name_of(FaultSource source) {
  switch (source) {
    case FaultSource::kTokens:
      return "embedding: token id";
    case FaultSource::kTokensOfGradient:
      return "embedding gradient: token id";
    case FaultSource::kTargets:
      return "cross-entropy: target";
    case FaultSource::kNone:
      break;
  }
  return "number";
}

/// A memset has only finished when the host continues if that is waited for, and kernels' streams
/// do not wait for the default one.
void clear(int* raised) {
  cuda_check(cudaMemset(raised, 0, sizeof(int)), "cudaMemset of a flag");
  cuda_check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize, or work before it,");
}

}  // namespace

FaultBox::FaultBox() {
  cuda_check(cudaMalloc(reinterpret_cast<void**>(&raised_), sizeof(int)), "cudaMalloc of a flag");
  clear(raised_);
  cuda_check(cudaHostAlloc(reinterpret_cast<void**>(&seen_), sizeof(Fault), cudaHostAllocMapped),
             "cudaHostAlloc of a flag");
  *seen_ = Fault{FaultSource::kNone, 0, 0};
}

FaultBox::~FaultBox() {
  (void)cudaFree(raised_);
  (void)cudaFreeHost(seen_);
}

void FaultBox::fail(std::exception_ptr failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_ == nullptr) {
    failure_ = std::move(failure);
    failed_ = true;
  }
}

std::exception_ptr FaultBox::failure() const {
  if (!failed_) {
    return nullptr;
  }
  const std::lock_guard lock(mutex_);
  return failure_;
}

void FaultBox::rethrow() {
  if (const std::exception_ptr failed = failure(); failed != nullptr) {
    std::rethrow_exception(failed);
  }
  const volatile Fault* const written = seen_;  // by the GPU
  if (written->source == FaultSource::kNone) {
    return;
  }
  const Fault fault{written->source, written->id, written->vocab_size};
  seen_->source = FaultSource::kNone;
  clear(raised_);
  throw InternalError(fmt::format("{} {} is outside the vocabulary [0, {})", name_of(fault.source),
                                  fault.id, fault.vocab_size));
}

}  // namespace dstrain
