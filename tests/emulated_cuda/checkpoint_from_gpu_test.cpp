// Checkpoints of what lies on a GPU: in parts, through pinned memory, and with no copy under way
// when a disk gives out.
#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/device_parts.h"
#include "kernels/backend.h"
#include "tests/emulated_cuda/emulated_memory.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

using checkpoint_test::ScratchFolder;

/// Numbered elements on the GPU.
struct OnGpu {
  OnGpu(Device& gpu, std::int64_t elements)
      : device(gpu),
        values(static_cast<std::size_t>(elements)),
        memory(gpu.allocate(elements * size_of(DType::kF32), "a tensor")) {
    std::iota(values.begin(), values.end(), 1.0F);
    device.copy_from_host(values.data(), tensor(), device.compute_stream());
    device.compute_stream().synchronize();
  }
  [[nodiscard]] Tensor tensor() const {
    return {memory.data(), DType::kF32, Shape{static_cast<std::int64_t>(values.size())}};
  }
  [[nodiscard]] CheckpointTensor named(const std::string& name) const {
    const auto size = static_cast<std::int64_t>(values.size());
    return {.state = "parameter",
            .piece = {.tensor = name,
                      .shape = Shape{size},
                      .box_start = Shape{0},
                      .box_extent = Shape{size},
                      .flat = {0, size}},
            .data = tensor(),
            .device = &device};
  }

  Device& device;
  std::vector<float> values;
  DeviceMemory memory;
};

/// Longer than two parts, and no multiple of one; and one of a few bytes.
constexpr std::int64_t kLong = 2 * DeviceParts::kPartBytes / 4 + 12'345;
constexpr std::int64_t kShort = 3;

TEST_CASE("a checkpoint from a GPU goes through pinned memory, and comes back bit for bit",
          "[checkpoint][cuda]") {
  const Backend backend = make_cuda_backend(0);
  const OnGpu large(*backend.device, kLong);
  const OnGpu small(*backend.device, kShort);
  const ScratchFolder folder;
  const auto alone = std::move(make_local_rendezvous(1).front());
  const std::vector<int> members{0};
  const auto world = alone->make_group("world", members);
  const std::int64_t before = emulated::bytes_to_pageable();
  CheckpointStore store(folder.path());
  store.save({.step = 1}, std::vector{small.named("small"), large.named("large")}, 1, *world);
  CHECK(emulated::bytes_to_pageable() == before);

  std::vector<float> loaded(static_cast<std::size_t>(kLong), 0.0F);
  std::vector<float> few(static_cast<std::size_t>(kShort), 0.0F);
  CheckpointTensor first = large.named("large");
  first.data = {loaded.data(), DType::kF32, Shape{kLong}};
  first.device = nullptr;
  CheckpointTensor second = small.named("small");
  second.data = {few.data(), DType::kF32, Shape{kShort}};
  second.device = nullptr;
  const auto latest = store.latest();
  REQUIRE(latest);
  CheckpointStore::load(*latest, std::vector{first, second});
  CHECK(loaded == large.values);
  CHECK(few == small.values);
}

TEST_CASE("parts come in order, and who stops half way leaves no copy behind",
          "[checkpoint][cuda]") {
  const Backend backend = make_cuda_backend(0);
  const OnGpu large(*backend.device, kLong);
  Stream& compute = backend.device->compute_stream();
  std::vector<std::int64_t> sizes;
  std::atomic<bool> stream_is_done = false;
  {
    DeviceParts parts(kLong * 4);
    const auto fail = [&](std::span<const std::byte> part) {
      sizes.push_back(static_cast<std::int64_t>(part.size()));
      compute.enqueue([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds{100});
        stream_is_done = true;
      });
      throw std::runtime_error("the disk is full");
    };
    CHECK_THROWS_WITH(parts.read(*backend.device, large.tensor(), fail), "the disk is full");
    CHECK(stream_is_done);  // the next part was on its way into memory that goes now
  }
  CHECK(sizes == std::vector<std::int64_t>{DeviceParts::kPartBytes});
  DeviceParts parts(kLong * 4);
  float next = 1.0F;
  bool in_order = true;
  parts.read(*backend.device, large.tensor(), [&](std::span<const std::byte> part) {
    const auto* const values = reinterpret_cast<const float*>(part.data());
    for (std::size_t i = 0; i < part.size() / sizeof(float); ++i) {
      in_order = in_order && values[i] == next++;
    }
  });
  CHECK(in_order);
  CHECK(next == static_cast<float>(kLong + 1));
}

}  // namespace
}  // namespace dstrain
