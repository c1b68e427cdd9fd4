#include "engine/plan/memory_plan.h"

#include <catch2/catch.hpp>

#include "engine/runtime/arena.h"
#include "kernels/backend.h"

namespace dstrain {
namespace {

Blueprint small() {
  Blueprint blueprint;
  blueprint.begin_unit("a");
  blueprint.add_param({.name = "w", .shape = {5, 7}});
  blueprint.begin_unit("b");
  blueprint.add_param({.name = "v", .shape = {16}});
  blueprint.add_buffer({"x", {3, 5}, DType::kBF16, Lifetime::kSaved});
  blueprint.add_buffer({"y", {100}, DType::kF32, Lifetime::kSaved});
  blueprint.add_buffer({"s", {9}, DType::kF32, Lifetime::kScratch});
  blueprint.add_buffer({"c", {1}, DType::kF64, Lifetime::kConstant});
  return blueprint;
}

TEST_CASE("a plan's regions are what hand arithmetic says", "[plan]") {
  const Blueprint blueprint = small();
  const ShardMap shards(blueprint, Mesh({.data_inside = 2}));  // 35 → 2 × 32, 16 → 2 × 16
  const MemoryPlan plan(blueprint, shards, {.compute_dtype = DType::kBF16, .slots = {3}});
  const std::int64_t padded = 64 + 32;
  CHECK(plan.region(RegionKind::kParameters).bytes == padded * 2);
  CHECK(plan.region(RegionKind::kMaster).bytes == padded * 4);
  CHECK(plan.region(RegionKind::kGradients).bytes == padded * 4);
  CHECK(plan.region(RegionKind::kFirstMoment).bytes == padded * 4);
  CHECK(plan.region(RegionKind::kSecondMoment).bytes == padded * 4);
  CHECK(plan.region(RegionKind::kSaved).bytes == 3 * (64 + 448));
  CHECK(plan.region(RegionKind::kScratch).bytes == 64);
  CHECK(plan.region(RegionKind::kConstants).bytes == 64);
  CHECK(plan.bytes() == padded * 18 + 3 * 512 + 128);
}

TEST_CASE("a part of the states lies apart: those of the first units, at least the share asked for",
          "[plan][offload]") {
  const Blueprint blueprint = small();
  const ShardMap shards(blueprint, Mesh({.data_inside = 2}));  // 64 and 32 elements
  for (const auto& [share, elements] : {std::pair{0.01, 64}, {0.66, 64}, {0.67, 96}, {1.0, 96}}) {
    CAPTURE(share);
    const MemoryPlan plan(blueprint, shards,
                          {.compute_dtype = DType::kF32,
                           .placement = {.states = {.space = Space::kHost}},
                           .share_apart = share});
    // An f32 unit has a master where its states are apart, and none where they are beside it.
    CHECK(plan.bytes(Space::kHost) >= elements * 12);
    CHECK(plan.states_are_apart(0));
    CHECK(plan.states_are_apart(1) == (elements == 96));
    CHECK(plan.has_master(1) == (elements == 96));
    CHECK(plan.place(RegionKind::kFirstMoment, 1).space ==
          (elements == 96 ? Space::kHost : Space::kDevice));
  }
}

TEST_CASE("f32 runs have no master copy, and without training neither gradients nor states",
          "[plan]") {
  const Blueprint blueprint = small();
  const ShardMap shards(blueprint);
  CHECK_FALSE(MemoryPlan(blueprint, shards, {}).has(RegionKind::kMaster));
  const MemoryPlan inference(blueprint, shards, {.training = false});
  CHECK_FALSE(inference.has(RegionKind::kGradients));
  CHECK_FALSE(inference.has(RegionKind::kFirstMoment));
}

TEST_CASE("scratch of one name is shared at its largest; saved buffers are not", "[plan]") {
  Blueprint blueprint = small();
  const BufferRef first = blueprint.add_buffer({"s", {4}, DType::kF32, Lifetime::kScratch});
  const BufferRef larger = blueprint.add_buffer({"s", {70}, DType::kF32, Lifetime::kScratch});
  CHECK(first.index == larger.index);
  CHECK(blueprint.buffers()[static_cast<std::size_t>(first.index)].bytes() == 280);
  CHECK_THROWS_AS(blueprint.add_buffer({"x", {1}, DType::kF32, Lifetime::kSaved}), InternalError);
}

TEST_CASE("the arena allocates the plan to the byte and its buffers do not overlap", "[plan]") {
  const Blueprint blueprint = small();
  const ShardMap shards(blueprint, Mesh({.data_inside = 2}));
  const MemoryPlan plan(blueprint, shards, {.compute_dtype = DType::kBF16, .slots = {2}});
  const Backend backend = make_cpu_backend(1);
  const Arena arena(blueprint, plan, *backend.device);
  CHECK(arena.bytes() == plan.bytes());
  const Tensor x0 = arena.buffer({0}, 0);
  const Tensor y0 = arena.buffer({1}, 0);
  const Tensor x1 = arena.buffer({0}, 1);
  const auto address = [](Tensor tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data());
  };
  CHECK(address(x0) % 64 == 0);
  CHECK(address(x0) + static_cast<std::uintptr_t>(x0.bytes()) <= address(y0));
  CHECK(address(y0) + static_cast<std::uintptr_t>(y0.bytes()) <= address(x1));
  CHECK(arena.unit(RegionKind::kParameters, 1).dtype() == DType::kBF16);
  CHECK(arena.master(1).dtype() == DType::kF32);
  CHECK(arena.master(0).numel() == 64);
  CHECK(address(arena.buffer({2}, 1)) == address(arena.buffer({2}, 0)));  // scratch serves both
  CHECK_THROWS_AS(arena.buffer({0}, 2), InternalError);
  CHECK_THROWS_AS(arena.buffer({2}, 2), InternalError);
}

}  // namespace
}  // namespace dstrain
