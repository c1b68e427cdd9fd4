// CpuDevice: memory, copies and streams of the processor.
#pragma once

#include <memory>
#include <string>

#include "kernels/core/device.h"
#include "kernels/cpu/isa.h"

namespace dstrain {

/// Runs everything in the caller's thread, at once; so every event has passed when it is recorded.
class InlineStream final : public Stream {
 public:
  [[nodiscard]] bool is_inline() const override { return true; }
  void enqueue(std::function<void()> task) override { task(); }
  [[nodiscard]] Event record() override { return {}; }
  void wait(const Event& event) override {
    if (event.stream != nullptr) {
      event.stream->wait_until(event.ticket);
    }
  }
  void wait_until(std::uint64_t /*ticket*/) override {}
  void synchronize() override {}
};

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, CpuIsa isa) : threads_(threads), isa_(isa) {}

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCpu; }
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::string model() const override { return "cpu"; }
  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] std::optional<DeviceReadings> readings() override { return std::nullopt; }
  [[nodiscard]] DeviceMemory allocate(std::int64_t bytes, const std::string& what) override;
  [[nodiscard]] DeviceMemory allocate_host(std::int64_t bytes, const std::string& what) override {
    return allocate(bytes, what);
  }
  void copy_from_host(const void* host, Tensor device, Stream& stream) override;
  void copy_to_host(ConstTensor device, void* host, Stream& stream) override;
  [[nodiscard]] Stream& compute_stream() override { return compute_; }
  [[nodiscard]] std::unique_ptr<Stream> make_side_stream(const std::string& name) override;

 private:
  int threads_;
  CpuIsa isa_;
  InlineStream compute_;
};

}  // namespace dstrain
