// Whose kernels compute attention, dstrain's or cuDNN's: per pass and shape, decided once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/cudnn_attention.h"

namespace dstrain {

class AttentionChoice {
 public:
  /// For the device of CUDA's number. `tell` is given a sentence per decision; may be empty.
  AttentionChoice(int device, AttentionKernels wanted, std::function<void(const std::string&)> tell)
      : device_(device), wanted_(wanted), tell_(std::move(tell)) {}

  /// Enqueues cuDNN's kernels, or calls `own`, which enqueues ours. With kFaster the first call for
  /// a shape runs both several times on these operands, waiting for the stream: everything written
  /// is written anew each time. The stream's device must be current. Throws CudaError where kCudnn
  /// is wanted and the library is not there.
  void run(const AttentionPass& pass,
           const AttentionPointers& pointers,
           cudaStream_t stream,
           const std::function<void()>& own);

 private:
  bool choose_cudnn(const AttentionPass& pass,
                    const AttentionPointers& pointers,
                    cudaStream_t stream,
                    const std::function<void()>& own);
  bool is_open();
  void tell(const std::string& sentence) const;

  int device_;
  AttentionKernels wanted_;
  std::function<void(const std::string&)> tell_;
  std::mutex mutex_;                       // of all below: two streams may be two threads
  std::unique_ptr<CudnnAttention> cudnn_;  // opened by the first call that may use it
  bool is_missing_ = false;
  std::map<AttentionPass, bool> chosen_;  // whether cuDNN's
};

}  // namespace dstrain
