// DiskDevice: a disk as a Device, so that whatever keeps, saves and restores tensors does so with
// those on a disk too. It computes nothing: a tensor's bytes come to the host's memory in parts and
// go back. Its addresses are reserved ones, of no memory; touching one ends the process.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/disk/disk_queue.h"
#include "engine/runtime/disk/scratch_file.h"
#include "kernels/core/device.h"

namespace dstrain {

struct DiskOptions {
  std::string folder;                       ///< of this host; empty: nothing is kept on a disk
  std::string key;                          ///< where the config names it, for errors
  std::optional<std::int64_t> block_bytes;  ///< absent: measured at start, as the next one
  std::optional<int> depth;
};

class DiskDevice final : public Device {
 public:
  explicit DiskDevice(const DiskOptions& options);

  /// Work on the disk is to be done in the order of `stream`, by way of `staging`, a multiple of
  /// ScratchFile::kBlockBytes of aligned memory that nothing else uses while work is under way.
  /// Both outlive all work. Called once, after everything is allocated and before anything is
  /// written.
  void serve(Stream& stream, std::span<std::byte> staging);
  /// Calls visit(part, first) for all parts of a tensor in order, each in the host's memory during
  /// the call, with the index of its first element. Returns when all were visited.
  void visit_parts(ConstTensor tensor,
                   const std::function<void(ConstTensor part, std::int64_t first)>& visit);

  /// For work that orders its own reads and writes, on the stream.
  [[nodiscard]] DiskQueue& queue() { return *queue_; }
  /// Another queue to the same file, for a thread of its own; once this serves.
  [[nodiscard]] std::unique_ptr<DiskQueue> make_queue() const;
  /// The place in the file of a tensor of this device.
  [[nodiscard]] std::int64_t offset_of(const void* address) const;

  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kDisk; }
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::string model() const override { return "disk"; }
  [[nodiscard]] std::string identity() const override { return file_.folder().string(); }
  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] std::optional<DeviceReadings> readings() override { return std::nullopt; }
  [[nodiscard]] DeviceMemory allocate(std::int64_t bytes, const std::string& what) override;
  [[nodiscard]] DeviceMemory allocate_host(std::int64_t bytes, const std::string& what) override;
  void copy_from_host(const void* host, Tensor device, Stream& stream) override;
  void copy_to_host(ConstTensor device, void* host, Stream& stream) override;
  void copy(ConstTensor from, Tensor to, Stream& stream) override;
  [[nodiscard]] Stream& compute_stream() override;
  [[nodiscard]] std::unique_ptr<Stream> make_side_stream(const std::string& name) override;

 private:
  struct Extent {
    const std::byte* address = nullptr;
    std::int64_t bytes = 0;
    std::int64_t offset = 0;
  };
  void read(std::int64_t offset, std::byte* to, std::int64_t bytes);
  void write(std::int64_t offset, const std::byte* from, std::int64_t bytes);

  DiskOptions options_;
  ScratchFile file_;
  std::vector<Extent> extents_;
  Stream* stream_ = nullptr;
  std::span<std::byte> staging_;
  std::unique_ptr<DiskQueue> queue_;
};

}  // namespace dstrain
