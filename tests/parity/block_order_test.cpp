// The vertical order, in which all micro-batches of a step go through a block before the next: the
// bits of one micro-batch after the other, and of stages 0 and 1 in every stage, whose units are
// gathered and reduced once a step.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/tiny_model.h"
#include "tests/parity/tiny_family.h"
#include "tests/parity/zero_ladder.h"

namespace dstrain::test {
namespace {

TinyOptions vertical(TinyOptions options) {
  options.block_order = BlockOrder::kVertical;
  return options;
}

void check_as_planned(const std::vector<TinyRun>& runs) {
  for (const TinyRun& run : runs) {
    CHECK(run.arena_spaces == run.plan_spaces);
    CHECK(run.unplanned_traffic.empty());
  }
}

std::int64_t operations_for(const TinyRun& run, Purpose purpose) {
  return std::count_if(run.traffic.begin(), run.traffic.end(),
                       [&](const CollectiveLog::Entry& entry) { return entry.purpose == purpose; });
}

constexpr RecomputeGranularity kGranularities[] = {
    RecomputeGranularity::kNone, RecomputeGranularity::kSelective, RecomputeGranularity::kFull};

TEST_CASE("block by block, a rank gets the bits of micro-batch by micro-batch",
          "[parity][vertical]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const RecomputeGranularity granularity : kGranularities) {
      for (const Precision precision : {Precision::kF32, Precision::kBF16, Precision::kF16}) {
        std::vector<TinyRun> rows;
        for (const int stage : {0, 1, 2, 3}) {
          CAPTURE(static_cast<int>(family), static_cast<int>(granularity),
                  static_cast<int>(precision), stage);
          const TinyOptions options{.family = family,
                                    .precision = precision,
                                    .micro_batch = 2,
                                    .accumulation = 3,
                                    .gradient_clipping = 0.5,
                                    .zero_stage = stage,
                                    .recompute = {.granularity = granularity},
                                    .loss_scale = precision == Precision::kF16 ? 1024.0 : 1.0,
                                    .steps = 3};
          if (stage == 0) rows = train_ranks(1, options);
          const std::vector<TinyRun> columns = train_ranks(1, vertical(options));
          check_same_bits(columns, rows);
          CHECK(columns[0].grad_norms == rows[0].grad_norms);
          check_as_planned(columns);
        }
      }
    }
  }
}

TEST_CASE("block by block, every stage has the bits of stage 0, and reduces and gathers once",
          "[parity][vertical][zero]") {
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    for (const bool overlap : {false, true}) {
      CAPTURE(static_cast<int>(precision), overlap);
      TinyOptions options{.precision = precision,
                          .micro_batch = 1,
                          .accumulation = 3,
                          .overlap_comm = overlap,
                          .steps = 3};
      const std::vector<TinyRun> rows = train_ranks(2, options);
      for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(stage);
        const std::vector<TinyRun> columns = train_ranks(2, with_stage(vertical(options), stage));
        check_same_bits(columns, rows);
        check_as_planned(columns);
        CHECK(operations_for(columns[0], Purpose::kGradient) == columns[0].num_units);
        // Forward gathers every unit, and backward all but the head, which is still there.
        const std::int64_t gathers[] = {0, columns[0].num_units, columns[0].num_units,
                                        2 * columns[0].num_units - 2};
        CHECK(operations_for(columns[0], Purpose::kParameter) == gathers[stage]);
      }
    }
  }
}

TEST_CASE("block by block, a tied table's gradients are added in another order, and no other",
          "[parity][vertical]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const int ranks : {1, 2}) {
      for (const DType sums : {DType::kF32, DType::kBF16}) {
        const TinyOptions options{
            .family = family,
            .tied = true,
            .precision = sums == DType::kF32 ? Precision::kF32 : Precision::kBF16,
            .micro_batch = 1,
            .accumulation = 4,
            .formats = {.grad_accum = sums},
            .steps = 4};
        const std::vector<TinyRun> rows = train_ranks(ranks, options);
        for (const int stage : {0, 1, 2, 3}) {
          CAPTURE(static_cast<int>(family), ranks, static_cast<int>(sums), stage);
          const std::vector<TinyRun> columns =
              train_ranks(ranks, with_stage(vertical(options), stage));
          CHECK(columns[0].losses[0] == rows[0].losses[0]);
          CHECK(worst_relative(columns[0].losses, rows[0].losses) <
                (sums == DType::kF32 ? 1e-6 : 5e-3));
          CHECK(worst_relative(columns[0].grad_norms, rows[0].grad_norms) <
                (sums == DType::kF32 ? 1e-5 : 2e-2));
          check_as_planned(columns);
        }
      }
    }
  }
}

TEST_CASE("block by block, with blocks' norms behind, around and beside, and split among ranks",
          "[parity][vertical][tensor]") {
  for (const std::string& type : kFamilies) {
    for (const RecomputeGranularity granularity : kGranularities) {
      for (const int tensor_ranks : {1, 2}) {
        for (const bool splits_tokens : {false, true}) {
          if (splits_tokens && tensor_ranks == 1) continue;
          CAPTURE(type, static_cast<int>(granularity), tensor_ranks, splits_tokens);
          TinyOptions options = tiny_family(type);
          options.sequence = 20;
          options.micro_batch = 2;
          options.accumulation = 2;
          options.recompute.granularity = granularity;
          options.steps = 2;
          options.tied = false;
          options.tensor_parallel = {.size = tensor_ranks, .sequence_parallel = splits_tokens};
          const std::vector<TinyRun> rows = train_ranks(tensor_ranks, options);
          const std::vector<TinyRun> columns = train_ranks(tensor_ranks, vertical(options));
          CHECK(columns[0].losses == rows[0].losses);
          CHECK(columns[0].parameters == rows[0].parameters);
          check_as_planned(columns);
        }
      }
    }
  }
}

TEST_CASE("block by block, with dropout, documents, states on a disk and a second copy",
          "[parity][vertical][offload]") {
  TinyOptions options{.family = Family::kGpt2,
                      .micro_batch = 1,
                      .accumulation = 3,
                      .documents = {.end = 3, .attention = true, .masks_borders = true},
                      .dropout = {.embedding = 0.1F, .residual = 0.1F, .attention = 0.1F},
                      .steps = 3};
  const std::vector<TinyRun> rows = train_ranks(1, options);
  options.states = Space::kDisk;
  const std::vector<TinyRun> columns = train_ranks(1, vertical(options));
  check_same_bits(columns, rows);
  check_as_planned(columns);

  TinyOptions four{.micro_batch = 1, .accumulation = 2, .zero_stage = 3, .steps = 3};
  const std::vector<TinyRun> once = train_ranks(4, vertical(four));
  four.zero.secondary_ranks = 2;
  const std::vector<TinyRun> twice = train_ranks(4, vertical(four));
  check_same_bits(twice, once);
  check_as_planned(twice);
}

TEST_CASE("block by block in 8 bits", "[parity][vertical][fp8]") {
  const TinyOptions options{.model = tiny_model_in_16s(Family::kLlama),
                            .precision = Precision::kBF16,
                            .sequence = 16,
                            .micro_batch = 1,
                            .accumulation = 3,
                            .fp8 = {.enabled = true, .amax_history = 2},
                            .steps = 4};
  const std::vector<TinyRun> rows = train_ranks(2, options);
  const std::vector<TinyRun> columns = train_ranks(2, with_stage(vertical(options), 3));
  check_same_bits(columns, rows);
  check_as_planned(columns);
}

}  // namespace
}  // namespace dstrain::test
