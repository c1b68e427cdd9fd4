// ZeRO 3 within groups of neighbouring ranks (mics_shard_size): what every group has once, and the
// bits that follow from the order in which gradients are added: within a group, then over groups.
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/tiny_model.h"
#include "tests/parity/zero_ladder.h"

namespace dstrain::test {
namespace {

TinyOptions in_groups(int ranks, TinyOptions options) {
  options.zero_stage = 3;
  options.zero.shard_ranks = ranks;
  return options;
}

void check_planned(const std::vector<TinyRun>& runs) {
  for (const TinyRun& run : runs) {
    CHECK(run.arena_spaces == run.plan_spaces);
    CHECK(run.unplanned_traffic == "");
    CHECK(run.parameters == runs[0].parameters);
    CHECK(run.grad_norms == runs[0].grad_norms);
  }
}

void check_close(const TinyRun& run, const TinyRun& reference, double bound) {
  CHECK(worst_relative(run.losses, reference.losses) < bound);
  CHECK(worst_relative(run.grad_norms, reference.grad_norms) < 10 * bound);
}

/// Bytes of a purpose within groups of neighbours, and everywhere else.
struct Bytes {
  std::int64_t inside = 0;
  std::int64_t elsewhere = 0;
};
Bytes bytes_of(const TinyRun& run, Purpose purpose) {
  Bytes bytes;
  for (const CollectiveLog::Entry& entry : run.traffic) {
    if (entry.purpose != purpose) continue;
    const bool inside = entry.group.starts_with("data-parallel neighbours");
    (inside ? bytes.inside : bytes.elsewhere) += entry.bytes();
  }
  return bytes;
}

/// Runs of two ranks, and of four in groups of two with half as many micro-batches, as `options`
/// has them: both add (first + second) + (third + fourth) and cut into two slices.
struct TwoAndFour {
  TinyOptions options;
  std::vector<TinyRun> two;
  std::vector<TinyRun> four;
};
TwoAndFour two_and_four(const Formats& formats, bool tied, bool overlap, const ZeroConfig& zero) {
  TwoAndFour runs{.options = {.tied = tied,
                              .precision = formats.precision,
                              .micro_batch = 2,
                              .accumulation = 2,
                              .gradient_clipping = 0.5,
                              .overlap_comm = overlap,
                              .zero_stage = 3,
                              .zero = zero,
                              .formats = formats.formats,
                              .steps = 3,
                              .dealt = {0, 2, 1, 3}}};
  runs.two = train_ranks(2, runs.options);
  runs.options.accumulation = 1;
  runs.options.dealt = {};
  runs.four = train_ranks(4, in_groups(2, runs.options));
  check_planned(runs.four);
  return runs;
}

TEST_CASE("two groups of two give the bits of two ranks with twice the micro-batches",
          "[parity][zero][mics]") {
  for (const Formats& formats : kFormats) {
    for (const bool tied : {false, true}) {
      for (const bool overlap : {false, true}) {
        CAPTURE(formats.name, tied, overlap);
        const auto [options, two, four] =
            two_and_four(formats, tied, overlap, {.param_persistence_threshold = 0});
        // Sums that are rounded on the wire, or where they are kept, round elsewhere.
        const bool rounds_alike = formats.formats.communication.value_or(DType::kF32) ==
                                  formats.formats.grad_accum.value_or(DType::kF32);
        if (rounds_alike || (formats.formats.grad_accum && !formats.formats.communication)) {
          CHECK(four[0].parameters == two[0].parameters);
          CHECK(four[0].grad_norms == two[0].grad_norms);
          CHECK(worst_relative(four[0].losses, two[0].losses) < 1e-12);  // added in another order
        } else {
          check_close(four[0], two[0], 1e-3);
        }
        // Each rank keeps what each of two does.
        CHECK(four[0].arena_bytes == two[0].arena_bytes);
      }
    }
  }
}

TEST_CASE("two groups of two whose gradients travel in 4 bits give the bits of two ranks likewise",
          "[parity][zero][mics][qgz]") {
  for (const Formats& formats : kFormats) {
    for (const bool tied : {false, true}) {
      for (const bool overlap : {false, true}) {
        CAPTURE(formats.name, tied, overlap);
        auto [options, two, four] =
            two_and_four(formats, tied, overlap,
                         {.quantized_gradients = true, .param_persistence_threshold = 0});
        // What has been decoded is added up in f32; sums that are rounded then, to travel between
        // the groups or where they are kept, are of one group or of both.
        const bool rounds_none =
            formats.formats.communication.value_or(DType::kF32) == DType::kF32 &&
            formats.formats.grad_accum.value_or(DType::kF32) == DType::kF32;
        if (rounds_none) {
          CHECK(four[0].parameters == two[0].parameters);
          CHECK(four[0].grad_norms == two[0].grad_norms);
          CHECK(worst_relative(four[0].losses, two[0].losses) < 1e-12);
        } else {
          check_close(four[0], two[0], 1e-3);
        }
        options.zero.quantized_gradients = false;
        const std::vector<TinyRun> whole = train_ranks(4, in_groups(2, options));
        CHECK(four[0].parameters != whole[0].parameters);
        const Bytes coded = bytes_of(four[0], Purpose::kGradient);
        const Bytes plain = bytes_of(whole[0], Purpose::kGradient);
        CHECK(coded.elsewhere == plain.elsewhere);
        CHECK(coded.inside > 0);
        CHECK(3 * coded.inside < plain.inside);  // of numbers of 16 bits or 32
      }
    }
  }
}

TEST_CASE("groups of all ranks, or of one, give the bits of stage 3", "[parity][zero][mics]") {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const TinyOptions options{.family = family, .micro_batch = 2, .zero_stage = 3, .steps = 3};
    const std::vector<TinyRun> plain = train_ranks(4, options);
    const std::vector<TinyRun> all = train_ranks(4, in_groups(4, options));
    check_same_bits(all, plain);
    CHECK(all[0].grad_norms == plain[0].grad_norms);
    // The sum goes over all four at once here too.
    const std::vector<TinyRun> alone = train_ranks(4, in_groups(1, options));
    check_planned(alone);
    check_same_bits(alone, plain);
  }
}

TEST_CASE("groups follow stage 3 with accumulation, and no parameters cross between them",
          "[parity][zero][mics]") {
  for (const Formats& formats : kFormats) {
    for (const int accumulation : {1, 3}) {
      for (const std::int64_t persistence : {0, 100'000}) {
        CAPTURE(formats.name, accumulation, persistence);
        const TinyOptions options{.precision = formats.precision,
                                  .micro_batch = 2,
                                  .accumulation = accumulation,
                                  .gradient_clipping = 0.5,
                                  .zero_stage = 3,
                                  .zero = {.param_persistence_threshold = persistence},
                                  .formats = formats.formats,
                                  .steps = 4};
        const std::vector<TinyRun> plain = train_ranks(4, options);
        const std::vector<TinyRun> grouped = train_ranks(4, in_groups(2, options));
        check_planned(grouped);
        check_close(grouped[0], plain[0], formats.precision == Precision::kF32 ? 1e-5 : 2e-3);
        const Bytes parameters = bytes_of(grouped[0], Purpose::kParameter);
        CHECK(parameters.inside > 0);
        CHECK(parameters.elsewhere == 0);
        // Across the groups: a slice of every unit's gradient, once a step.
        std::int64_t slices = 0;
        for (const std::int64_t padded : grouped[0].unit_padded) {
          slices += padded / 2;
        }
        const FormatConfig& wire = formats.formats;
        const DType kept = wire.grad_accum.value_or(DType::kF32);
        CHECK(bytes_of(grouped[0], Purpose::kGradient).elsewhere ==
              slices * size_of(wire.communication.value_or(kept)));
      }
    }
  }
}

TEST_CASE("groups follow stage 3 with every optimizer, with offloading and in any layout",
          "[parity][zero][mics]") {
  std::vector<TinyOptions> cases;
  const TinyOptions base{.micro_batch = 2, .accumulation = 2, .gradient_clipping = 0.5, .steps = 3};
  for (const OptimizerKind kind :
       {OptimizerKind::kLamb, OptimizerKind::kMuon, OptimizerKind::kLion}) {
    cases.push_back(base);
    cases.back().optimizer.kind = kind;
  }
  cases.push_back(base);
  cases.back().states = Space::kDisk;
  cases.push_back(base);
  cases.back().states = cases.back().parameters = Space::kHost;
  cases.push_back(base);
  cases.back().tied = true;
  cases.back().tensor_parallel = {.size = 2, .sequence_parallel = true};
  cases.back().sequence = 20;
  cases.push_back(base);
  cases.back().tied = true;
  cases.back().pipeline = {.stages = 2};
  cases.push_back(base);
  cases.back().block_order = BlockOrder::kVertical;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    const TinyOptions& options = cases[i];
    const int ranks = 4 * options.tensor_parallel.size * options.pipeline.stages;
    const std::vector<TinyRun> plain = train_ranks(ranks, with_stage(options, 3));
    const std::vector<TinyRun> grouped = train_ranks(ranks, in_groups(2, options));
    check_close(grouped[0], plain[0], 1e-5);
    for (const TinyRun& run : grouped) {
      CHECK(run.arena_spaces == run.plan_spaces);
      CHECK(run.unplanned_traffic == "");
      CHECK(run.grad_norms == grouped[0].grad_norms);
    }
  }
}

}  // namespace
}  // namespace dstrain::test
