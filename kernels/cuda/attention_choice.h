// Decides whose kernels compute attention, dstrain's or cuDNN's, once per pass and shape. Where a
// measurement decides, the choice is kept in the file of matrix products' algorithms, so that all
// ranks and restarts of a run make the same.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/attention_kernels.h"
#include "kernels/cuda/algorithm_file.h"
#include "kernels/cuda/cudnn_attention.h"

namespace dstrain {

class AttentionChoice {
 public:
  struct Options {
    AttentionKernels wanted = AttentionKernels::kOwn;
    std::string file;  ///< of choices; empty: each process measures again
    std::function<void(const std::string&)> tell;  ///< given a sentence per decision; may be empty
  };
  /// Makes the choice for the device with CUDA's number `device`.
  AttentionChoice(int device, Options options) : device_(device), options_(std::move(options)) {}

  /// Enqueues cuDNN's kernels, or calls `own`, which enqueues ours. With kFaster the first call for
  /// a shape runs both several times on these operands, waiting for the stream: everything written
  /// is rewritten each time. The stream's device must be current. Throws CudaError where kCudnn is
  /// wanted and the library is missing, std::runtime_error where the file cannot be used.
  void run(const AttentionPass& pass,
           const AttentionPointers& pointers,
           cudaStream_t stream,
           const std::function<void()>& own);

 private:
  bool choose_cudnn(const AttentionPass& pass,
                    const AttentionPointers& pointers,
                    cudaStream_t stream,
                    const std::function<void()>& own);
  ChosenAlgorithm measure(const AttentionPass& pass,
                          const AttentionPointers& pointers,
                          cudaStream_t stream,
                          const std::function<void()>& own);
  bool is_open();
  void tell(const std::string& sentence) const;

  int device_;
  Options options_;
  std::mutex mutex_;                       // of all below: two streams may be two threads
  std::unique_ptr<CudnnAttention> cudnn_;  // opened by the first call that may use it
  bool is_missing_ = false;
  std::unique_ptr<AlgorithmFile> file_;   // nullptr: not opened, or none
  std::map<AttentionPass, bool> chosen_;  // whether cuDNN's
};

}  // namespace dstrain
