// CudaStream: an order of work on one GPU. Tickets of Stream::record are CUDA events, kept until
// the GPU has passed them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime_api.h>

#include "kernels/core/device.h"
#include "kernels/cuda/fault_box.h"

namespace dstrain {

class CudaStream final : public Stream {
 public:
  /// Throws what `faults` holds whenever the host waits for this stream.
  CudaStream(int device, FaultBox& faults);
  ~CudaStream() override;

  [[nodiscard]] bool is_inline() const override { return false; }
  /// A task that throws breaks the stream for the host's tasks: later ones are dropped, and waits
  /// rethrow. Work already on the GPU's queue continues.
  void enqueue(std::function<void()> task) override;
  [[nodiscard]] Event record() override;
  void wait(const Event& event) override;
  void wait_until(std::uint64_t ticket) override;
  void synchronize() override;

  /// Makes the device current in this thread, which launches and calls on the handle need.
  [[nodiscard]] cudaStream_t use();
  /// While a graph is recorded from it, nothing of the host's belongs on the stream: tasks, events
  /// and waits are refused.
  void set_recording(bool recording) { is_recording_ = recording; }

 private:
  class Point;  // a CUDA event
  struct Task;
  struct Recorded {
    std::uint64_t ticket;
    std::shared_ptr<Point> point;  // shared with threads that wait for it just now
  };
  void refuse_while_recording(const char* what) const;
  /// The point of a ticket; nullptr if it has passed.
  [[nodiscard]] std::shared_ptr<Point> find(std::uint64_t ticket);
  void forget_passed();
  void run(const std::function<void()>& task) noexcept;
  void check_wait(cudaError_t status, const char* call);
  void rethrow_failures();
  /// Rethrows only a task's failure: a task may call it too, which must not use the device.
  void rethrow_task_failure();

  int device_;
  FaultBox& faults_;
  cudaStream_t stream_ = nullptr;
  std::atomic<bool> is_recording_ = false;

  std::mutex mutex_;  // of all below
  std::deque<Recorded> recorded_;
  std::vector<std::shared_ptr<Point>> spare_;
  std::uint64_t last_ticket_ = 0;
  bool has_tasks_ = false;
  std::exception_ptr failure_;
};

}  // namespace dstrain
