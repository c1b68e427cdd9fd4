// CudaDevice: memory, copies and streams of one GPU.
//
// Memory is taken with cudaMalloc, a call a region: the plan's regions are few, large and live as
// long as the run, and a pool would round them up and hide what is free. Operations' scratch comes
// from CUDA's stream-ordered pool (scratch.h) and stays there between operations.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kernels/core/device.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/fault_box.h"
#include "kernels/cuda/gpu_trace.h"
#include "kernels/cuda/nvml.h"

namespace dstrain {

/// The memory that this process holds on a GPU through its CudaDevice, beside what CUDA itself
/// takes.
struct CudaMemoryUse {
  std::int64_t region_bytes = 0;
  std::int64_t peak_region_bytes = 0;
  std::int64_t peak_scratch_bytes = 0;  ///< kept until the end, so also what is held now
};

class CudaDevice final : public Device {
 public:
  /// `name` is for people: "cuda:1" on its host, where this process sees only that GPU; empty: by
  /// index.
  explicit CudaDevice(int index, std::string name = {});

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCuda; }
  /// "cuda:0, NVIDIA H100 80GB HBM3, sm_90, 132 multiprocessors, CUDA 13.0, driver 13.0".
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::string model() const override;
  /// "GPU-8d5a…", as nvidia-smi -L prints it: also of a part of a GPU (MIG).
  [[nodiscard]] std::string identity() const override;
  [[nodiscard]] MemoryInfo memory_info() const override;
  /// Where the driver does not report what this process holds, they count regions and scratch,
  /// without what CUDA and its libraries take for themselves.
  [[nodiscard]] std::optional<DeviceReadings> readings() override;
  [[nodiscard]] DeviceMemory allocate(std::int64_t bytes, const std::string& what) override;
  [[nodiscard]] DeviceMemory allocate_host(std::int64_t bytes, const std::string& what) override;
  void copy_from_host(const void* host, Tensor device, Stream& stream) override;
  void copy_to_host(ConstTensor device, void* host, Stream& stream) override;
  void copy(ConstTensor from, Tensor to, Stream& stream) override;
  [[nodiscard]] Stream& compute_stream() override { return *compute_; }
  [[nodiscard]] std::unique_ptr<Stream> make_side_stream(const std::string& name) override;

  [[nodiscard]] CudaMemoryUse memory_use() const;
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  /// The compute capability, 90 for 9.0.
  [[nodiscard]] int compute_capability() const;
  [[nodiscard]] FaultPointers faults() const { return faults_->pointers(); }
  /// Gives the device up: from now on every wait for any of its streams throws `failure`, also one
  /// that has begun, once it comes back. The first one stays. May be called from any thread.
  void fail(std::exception_ptr failure) noexcept { faults_->fail(std::move(failure)); }
  /// The exception that `fail` was given, or nullptr.
  [[nodiscard]] std::exception_ptr failure() const { return faults_->failure(); }

 private:
  void use() const;

  using Clock = std::chrono::steady_clock;

  int index_;
  std::string name_;
  int multiprocessors_ = 0;
  std::atomic<std::int64_t> region_bytes_ = 0;
  std::atomic<std::int64_t> peak_region_bytes_ = 0;
  std::unique_ptr<FaultBox> faults_;
  std::unique_ptr<CudaStream> compute_;
  std::unique_ptr<TraceSource> trace_;

  std::mutex readings_mutex_;   // of all below
  std::unique_ptr<Nvml> nvml_;  // opened when first asked
  DeviceReadings readings_;
  std::optional<Clock::time_point> read_at_;
};

/// The stream's handle; makes its device current. Throws where the stream is not a GPU's.
cudaStream_t handle_of(Stream& stream);

}  // namespace dstrain
