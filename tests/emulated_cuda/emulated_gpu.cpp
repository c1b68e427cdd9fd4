#include "tests/emulated_cuda/emulated_gpu.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "tests/emulated_cuda/emulated_stream.h"

// Saves what a function must preserve on the stack that it leaves, and takes up another.
extern "C" void dstrain_switch_stack(void** left, void* taken);
asm(R"(
  .text
  .globl dstrain_switch_stack
  .type dstrain_switch_stack, @function
dstrain_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size dstrain_switch_stack, .-dstrain_switch_stack
)");

namespace dstrain::emulated {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr std::size_t kMostThreads = 1024;
constexpr std::size_t kSharedBytes = std::size_t{232} << 10;
constexpr int kWarpSize = 32;

struct Barrier {
  int members = 0;
  int arrived = 0;
  std::uint64_t generation = 0;

  void leave() {
    --members;
    release_if_complete();
  }
  void release_if_complete() {
    if (members > 0 && arrived == members) {
      arrived = 0;
      ++generation;
    }
  }
};

struct Warp {
  Barrier barrier;
  std::array<std::array<Handed, kWarpSize>, 2> handed;  // by turns: see exchange()
};

struct Fiber {
  ThreadState state;
  void* stack_pointer = nullptr;
  bool done = false;
  const Barrier* waits_at = nullptr;
  std::uint64_t since = 0;  ///< the barrier's generation when the wait began

  [[nodiscard]] bool can_run() const {
    return !done && (waits_at == nullptr || waits_at->generation != since);
  }
};

/// All of a running launch. One at a time: kernels of two streams wait for each other.
struct Machine {
  std::mutex mutex;
  std::byte* stacks = static_cast<std::byte*>(mmap(nullptr,
                                                   kStackBytes* kMostThreads,
                                                   PROT_READ | PROT_WRITE,
                                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                                   -1,
                                                   0));
  std::vector<std::byte> shared = std::vector<std::byte>(kSharedBytes + 128);
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barrier;
  BlockState block;
  void* launching_stack = nullptr;  ///< what the block's last thread returns to
  std::size_t current = 0;
  std::size_t left = 0;  ///< threads of the block that are not done
  const std::function<void()>* kernel = nullptr;
  const char* name = nullptr;
};

// Not a static of a function, whose guard every access would look at.
Machine the_machine;  // NOLINT(cert-err58-cpp)

Machine& machine() {
  return the_machine;
}

/// Takes up the next thread of the block that has nothing to wait for: in turns, so that a barrier
/// that is missing lets others run in between.
void yield() {
  Machine& m = machine();
  const std::size_t self = m.current;
  do {
    m.current = m.current + 1 == m.fibers.size() ? 0 : m.current + 1;
    if (m.current == self && !m.fibers[self].can_run()) {
      std::fprintf(stderr, "emulated GPU: %s waits forever\n", m.name);
      std::abort();
    }
  } while (!m.fibers[m.current].can_run());
  if (m.current != self) {
    dstrain_switch_stack(&m.fibers[self].stack_pointer, m.fibers[m.current].stack_pointer);
  }
}

void wait_at(Barrier& barrier) {
  Machine& m = machine();
  Fiber& fiber = m.fibers[m.current];
  fiber.since = barrier.generation;
  ++barrier.arrived;
  barrier.release_if_complete();
  if (barrier.generation == fiber.since) {
    fiber.waits_at = &barrier;
    yield();
    fiber.waits_at = nullptr;
  }
}

[[noreturn]] void fiber_main() {
  Machine& m = machine();
  (*m.kernel)();
  if (!m.fibers[m.current].state.copies.empty()) {
    std::fprintf(stderr, "emulated GPU: a thread ends with copies that it has not waited for\n");
    std::abort();
  }
  m.fibers[m.current].done = true;
  m.warps[m.current / kWarpSize].barrier.leave();
  m.barrier.leave();
  if (--m.left == 0) {
    dstrain_switch_stack(&m.fibers[m.current].stack_pointer, m.launching_stack);
  } else {
    yield();
  }
  std::abort();  // a fiber that is done is not taken up again
}

void prepare_fiber(std::size_t thread) {
  Machine& m = machine();
  Fiber& fiber = m.fibers[thread];
  const dim3& dims = m.block.block_dim;
  const auto at = static_cast<unsigned>(thread);
  fiber.state.index = {at % dims.x, at / dims.x % dims.y, at / dims.x / dims.y};
  fiber.done = false;
  fiber.waits_at = nullptr;
  // A stack as dstrain_switch_stack leaves one: six registers, then where to return to; above them
  // what is there in place of a caller. So the stack is aligned as after a call.
  auto* top = reinterpret_cast<void**>(m.stacks + (thread + 1) * kStackBytes) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int saved = 0; saved < 6; ++saved) {
    *--top = nullptr;
  }
  fiber.stack_pointer = top;
}

void run_block() {
  Machine& m = machine();
  m.left = m.fibers.size();
  m.barrier = {.members = static_cast<int>(m.left)};
  for (Warp& warp : m.warps) {
    warp.barrier = {.members = kWarpSize};
  }
  for (std::size_t thread = 0; thread < m.left; ++thread) {
    prepare_fiber(thread);
  }
  m.current = 0;
  dstrain_switch_stack(&m.launching_stack, m.fibers.front().stack_pointer);
}

void run(const char* name,
         dim3 grid,
         dim3 block,
         std::size_t shared_bytes,
         const std::function<void()>& kernel) {
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  m.fibers.assign(threads, Fiber{});
  m.warps.resize(threads / kWarpSize);
  m.kernel = &kernel;
  m.name = name;
  m.block.block_dim = block;
  m.block.grid_dim = grid;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        m.block.index = {x, y, z};
        // NaN: nobody has written it, nor what lies behind it.
        std::memset(m.shared.data(), 0xff, std::min(m.shared.size(), shared_bytes + 1024));
        run_block();
      }
    }
  }
}

}  // namespace

ThreadState& thread() {
  Machine& m = machine();
  return m.fibers[m.current].state;
}

const BlockState& block() {
  return machine().block;
}

int lane() {
  return static_cast<int>(machine().current) % kWarpSize;
}

void synchronize_block() {
  wait_at(machine().barrier);
}

void synchronize_warp() {
  Machine& m = machine();
  wait_at(m.warps[m.current / kWarpSize].barrier);
}

const std::array<Handed, 32>& exchange(const Handed& mine) {
  Machine& m = machine();
  Warp& warp = m.warps[m.current / kWarpSize];
  auto& handed = warp.handed[warp.barrier.generation % 2];
  handed[m.current % kWarpSize] = mine;
  wait_at(warp.barrier);
  return handed;
}

void* shared_memory() {
  auto* const data = machine().shared.data();
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return data + (128 - address % 128) % 128;
}

void launch(cudaStream_t stream,
            const char* name,
            dim3 grid,
            dim3 block,
            std::size_t shared_bytes,
            std::function<void()> kernel) {
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMostThreads || threads % kWarpSize != 0 ||
      shared_bytes > kSharedBytes - 1024 * 5 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.y > 65535 || grid.z > 65535) {
    std::fprintf(stderr,
                 "emulated GPU: %s cannot be launched: grid %u %u %u, block %u %u %u, %zu\n", name,
                 grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes);
    std::abort();
  }
  stream_of(stream).enqueue([name, grid, block, shared_bytes, kernel = std::move(kernel)] {
    run(name, grid, block, shared_bytes, kernel);
    stream_microseconds() += kKernelMicroseconds;
  });
}

}  // namespace dstrain::emulated
