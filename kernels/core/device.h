// Device: where tensors live and in which order work on them happens.
//
// Work enqueued on one Stream happens in order; work on two streams is ordered only by events.
// On a CPU there are two kinds of stream: the compute stream, which runs everything at once in
// the caller's thread, and side streams (communication, checkpoint copies), each a thread of its
// own. A failure of a task on a side stream is rethrown by the next wait or synchronize on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/core/tensor.h"
#include "kernels/core/trace_log.h"

namespace dstrain {

enum class DeviceKind : std::uint8_t { kCpu, kCuda, kDisk /* keeps bytes, computes nothing */ };

class Stream;

/// A point in a stream's order. A value; outlived by its stream.
struct Event {
  Stream* stream = nullptr;  ///< nullptr: already passed
  std::uint64_t ticket = 0;
};

class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  /// True if tasks run in the caller's thread before enqueue returns.
  [[nodiscard]] virtual bool is_inline() const = 0;
  /// Enqueues host work, in stream order.
  virtual void enqueue(std::function<void()> task) = 0;
  /// The point after everything enqueued so far.
  [[nodiscard]] virtual Event record() = 0;
  /// Later work on this stream starts only after `event`.
  virtual void wait(const Event& event) = 0;
  /// Blocks the host until `ticket` of this stream has passed; rethrows a failed task's exception.
  virtual void wait_until(std::uint64_t ticket) = 0;
  /// Blocks the host until the stream is empty; rethrows a failed task's exception.
  virtual void synchronize() = 0;

  /// Runs `work` in stream order, without making a std::function where it runs at once. Traces show
  /// it as an operation, by the name of the function that calls this.
  template <typename Work>
  void run(Work&& work, std::source_location where = std::source_location::current()) {
    const char* const name = where.function_name();
    if (is_inline()) {
      const TraceSpan span(TraceKind::kOperation, name);
      work();
    } else {
      enqueue([name, task = std::forward<Work>(work)]() mutable {
        const TraceSpan span(TraceKind::kOperation, name);
        task();
      });
    }
  }
};

/// Device memory, released on destruction. Must not outlive its device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(void* data, std::int64_t bytes, std::function<void(void*, std::int64_t)> release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    DeviceMemory(std::move(other)).swap(*this);
    return *this;
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    if (data_ != nullptr) {
      release_(data_, bytes_);
    }
  }
  void swap(DeviceMemory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::function<void(void*, std::int64_t)> release_;
};

struct MemoryInfo {
  std::int64_t total_bytes = 0;
  std::int64_t available_bytes = 0;
};

/// The reasons why a device runs below its clocks; all false: it does not, or does not say.
struct Slowdown {
  bool power = false;
  bool temperature = false;
  bool hardware = false;  ///< its own protection, for either reason
};

/// The readings of a device at one moment. Absent: its driver does not report them.
struct DeviceReadings {
  std::int64_t used_bytes = 0;  ///< of its memory, by this process
  std::int64_t peak_bytes = 0;  ///< the most of it at any of the moments when it was looked at
  std::optional<double> compute_mhz{};
  std::optional<double> memory_mhz{};
  std::optional<double> watts{};
  std::optional<double> celsius{};
  std::optional<double> utilization{};  ///< share of the last moments in which a kernel ran, 0 to 1
  Slowdown slowdown{};
};

/// The memory asked for is not there. The message has the region's name, requested and free bytes.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  [[nodiscard]] virtual DeviceKind kind() const = 0;
  /// For people: "cpu, 2 threads, avx512 + amx".
  [[nodiscard]] virtual std::string description() const = 0;
  /// Its product's name as its driver gives it: "NVIDIA H100 80GB HBM3"; of a processor "cpu".
  [[nodiscard]] virtual std::string model() const = 0;
  /// The same in every process that computes on this very device, and on no other in the world.
  [[nodiscard]] virtual std::string identity() const = 0;
  [[nodiscard]] virtual MemoryInfo memory_info() const = 0;
  /// Readings that are at most a second old; nothing for a device that is the host itself.
  [[nodiscard]] virtual std::optional<DeviceReadings> readings() = 0;
  /// Zeroed memory, aligned to at least 64 bytes, every page already touched. `what` names the
  /// region in an OutOfMemory message.
  [[nodiscard]] virtual DeviceMemory allocate(std::int64_t bytes, const std::string& what) = 0;
  /// The same in the host's memory, of the kind that copies to and from this device are fastest
  /// with: pinned, where the device is not the host.
  [[nodiscard]] virtual DeviceMemory allocate_host(std::int64_t bytes, const std::string& what) = 0;
  /// Copy bytes between host memory and a device tensor, in stream order. `host` must stay valid
  /// until the stream has passed the copy.
  virtual void copy_from_host(const void* host, Tensor device, Stream& stream) = 0;
  virtual void copy_to_host(ConstTensor device, void* host, Stream& stream) = 0;
  /// Copies between two tensors of the device, of the same number of bytes, that are identical or
  /// do not overlap.
  virtual void copy(ConstTensor from, Tensor to, Stream& stream) = 0;
  /// The stream that computes. Owned by the device.
  [[nodiscard]] virtual Stream& compute_stream() = 0;
  /// A stream besides the compute stream; `name` shows in traces and thread lists (≤ 15
  /// characters).
  [[nodiscard]] virtual std::unique_ptr<Stream> make_side_stream(const std::string& name) = 0;
};

}  // namespace dstrain
