// Rows travel to experts of other ranks and back while others compute: the same bits as one after
// the other, which is how overlap_comm false has it.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/train/make_run_plan.h"
#include "engine/train/step_price.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/harness/sweep.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

TinyOptions experts_of(const std::string& family, int ranks) {
  TinyOptions options = tiny_experts(family);
  options.micro_batch = 2;
  options.accumulation = 8 / ranks / 2;
  options.expert_parallel.size = ranks;
  options.steps = 6;
  return options;
}

TEST_CASE("rows that travel while others compute give the same bits", "[parity][experts]") {
  int met = 0;
  for (const std::string family : {"deepseek_v2", "mixtral", "gpt_oss"}) {
    for (const int ranks : {2, 4}) {
      for (const int zero : {0, 2, 3}) {
        for (const RecomputeGranularity recompute :
             {RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
              RecomputeGranularity::kFull}) {
          for (const bool drops : {false, true}) {
            if (met++ % testing::one_in_if_sanitized(5) != 0) continue;
            CAPTURE(family, ranks, zero, static_cast<int>(recompute), drops);
            TinyOptions beside = experts_of(family, ranks);
            beside.zero_stage = zero;
            beside.recompute.granularity = recompute;
            if (drops) beside.expert_capacity_factor = 0.9;
            TinyOptions in_turn = beside;
            in_turn.overlap_comm = false;
            const std::vector<TinyRun> runs = train_ranks(ranks, beside);
            const std::vector<TinyRun> expected = train_ranks(ranks, in_turn);
            for (std::size_t rank = 0; rank < runs.size(); ++rank) {
              CHECK(runs[rank].losses == expected[rank].losses);
              CHECK(runs[rank].grad_norms == expected[rank].grad_norms);
              CHECK(runs[rank].parameters == expected[rank].parameters);
              CHECK(runs[rank].unplanned_traffic == "");
              CHECK(runs[rank].arena_bytes == runs[rank].plan_bytes);
            }
          }
        }
      }
    }
  }
}

/// Elements of a step's rows and numbers that travel beside something, by the plan, and of all.
struct Beside {
  std::int64_t beside = 0;
  std::int64_t all = 0;
};
Beside beside_of(const TinyOptions& options) {
  const Config config = tiny_config(options, 2);
  const RunPlan plan =
      make_run_plan(config, 2, 0, schedule_of(config), zero_placement(cuts_of(config.zero.stage)));
  Beside elements;
  plan.traffic.for_each([&](const Transfer& transfer, std::int64_t times) {
    if (transfer.group != GroupId::kExperts || transfer.dtype == DType::kI32) return;
    elements.all += times * transfer.elements;
    elements.beside += transfer.is_beside ? times * transfer.elements : 0;
  });
  return elements;
}

TEST_CASE("what travels beside is planned, and there is a stream for it", "[parity][experts]") {
  TinyOptions options = experts_of("deepseek_v2", 2);
  const std::int64_t rows = 2 * 19 * 3;  // of a micro-batch and layer
  const std::int64_t rows_elements = rows * options.model->hidden_size;
  const std::int64_t once = options.accumulation;  // of two layers one has experts
  const Beside shared = beside_of(options);
  CHECK(shared.all == once * (4 * rows_elements + 2 * rows));
  CHECK(shared.beside == once * (3 * rows_elements + 2 * rows));
  options.model->experts.shared_width = 0;
  CHECK(beside_of(options).beside == once * (rows_elements + rows));
  options.overlap_comm = false;
  CHECK(beside_of(options).beside == 0);
  for (const bool overlap : {false, true}) {
    options.overlap_comm = overlap;
    const Config config = tiny_config(options, 2);
    const std::vector<bool> has_stream = thread_world(2, [&](Rendezvous& rendezvous) {
      const auto engine = make_tiny_engine(config, rendezvous, nullptr);
      return engine->context().expert_passing != nullptr;
    });
    CHECK(has_stream == std::vector<bool>{overlap, overlap});
  }
}

}  // namespace
}  // namespace dstrain::test
