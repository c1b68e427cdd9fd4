// The memory that a rank is expected to hold beside its arena, where arithmetic gives it;
// tests/unit/cmd/planned_memory_test.cpp checks that runs agree.
#include "engine/train/library_overhead.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "engine/train/make_run_plan.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

using Catch::Matchers::Contains;

constexpr std::int64_t kMiB = 1 << 20;

/// The bytes of the part whose name begins like this; 0 if there is none.
std::int64_t bytes_of(const std::vector<Overhead>& parts, const std::string& what) {
  for (const Overhead& part : parts) {
    if (part.what.starts_with(what)) {
      return part.bytes;
    }
  }
  return 0;
}

std::vector<Overhead> overhead_of(const Config& config, int world_size, int rank, int threads) {
  return cpu_library_overhead(make_run_plan(config, world_size, rank), threads);
}

TEST_CASE("each group of more than one rank has windows for messages", "[train][plan]") {
  const Config config = tiny_config(
      {.tied = true, .accumulation = 4, .tensor_parallel = {.size = 2}, .pipeline = {.stages = 2}},
      8);
  // World 8, data 2, tensor 2, model 4, pipeline 2, tied 2: 14 peers with 8 segments of 256 KiB, 8
  // KiB for heads of frames and half a page of counts in shared memory each, and 16 KiB and a
  // header of 64 bytes a group; and in groups of more than two, two segments on their way to
  // another host.
  CHECK(bytes_of(overhead_of(config, 8, 3, 1), "messages of 6 groups") ==
        14 * (2 * kMiB + 10 * 1024) + 6 * (16 * 1024 + 64) + 2 * 512 * 1024);
  CHECK(bytes_of(overhead_of(tiny_config({}, 1), 1, 0, 1), "messages") == 0);
  // With very many members segments shrink, down to 32 KiB.
  CHECK(bytes_of(overhead_of(tiny_config({}, 129), 129, 0, 1), "messages of 2 groups") ==
        2 * (128 * (8 * 32 * 1024 + 10 * 1024) + 16 * 1024 + 64 + 64 * 1024));
}

TEST_CASE("a bf16 product's sums are counted where its weight comes in slabs", "[train][plan]") {
  const auto sums = [](std::int64_t width, std::int64_t vocabulary, Precision precision) {
    ModelSpec model = tiny_model(Family::kGpt2);
    model.hidden_size = width;
    model.head_dim = width / model.num_heads;
    model.intermediate_size = 4 * width;
    model.vocab_size = vocabulary;
    const Config config =
        tiny_config({.tied = true, .model = model, .precision = precision, .micro_batch = 4}, 1);
    return bytes_of(overhead_of(config, 1, 0, 2), "sums of matrix products");
  };
  // 76 tokens. 4·1440·1440 weights of 2 bytes are 15.8 MiB, 4·1456·1456 of them 16.2.
  CHECK(sums(1440, 67, Precision::kBF16) == 0);
  CHECK(sums(1456, 67, Precision::kBF16) == 76 * 1456 * 4);
  CHECK(sums(1456, 67, Precision::kF32) == 0);
  CHECK(sums(40, 250'000, Precision::kBF16) == 76 * 40 * 4);
}

TEST_CASE("rank 0 gathers what all ranks have written", "[train][plan]") {
  const Config config = tiny_config({.zero_stage = 1}, 64);
  const std::int64_t first = bytes_of(overhead_of(config, 64, 0, 1), "writing checkpoints");
  const std::int64_t other = bytes_of(overhead_of(config, 64, 1, 1), "writing checkpoints");
  CHECK(first - kMiB == 65 * (other - kMiB));
}

TEST_CASE("every figure says where it comes from, and whether it was measured", "[train][plan]") {
  const Config config = tiny_config({.accumulation = 2, .pipeline = {.stages = 2}}, 4);
  const RunPlan plan = make_run_plan(config, 4, 0);
  const std::vector<Overhead> cpu = cpu_library_overhead(plan, 3);
  const std::vector<Overhead> cuda = cuda_library_overhead(plan);
  for (const Overhead& part : cpu) {
    CHECK(part.bytes > 0);
    CHECK_THAT(part.source, Contains("measured: ") || Contains("formula: "));
  }
  for (const Overhead& part : cuda) {
    CHECK(part.bytes > 0);
    CHECK_THAT(part.source, Contains("published, not measured here") || Contains("measured: "));
  }
  CHECK(bytes_of(cuda, "NCCL, 2 communicators") == 2 * 576 * kMiB);  // data, pipeline
  std::int64_t sum = 0;
  for (const Overhead& part : cpu) {
    sum += part.bytes;
  }
  CHECK(total_bytes(cpu) == sum);
}

}  // namespace
}  // namespace dstrain::test
