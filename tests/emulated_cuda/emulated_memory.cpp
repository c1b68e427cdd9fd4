#include "tests/emulated_cuda/emulated_memory.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <sys/mman.h>

namespace dstrain::emulated {
namespace {

constexpr std::size_t kGuard = 256;  // as cudaMalloc aligns
constexpr unsigned char kGuardByte = 0xab;
constexpr std::size_t kPage = 4096;

struct Block {
  unsigned char* data;
  std::size_t bytes;
  std::size_t mapped;
  Memory where;
  std::size_t lead;  ///< from the mapping's begin to data, the guard included
  [[nodiscard]] unsigned char* base() const { return data - lead; }
};

struct Blocks {
  std::mutex mutex;
  std::map<const unsigned char*, Block> by_base;
  std::map<int, std::size_t> used;
};

/// It is never destroyed, since streams that end late still free memory.
Blocks& blocks() {
  static Blocks& all = *new Blocks;
  return all;
}

/// -1 where the processor or the kernel has no keys.
int protection_key() {
  static const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

void check_guards(const Block& block) {
  for (std::size_t i = 0; i < kGuard; ++i) {
    if ((block.data - kGuard)[i] != kGuardByte || block.data[block.bytes + i] != kGuardByte) {
      std::fprintf(stderr, "emulated GPU: a write outside an allocation of %zu bytes\n",
                   block.bytes);
      std::abort();
    }
  }
}

}  // namespace

DeviceAccess::DeviceAccess() {
  if (protection_key() >= 0) pkey_set(protection_key(), 0);
}
DeviceAccess::~DeviceAccess() {
  if (protection_key() >= 0) pkey_set(protection_key(), PKEY_DISABLE_ACCESS);
}

void* allocate(std::size_t bytes, Memory where) {
  // As cudaHostAlloc: where small memory begins, no page does.
  const std::size_t lead = where.device == Memory::kPinned ? kPage + 512 : kGuard;
  const std::size_t mapped = (lead + kGuard + bytes + kPage - 1) / kPage * kPage;
  Blocks& all = blocks();
  {
    const std::lock_guard lock(all.mutex);
    std::size_t& used = all.used[where.device];
    if (where.device != Memory::kPinned && used + bytes > kMemoryOfGpu) {
      return nullptr;
    }
    used += bytes;
  }
  void* const memory =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("emulated GPU: mmap");
    std::abort();
  }
  if (where.device != Memory::kPinned && protection_key() >= 0) {
    pkey_mprotect(memory, mapped, PROT_READ | PROT_WRITE, protection_key());
  }
  const Block block{static_cast<unsigned char*>(memory) + lead, bytes, mapped, where, lead};
  {
    const DeviceAccess access;
    std::memset(block.data - kGuard, kGuardByte, kGuard);
    std::memset(block.data, 0xff, bytes);
    std::memset(block.data + bytes, kGuardByte, kGuard);
  }
  const std::lock_guard lock(all.mutex);
  all.by_base[block.base()] = block;
  return block.data;
}

void release(void* data) {
  if (data == nullptr) {
    return;
  }
  Blocks& all = blocks();
  Block block{};
  {
    const std::lock_guard lock(all.mutex);
    auto found = all.by_base.upper_bound(static_cast<unsigned char*>(data));
    if (found == all.by_base.begin() || (--found)->second.data != data) {
      std::fprintf(stderr, "emulated GPU: %p is freed, which was not allocated\n", data);
      std::abort();
    }
    block = found->second;
    all.by_base.erase(found);
    all.used[block.where.device] -= block.bytes;
  }
  {
    const DeviceAccess access;
    check_guards(block);
  }
  munmap(block.base(), block.mapped);
}

std::optional<Memory> find_memory(const void* address) {
  Blocks& all = blocks();
  const std::lock_guard lock(all.mutex);
  const auto* const byte = static_cast<const unsigned char*>(address);
  auto after = all.by_base.upper_bound(byte);
  if (after == all.by_base.begin()) {
    return std::nullopt;
  }
  const Block& block = std::prev(after)->second;
  if (byte >= block.base() + block.mapped) {
    return std::nullopt;
  }
  return block.where;
}

std::size_t free_bytes(int device) {
  Blocks& all = blocks();
  const std::lock_guard lock(all.mutex);
  return kMemoryOfGpu - all.used[device];
}

void check_on_device(const char* what, const void* address, int device) {
  const std::optional<Memory> memory = find_memory(address);
  if (!memory.has_value() || (memory->device != Memory::kPinned && memory->device != device)) {
    std::fprintf(stderr, "emulated GPU %d: %s is given %p, which is %s\n", device, what, address,
                 memory.has_value() ? "another GPU's" : "the host's");
    std::abort();
  }
}

void check_argument(const char* kernel, const void* argument, std::size_t bytes, int device) {
  // Where the system places the program with its heap, and mappings with stacks.
  const auto looks_like_pointer = [](std::uintptr_t word) {
    return (word >> 40 >= 0x55 && word >> 40 <= 0x56) || (word >> 40 >= 0x7e && word >> 40 <= 0x7f);
  };
  for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= bytes; at += sizeof(std::uintptr_t)) {
    std::uintptr_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(argument) + at, sizeof(word));
    if (looks_like_pointer(word)) {
      check_on_device(kernel, reinterpret_cast<const void*>(word), device);
    }
  }
}

namespace {
std::atomic<std::int64_t> to_pageable = 0;
}  // namespace

std::int64_t bytes_to_pageable() {
  return to_pageable;
}
void count_bytes_to_pageable(std::size_t bytes) {
  to_pageable += static_cast<std::int64_t>(bytes);
}

}  // namespace dstrain::emulated
