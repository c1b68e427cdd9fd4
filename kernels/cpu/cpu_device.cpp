#include "kernels/cpu/cpu_device.h"

#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include "engine/base/amount_text.h"
#include "kernels/cpu/memory_info.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/side_stream.h"

namespace dstrain {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

std::int64_t rounded_up(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

[[noreturn]] void fail_for_memory(std::int64_t bytes,
                                  const std::string& what,
                                  const MemoryInfo& info) {
  throw OutOfMemory(
      fmt::format("out of memory: {} needs {} bytes ({}), {:.2f} of {} are free on this CPU", what,
                  bytes, gib_text(bytes), static_cast<double>(info.available_bytes) / 0x1p30,
                  gib_text(info.total_bytes)));
}

/// A fresh mapping of `bytes` zeros, aligned to a huge page where it fills at least one.
void* map_zeros(std::int64_t bytes) {
  const std::int64_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* mapped = mmap(nullptr, static_cast<std::size_t>(bytes + slack), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  if (slack == 0) {
    return mapped;
  }
  // Unmaps what lies before the first huge page boundary and after the end.
  auto* const begin = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::int64_t head =
      static_cast<std::int64_t>((~address + 1) & static_cast<std::uintptr_t>(kHugePage - 1));
  if (head > 0) {
    munmap(begin, static_cast<std::size_t>(head));
  }
  if (slack > head) {
    munmap(begin + head + bytes, static_cast<std::size_t>(slack - head));
  }
  // This is advice: where huge pages are switched off, small ones will do.
  (void)madvise(begin + head, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return begin + head;
}

/// Touches every page, so that the slow part of fresh memory happens here, not in the first
/// training step.
void touch(void* data, std::int64_t bytes, int threads) {
  auto* const begin = static_cast<volatile char*>(data);
  parallel_pieces(threads, bytes, kHugePage, [=](std::int64_t from, std::int64_t to) {
    for (std::int64_t offset = from; offset < to; offset += kPage) {
      begin[offset] = 0;
    }
  });
}

}  // namespace

std::string CpuDevice::description() const {
  return fmt::format("cpu, {} thread{}, {}", threads_, threads_ == 1 ? "" : "s", name_of(isa_));
}

std::string CpuDevice::identity() const {
  utsname names{};
  uname(&names);
  return fmt::format("the memory of {}", names.nodename);
}

MemoryInfo CpuDevice::memory_info() const {
  return read_memory_info();
}

DeviceMemory CpuDevice::allocate(std::int64_t bytes, const std::string& what) {
  check(bytes >= 0, "{}: cannot allocate {} bytes", what, bytes);
  if (bytes == 0) {
    return {};
  }
  const MemoryInfo info = memory_info();
  if (bytes > info.available_bytes) {
    fail_for_memory(bytes, what, info);  // touching more would get the process killed
  }
  const std::int64_t mapped_bytes = rounded_up(bytes, kPage);
  void* const data = map_zeros(mapped_bytes);
  if (data == nullptr) {
    fail_for_memory(bytes, what, info);
  }
  touch(data, mapped_bytes, threads_);
  return {data, bytes, [](void* memory, std::int64_t size) {
            munmap(memory, static_cast<std::size_t>(rounded_up(size, kPage)));
          }};
}

void CpuDevice::copy_from_host(const void* host, Tensor device, Stream& stream) {
  stream.run([=] {
    if (device.bytes() > 0) {
      std::memcpy(device.data(), host, static_cast<std::size_t>(device.bytes()));
    }
  });
}

void CpuDevice::copy_to_host(ConstTensor device, void* host, Stream& stream) {
  stream.run([=] {
    if (device.bytes() > 0) {
      std::memcpy(host, device.data(), static_cast<std::size_t>(device.bytes()));
    }
  });
}

void CpuDevice::copy(ConstTensor from, Tensor to, Stream& stream) {
  check(from.bytes() == to.bytes(), "a copy of {} bytes to {}", from.bytes(), to.bytes());
  if (from.data() != to.data() && from.bytes() > 0) {
    stream.run(
        [=] { std::memcpy(to.data(), from.data(), static_cast<std::size_t>(from.bytes())); });
  }
}

std::unique_ptr<Stream> CpuDevice::make_side_stream(const std::string& name) {
  return std::make_unique<SideStream>(name);
}

}  // namespace dstrain
