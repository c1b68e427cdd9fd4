// CpuDevice: memory, copies and streams of the processor.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/caller_stream.h"
#include "kernels/core/device.h"
#include "kernels/cpu/isa.h"

namespace dstrain {

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, CpuIsa isa) : threads_(threads), isa_(isa) {}

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCpu; }
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::string model() const override { return "cpu"; }
  /// The identity of the whole host.
  [[nodiscard]] std::string identity() const override;
  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] std::optional<DeviceReadings> readings() override { return std::nullopt; }
  [[nodiscard]] DeviceMemory allocate(std::int64_t bytes, const std::string& what) override;
  [[nodiscard]] DeviceMemory allocate_host(std::int64_t bytes, const std::string& what) override {
    return allocate(bytes, what);
  }
  void copy_from_host(const void* host, Tensor device, Stream& stream) override;
  void copy_to_host(ConstTensor device, void* host, Stream& stream) override;
  void copy(ConstTensor from, Tensor to, Stream& stream) override;
  [[nodiscard]] Stream& compute_stream() override { return compute_; }
  [[nodiscard]] std::unique_ptr<Stream> make_side_stream(const std::string& name) override;

 private:
  int threads_;
  CpuIsa isa_;
  CallerStream compute_;
};

}  // namespace dstrain
