// Memory of the CPU device: alignment, zeros, refusals, and what a control group allows.
#include <algorithm>
#include <cstdint>

#include <catch2/catch.hpp>

#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/memory_info.h"
#include "tests/unit/kernels/fake_root.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

/// A machine with 4 MiB of memory.
class FakeMachine : public FakeRoot {
 public:
  FakeMachine() {
    write("proc/meminfo", "MemTotal:   4096 kB\nMemFree: 1 kB\nMemAvailable:   3072 kB\n");
  }
  [[nodiscard]] MemoryInfo read() const { return read_memory_info(path().string()); }
};

}  // namespace

TEST_CASE("allocated memory is zero, aligned, and whole huge pages where it is large",
          "[kernels][device]") {
  Backend backend = make_cpu_backend(2);
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{4097}, 2 * kMiB, 5 * kMiB + 3}) {
    const DeviceMemory memory = backend.device->allocate(bytes, "test");
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    CHECK(memory.bytes() == bytes);
    CHECK(address % 64 == 0);
    if (bytes >= 2 * kMiB) {
      CHECK(address % (2 * kMiB) == 0);
    }
    auto* const begin = static_cast<unsigned char*>(memory.data());
    CHECK(std::all_of(begin, begin + bytes, [](unsigned char byte) { return byte == 0; }));
    std::fill(begin, begin + bytes, static_cast<unsigned char>(1));  // writable to the last byte
  }
  CHECK(backend.device->allocate(0, "nothing").data() == nullptr);
}

TEST_CASE("more memory than there is: an error with the region's name and its bytes",
          "[kernels][device]") {
  Backend backend = make_cpu_backend(1);
  const std::int64_t bytes = backend.device->memory_info().available_bytes + (1LL << 40);
  CHECK_THROWS_AS(backend.device->allocate(bytes, "gradients"), OutOfMemory);
  CHECK_THROWS_WITH(backend.device->allocate(bytes, "gradients"),
                    Catch::Contains("gradients needs " + std::to_string(bytes) + " bytes"));
}

TEST_CASE("the device describes itself", "[kernels][device]") {
  Backend backend = make_cpu_backend(2, CpuIsa::kBaseline);
  CHECK(backend.device->kind() == DeviceKind::kCpu);
  CHECK(backend.device->description() == "cpu, 2 threads, x86-64");
  CHECK(make_cpu_backend(1, CpuIsa::kBaseline).device->description() == "cpu, 1 thread, x86-64");
  CHECK_THROWS_AS(make_cpu_backend(-1), InternalError);
}

TEST_CASE("without control groups, memory is what the machine has", "[kernels][device]") {
  const FakeMachine root;
  CHECK(root.read().total_bytes == 4 * kMiB);
  CHECK(root.read().available_bytes == 3 * kMiB);
}

TEST_CASE("a version 2 group and the groups above it limit memory", "[kernels][device]") {
  const FakeMachine root;
  root.write("proc/self/cgroup", "0::/job/step\n");
  root.write("sys/fs/cgroup/job/step/memory.max", "max\n");
  root.write("sys/fs/cgroup/job/step/memory.current", "1000\n");
  root.write("sys/fs/cgroup/job/memory.max", "2097152\n");
  root.write("sys/fs/cgroup/job/memory.current", "1572864\n");
  root.write("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 524288\n");
  CHECK(root.read().total_bytes == 2 * kMiB);
  CHECK(root.read().available_bytes == kMiB);  // 2 - 1.5 + 0.5 of page cache that can go
}

TEST_CASE("a version 1 group limits memory, also where its path is hidden by a container",
          "[kernels][device]") {
  const FakeMachine root;
  root.write("proc/self/cgroup", "3:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "262144\n");
  CHECK(root.read().total_bytes == kMiB);
  CHECK(root.read().available_bytes == kMiB - 262144);
}

TEST_CASE("version 1's number for no limit is no limit", "[kernels][device]") {
  const FakeMachine root;
  root.write("proc/self/cgroup", "4:memory:/\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "262144\n");
  CHECK(root.read().total_bytes == 4 * kMiB);
  CHECK(root.read().available_bytes == 3 * kMiB);
}

}  // namespace dstrain
