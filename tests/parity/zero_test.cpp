// The ladder of equalities for plain data parallelism: how equal mathematics lets two runs be is
// what is demanded.
#include <cmath>

#include <catch2/catch.hpp>

#include "engine/comm/store.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/harness/wire_here.h"

namespace dstrain::test {
namespace {

std::vector<std::unique_ptr<Rendezvous>> socket_world(int size, Store& store) {
  std::vector<std::unique_ptr<Rendezvous>> world;
  for (int rank = 0; rank < size; ++rank) {
    world.push_back(make_process_rendezvous(rank, size, store, {.wire = wire_here()}));
  }
  return world;
}

TEST_CASE("the same config twice gives the same bits", "[parity]") {
  const auto family = GENERATE(Family::kGpt2, Family::kLlama);
  const auto precision = GENERATE(Precision::kF32, Precision::kBF16);
  const TinyOptions options{.family = family, .precision = precision, .gradient_clipping = 1.0};
  const TinyRun first = train_tiny(options);
  const TinyRun second = train_tiny(options);
  CHECK(first.losses == second.losses);
  CHECK(first.grad_norms == second.grad_norms);
  CHECK(first.parameters == second.parameters);
  CHECK(first.losses.back() < first.losses.front());  // and it learns
}

TEST_CASE("the arena holds exactly the plan's bytes", "[parity][memory]") {
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    for (const Family family : {Family::kGpt2, Family::kLlama}) {
      const TinyRun run = train_tiny({.family = family, .precision = precision, .steps = 1});
      CHECK(run.arena_bytes == run.plan_bytes);
      CHECK(run.plan_bytes > 0);
    }
  }
}

TEST_CASE("zero0 over 2 and 4 ranks follows the single-rank run of the same global batch",
          "[parity][zero]") {
  const auto family = GENERATE(Family::kGpt2, Family::kLlama);
  const bool tied = GENERATE(false, true);
  const TinyRun reference =
      train_tiny({.family = family, .tied = tied, .micro_batch = 8, .steps = 20});
  for (const int ranks : {2, 4}) {
    const std::vector<TinyRun> runs =
        train_ranks(ranks, {.family = family, .tied = tied, .micro_batch = 8 / ranks, .steps = 20});
    for (const TinyRun& run : runs) {
      CHECK(worst_relative(run.losses, reference.losses) < 1e-5);  // the batch sum is split
      CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 1e-4);
      CHECK(run.parameters == runs[0].parameters);  // replicas agree exactly
    }
  }
}

TEST_CASE("accumulation follows the same batch in one piece", "[parity]") {
  const TinyRun reference = train_tiny({.micro_batch = 8, .gradient_clipping = 0.5});
  const TinyRun accumulated =
      train_tiny({.micro_batch = 2, .accumulation = 4, .gradient_clipping = 0.5});
  CHECK(worst_relative(accumulated.losses, reference.losses) < 1e-5);
  const std::vector<TinyRun> both =
      train_ranks(2, {.micro_batch = 2, .accumulation = 2, .gradient_clipping = 0.5});
  CHECK(worst_relative(both[0].losses, reference.losses) < 1e-5);
  CHECK(both[0].parameters == both[1].parameters);
}

TEST_CASE("Sockets give what threads give", "[parity]") {
  const auto precision = GENERATE(Precision::kF32, Precision::kBF16);
  const TinyOptions options{.precision = precision, .gradient_clipping = 1.0};
  const std::vector<TinyRun> local = train_ranks(2, options);
  const auto store = make_memory_store();
  const std::vector<TinyRun> over_sockets = thread_world(
      socket_world(2, *store), [&](Rendezvous& rank) { return train_tiny(rank, options); });
  // Two f32 numbers have one sum, whoever adds them: bit for bit.
  CHECK(over_sockets[0].losses == local[0].losses);
  CHECK(over_sockets[0].parameters == local[0].parameters);
  CHECK(over_sockets[1].parameters == local[0].parameters);
}

TEST_CASE("Sockets between 4 ranks follow threads within the order of addition", "[parity]") {
  const TinyOptions options{.micro_batch = 2, .gradient_clipping = 1.0};
  const std::vector<TinyRun> local = train_ranks(4, options);
  const auto store = make_memory_store();
  const std::vector<TinyRun> over_sockets = thread_world(
      socket_world(4, *store), [&](Rendezvous& rank) { return train_tiny(rank, options); });
  CHECK(worst_relative(over_sockets[0].losses, local[0].losses) < 1e-5);
  for (const TinyRun& run : over_sockets) {
    CHECK(run.parameters == over_sockets[0].parameters);
  }
}

TEST_CASE("reducing while backward continues changes no bit", "[parity][zero]") {
  const std::vector<TinyRun> overlapped = train_ranks(2, {.overlap_comm = true});
  const std::vector<TinyRun> inline_runs = train_ranks(2, {.overlap_comm = false});
  CHECK(overlapped[0].parameters == inline_runs[0].parameters);
}

TEST_CASE("zero0 all-reduces every unit's gradient once a step, whatever the accumulation",
          "[parity][zero]") {
  const std::vector<TinyRun> runs =
      train_ranks(2, {.micro_batch = 2, .accumulation = 3, .steps = 2});
  for (const TinyRun& run : runs) {
    int reductions = 0;
    std::int64_t bytes = 0;
    for (const CollectiveLog::Entry& record : run.traffic) {
      CHECK(record.purpose == Purpose::kGradient);
      CHECK(record.op == Op::kAllReduce);
      reductions += 1;
      bytes += record.bytes();
    }
    CHECK(reductions == run.num_units);
    CHECK(bytes == static_cast<std::int64_t>(run.parameters.size()) * 4);
  }
}

}  // namespace
}  // namespace dstrain::test
