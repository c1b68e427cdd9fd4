#include "engine/runtime/disk/disk_device.h"

#include <algorithm>
#include <cstring>
#include <new>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include "engine/base/amount_text.h"
#include "engine/runtime/disk/disk_speed.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::int64_t kUnit = ScratchFile::kBlockBytes;

std::int64_t down_to_blocks(std::int64_t bytes) {
  return bytes / kUnit * kUnit;
}

}  // namespace

DiskDevice::DiskDevice(const DiskOptions& options)
    : options_(options), file_(options.folder, options.key) {}

void DiskDevice::serve(Stream& stream, std::span<std::byte> staging) {
  check(stream_ == nullptr && std::ssize(staging) >= 2 * kUnit && std::ssize(staging) % kUnit == 0,
        "staging memory of {} bytes", staging.size());
  stream_ = &stream;
  staging_ = staging;
  queue_ = std::make_unique<DiskQueue>(
      file_, choose_queue_options(file_, staging, options_.block_bytes, options_.depth));
}

std::unique_ptr<DiskQueue> DiskDevice::make_queue() const {
  return std::make_unique<DiskQueue>(file_, queue_->options());
}

std::string DiskDevice::description() const {
  return fmt::format("disk, {}", file_.folder().string());
}

MemoryInfo DiskDevice::memory_info() const {
  const std::int64_t free = file_.free_bytes();
  return {.total_bytes = file_.bytes() + free, .available_bytes = free};
}

DeviceMemory DiskDevice::allocate(std::int64_t bytes, const std::string& what) {
  check(stream_ == nullptr, "{} on a disk that is already in use", what);
  if (bytes == 0) {
    return {};
  }
  const std::int64_t offset = file_.extend(bytes, what);
  void* const address =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    throw OutOfMemory(fmt::format("no addresses for {} of {} on disk", size_text(bytes), what));
  }
  extents_.push_back({static_cast<std::byte*>(address), bytes, offset});
  return {address, bytes,
          [](void* memory, std::int64_t size) { munmap(memory, static_cast<std::size_t>(size)); }};
}

DeviceMemory DiskDevice::allocate_host(std::int64_t bytes, const std::string& what) {
  if (bytes == 0) {
    return {};
  }
  void* const memory = std::aligned_alloc(static_cast<std::size_t>(kUnit),
                                          static_cast<std::size_t>(ScratchFile::in_blocks(bytes)));
  if (memory == nullptr) {
    throw OutOfMemory(fmt::format("out of memory: {} needs {} bytes", what, bytes));
  }
  std::memset(memory, 0, static_cast<std::size_t>(bytes));
  return {memory, bytes, [](void* released, std::int64_t /*size*/) { std::free(released); }};
}

std::int64_t DiskDevice::offset_of(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (const Extent& extent : extents_) {
    if (extent.address <= byte && byte < extent.address + extent.bytes) {
      return extent.offset + (byte - extent.address);
    }
  }
  fail_check("an address that is not on this disk", std::source_location::current());
}

void DiskDevice::copy_from_host(const void* host, Tensor device, Stream& stream) {
  if (device.bytes() > 0) {
    stream.run([this, offset = offset_of(device.data()), host, bytes = device.bytes()] {
      write(offset, static_cast<const std::byte*>(host), bytes);
    });
  }
}

void DiskDevice::copy_to_host(ConstTensor device, void* host, Stream& stream) {
  if (device.bytes() > 0) {
    stream.run([this, offset = offset_of(device.data()), host, bytes = device.bytes()] {
      read(offset, static_cast<std::byte*>(host), bytes);
    });
  }
}

void DiskDevice::copy(ConstTensor from, Tensor to, Stream& /*stream*/) {
  check(from.data() == to.data() && from.bytes() == to.bytes(),
        "a copy of {} bytes between two places on a disk", from.bytes());
}

Stream& DiskDevice::compute_stream() {
  check(stream_ != nullptr, "a disk that does not serve yet");
  return *stream_;
}

std::unique_ptr<Stream> DiskDevice::make_side_stream(const std::string& name) {
  check(false, "a second stream, {}, of a disk", name);
  return nullptr;
}

void DiskDevice::visit_parts(
    ConstTensor tensor, const std::function<void(ConstTensor part, std::int64_t first)>& visit) {
  if (tensor.numel() == 0) {
    return;
  }
  const std::int64_t element = size_of(tensor.dtype());
  stream_->run([&] {
    const std::int64_t offset = offset_of(tensor.data());
    const std::int64_t end = offset + tensor.bytes();
    for (std::int64_t at = offset; at < end;) {
      const std::int64_t first_block = down_to_blocks(at);
      const std::int64_t until =
          std::min(end, first_block + static_cast<std::int64_t>(staging_.size()));
      queue_->wait(
          queue_->read(first_block, staging_.data(), ScratchFile::in_blocks(until - first_block)));
      const std::int64_t count = (until - at) / element;
      visit({staging_.data() + (at - first_block), tensor.dtype(), Shape{count}},
            (at - offset) / element);
      at += count * element;
    }
  });
  stream_->synchronize();
}

/// Through staging memory, as neither place nor memory need be aligned.
void DiskDevice::read(std::int64_t offset, std::byte* to, std::int64_t bytes) {
  for (const std::int64_t end = offset + bytes; offset < end;) {
    const std::int64_t first_block = down_to_blocks(offset);
    const std::int64_t until =
        std::min(end, first_block + static_cast<std::int64_t>(staging_.size()));
    queue_->wait(
        queue_->read(first_block, staging_.data(), ScratchFile::in_blocks(until - first_block)));
    std::memcpy(to, staging_.data() + (offset - first_block),
                static_cast<std::size_t>(until - offset));
    to += until - offset;
    offset = until;
  }
}

/// Blocks that are written in part are read before.
void DiskDevice::write(std::int64_t offset, const std::byte* from, std::int64_t bytes) {
  for (const std::int64_t end = offset + bytes; offset < end;) {
    const std::int64_t first_block = down_to_blocks(offset);
    const std::int64_t until =
        std::min(end, first_block + static_cast<std::int64_t>(staging_.size()));
    const std::int64_t size = ScratchFile::in_blocks(until - first_block);
    std::byte* const last = staging_.data() + size - kUnit;
    if (offset > first_block || until < first_block + kUnit) {
      queue_->wait(queue_->read(first_block, staging_.data(), kUnit));
    }
    if (until < first_block + size && size > kUnit) {
      queue_->wait(queue_->read(first_block + size - kUnit, last, kUnit));
    }
    std::memcpy(staging_.data() + (offset - first_block), from,
                static_cast<std::size_t>(until - offset));
    queue_->wait(queue_->write(first_block, staging_.data(), size));
    from += until - offset;
    offset = until;
  }
}

}  // namespace dstrain
