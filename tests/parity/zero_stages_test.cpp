// ZeRO 1, 2 and 3: the ladder of equalities, and the truth of their names in recorded traffic and
// bytes. Every comparison demands what mathematics allows: the same bits where the same numbers are
// added in the same order, a bound where the order differs.
#include <cmath>
#include <map>

#include <catch2/catch.hpp>

#include "engine/comm/store.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/tiny_model.h"
#include "tests/harness/wire_here.h"
#include "tests/parity/zero_ladder.h"

namespace dstrain::test {
namespace {

std::vector<TinyRun> train_over_sockets(int ranks, const TinyOptions& options) {
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Rendezvous>> world;
  for (int rank = 0; rank < ranks; ++rank) {
    world.push_back(make_process_rendezvous(rank, ranks, *store, {.wire = wire_here()}));
  }
  return thread_world(std::move(world),
                      [&](Rendezvous& rank) { return train_tiny(rank, options); });
}

/// A hidden size of 7: a tied head is one norm of 7 parameters, which 4 ranks share.
ModelSpec seven_wide() {
  ModelSpec model = tiny_model(Family::kLlama);
  model.hidden_size = 7;
  model.head_dim = 2;
  model.num_heads = 3;
  model.num_key_value_heads = 1;
  model.intermediate_size = 5;
  return model;
}

TEST_CASE("stages 1 to 3 give stage 0's bits with one micro-batch and no clipping",
          "[parity][zero]") {
  const int ranks = GENERATE(2, 4);
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const bool tied = GENERATE(false, true);
  const TinyOptions options{.family = family, .tied = tied, .micro_batch = 2, .steps = 5};
  const std::vector<TinyRun> reference = train_ranks(ranks, options);
  for (const int stage : {1, 2, 3}) {
    CAPTURE(ranks, tied, stage);
    check_same_bits(train_ranks(ranks, with_stage(options, stage)), reference);
  }
}

TEST_CASE("the same in every number format", "[parity][zero]") {
  for (const Formats& formats : kFormats) {
    const TinyOptions options{.tied = true,
                              .precision = formats.precision,
                              .micro_batch = 2,
                              .formats = formats.formats,
                              .steps = 5};
    const std::vector<TinyRun> reference = train_ranks(4, options);
    CHECK(reference[0].losses.back() < reference[0].losses.front());
    // Stages 0 and 1 round each rank's gradient to what they accumulate in, then send it; stages 2
    // and 3 send it, then round the sum: not the same where the wire is wider.
    const bool wider_wire = formats.formats.communication == DType::kF32;
    for (const int stage : {1, 2, 3}) {
      CAPTURE(formats.name, stage);
      const std::vector<TinyRun> runs = train_ranks(4, with_stage(options, stage));
      if (wider_wire && stage >= 2) {
        CHECK(worst_relative(runs[0].losses, reference[0].losses) < 2e-2);
      } else {
        check_same_bits(runs, reference);
      }
    }
  }
}

TEST_CASE("with accumulation stage 1 gives stage 0's bits and stage 3 gives stage 2's",
          "[parity][zero]") {
  const int ranks = GENERATE(2, 4);
  for (const Formats& formats : kFormats) {
    CAPTURE(ranks, formats.name);
    const TinyOptions options{.tied = true,
                              .precision = formats.precision,
                              .micro_batch = 2,
                              .accumulation = 3,
                              .formats = formats.formats,
                              .steps = 4};
    std::vector<std::vector<TinyRun>> stages;
    for (const int stage : {0, 1, 2, 3}) {
      stages.push_back(train_ranks(ranks, with_stage(options, stage)));
    }
    check_same_bits(stages[1], stages[0]);
    check_same_bits(stages[3], stages[2]);
    // Ranks before micro-batches, or micro-batches before ranks; AdamW's first updates have the
    // size of the learning rate whatever the gradient's, so that rounding shows.
    const bool fp32 = formats.precision == Precision::kF32;
    CHECK(worst_relative(stages[2][0].losses, stages[0][0].losses) < (fp32 ? 1e-6 : 2e-2));
  }
}

TEST_CASE("with clipping the stages differ only by the order of the norm's sum", "[parity][zero]") {
  const TinyOptions options{.micro_batch = 2, .gradient_clipping = 0.1, .steps = 10};
  const std::vector<TinyRun> reference = train_ranks(4, options);
  CHECK(reference[0].grad_norms[0] > 0.1);  // it does clip
  for (const int stage : {1, 2, 3}) {
    const std::vector<TinyRun> runs = train_ranks(4, with_stage(options, stage));
    CAPTURE(stage);
    CHECK(worst_relative(runs[0].losses, reference[0].losses) < 1e-6);
    CHECK(worst_relative(runs[0].grad_norms, reference[0].grad_norms) < 1e-6);
    check_same_bits(runs, {runs[0], runs[0], runs[0], runs[0]});  // the ranks agree
  }
}

TEST_CASE("every stage follows the single-rank run of the same global batch", "[parity][zero]") {
  const Family family = GENERATE(Family::kGpt2, Family::kLlama);
  const bool tied = GENERATE(false, true);
  const TinyRun reference = train_tiny(
      {.family = family, .tied = tied, .micro_batch = 8, .gradient_clipping = 0.5, .steps = 20});
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {2, 4}) {
      CAPTURE(tied, stage, ranks);
      const std::vector<TinyRun> runs = train_ranks(ranks, {.family = family,
                                                            .tied = tied,
                                                            .micro_batch = 4 / ranks,
                                                            .accumulation = 2,
                                                            .gradient_clipping = 0.5,
                                                            .zero_stage = stage,
                                                            .steps = 20});
      CHECK(worst_relative(runs[0].losses, reference.losses) < 1e-5);  // the batch sum is split
      CHECK(worst_relative(runs[0].grad_norms, reference.grad_norms) < 1e-4);
      for (const TinyRun& run : runs) {
        CHECK(run.parameters == runs[0].parameters);
      }
    }
  }
}

TEST_CASE("one rank alone may use any stage", "[parity][zero]") {
  for (const std::int64_t micro_batches : {1, 2}) {
    const TinyOptions options{.accumulation = micro_batches, .gradient_clipping = 1.0, .steps = 3};
    const TinyRun reference = train_tiny(options);
    for (const int stage : {1, 2, 3}) {
      CAPTURE(micro_batches, stage);
      const TinyRun run = train_tiny(with_stage(options, stage));
      CHECK(run.arena_bytes == run.plan_bytes);
      if (micro_batches == 1 || stage == 1) {
        CHECK(run.losses == reference.losses);
        CHECK(run.parameters == reference.parameters);
      } else {
        // A micro-batch's gradient is added whole, not product by product.
        CHECK(worst_relative(run.losses, reference.losses) < 1e-6);
      }
    }
  }
}

TEST_CASE("units smaller than the ranks' slices: 7 parameters on 4 ranks", "[parity][zero]") {
  const TinyOptions options{
      .tied = true, .model = seven_wide(), .micro_batch = 2, .accumulation = 2, .steps = 10};
  TinyOptions alone = options;
  alone.micro_batch = 8;
  const TinyRun reference = train_tiny(alone);
  REQUIRE(reference.unit_numel.back() == 7);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const std::vector<TinyRun> runs = train_ranks(4, with_stage(options, stage));
    CHECK(runs[0].unit_padded.back() == 64);  // 16 each: three ranks own nothing of it
    for (const TinyRun& run : runs) {
      CHECK(worst_relative(run.losses, reference.losses) < 1e-5);
      CHECK(run.parameters == runs[0].parameters);
      CHECK(run.arena_bytes == run.plan_bytes);
    }
  }
}

TEST_CASE("Sockets give every stage the bits that threads give", "[parity][zero]") {
  const int ranks = GENERATE(2, 4);
  for (const int stage : {1, 2, 3}) {
    for (const std::size_t format : {0U, 2U, 3U}) {
      const TinyOptions options{.tied = true,
                                .precision = kFormats[format].precision,
                                .micro_batch = 2,
                                .accumulation = 2,
                                .gradient_clipping = 0.5,
                                .zero_stage = stage,
                                .formats = kFormats[format].formats,
                                .steps = 3};
      CAPTURE(ranks, stage, kFormats[format].name);
      check_same_bits(train_over_sockets(ranks, options), train_ranks(ranks, options));
    }
  }
}

TEST_CASE("communication beside computation changes no bit", "[parity][zero]") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const std::size_t format : {0U, 3U}) {
      TinyOptions options{.tied = true,
                          .precision = kFormats[format].precision,
                          .micro_batch = 2,
                          .accumulation = 2,
                          .zero_stage = stage,
                          .formats = kFormats[format].formats,
                          .steps = 4};
      const std::vector<TinyRun> overlapped = train_ranks(2, options);
      options.overlap_comm = false;
      CAPTURE(stage);
      check_same_bits(train_ranks(2, options), overlapped);
    }
  }
}

TEST_CASE("how far stage 3 gathers ahead, and what it keeps, changes no bit", "[parity][zero]") {
  const TinyOptions options{
      .tied = true, .micro_batch = 2, .accumulation = 2, .zero_stage = 3, .steps = 3};
  const std::vector<TinyRun> reference = train_ranks(2, options);
  for (const ZeroConfig& zero : {
           ZeroConfig{.prefetch_bucket_size = 0, .param_persistence_threshold = 0},
           ZeroConfig{.prefetch_bucket_size = 1'000'000, .param_persistence_threshold = 0},
           ZeroConfig{.param_persistence_threshold = 0, .max_reuse_distance = 1'000'000},
           ZeroConfig{.prefetch_bucket_size = 1'000'000,
           .param_persistence_threshold = 0,
           .max_live_parameters = 20'000},
           ZeroConfig{.param_persistence_threshold = 100},  // the head's norm stays whole
           ZeroConfig{.param_persistence_threshold = 1'000'000},
       }) {
    TinyOptions other = options;
    other.zero = zero;
    check_same_bits(train_ranks(2, other), reference);
  }
}

// ---- the truth of the name ---------------------------------------------------------------------

struct Count {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const Count&, const Count&) = default;
};

/// Counts by operation and purpose; the norm's 8 bytes are checked here.
std::map<std::pair<Op, Purpose>, Count> counted(const TinyRun& run) {
  std::map<std::pair<Op, Purpose>, Count> counts;
  for (const CollectiveLog::Entry& entry : run.traffic) {
    if (entry.purpose == Purpose::kOptimizer) {
      CHECK(entry.op == Op::kAllReduce);
      CHECK(entry.bytes() == 8);
      continue;
    }
    Count& count = counts[{entry.op, entry.purpose}];
    count.calls += 1;
    count.bytes += entry.bytes();
  }
  return counts;
}

std::int64_t sum_of(const std::vector<std::int64_t>& values) {
  std::int64_t sum = 0;
  for (const std::int64_t value : values) {
    sum += value;
  }
  return sum;
}

TEST_CASE("what each stage puts on the wire is what its story says", "[parity][zero][traffic]") {
  const std::int64_t micro_batches = GENERATE(1, 3);
  const bool tied = GENERATE(false, true);
  const int ranks = GENERATE(2, 4);
  for (const Formats& formats : {kFormats[0], kFormats[1], kFormats[2], kFormats[3]}) {
    const std::int64_t compute = formats.precision == Precision::kBF16 ? 2 : 4;
    const DType sums = formats.formats.grad_accum.value_or(DType::kF32);
    const std::int64_t wire = size_of(formats.formats.communication.value_or(sums));
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(micro_batches, tied, ranks, formats.name, stage);
      const std::vector<TinyRun> runs = train_ranks(ranks, {.tied = tied,
                                                            .precision = formats.precision,
                                                            .micro_batch = 1,
                                                            .accumulation = micro_batches,
                                                            .zero_stage = stage,
                                                            .formats = formats.formats,
                                                            .steps = 2});
      const TinyRun& run = runs[0];
      const std::int64_t units = run.num_units;
      const std::int64_t psi = sum_of(run.unit_numel);
      const std::int64_t padded = sum_of(run.unit_padded);
      const auto counts = counted(run);
      std::map<std::pair<Op, Purpose>, Count> expected;
      const auto gradient_scatter = std::pair{Op::kReduceScatter, Purpose::kGradient};
      const auto parameter_gather = std::pair{Op::kAllGather, Purpose::kParameter};
      if (stage == 0) {
        expected[{Op::kAllReduce, Purpose::kGradient}] = {units, psi * wire};
      } else if (stage < 3) {
        const std::int64_t times = stage == 1 ? 1 : micro_batches;
        expected[gradient_scatter] = {times * units, times * padded * wire};
        expected[parameter_gather] = {units, padded * compute};
      } else {
        // Forward gathers every unit; backward every block again, and the embedding where the head
        // computes logits with it. The head is still there, and looking up needs no table.
        std::int64_t again = 0;
        for (std::size_t unit = tied ? 0 : 1; unit + 1 < run.unit_padded.size(); ++unit) {
          again += run.unit_padded[unit];
        }
        const std::int64_t calls = units + units - 1 - (tied ? 0 : 1);
        expected[gradient_scatter] = {micro_batches * units, micro_batches * padded * wire};
        expected[parameter_gather] = {micro_batches * calls,
                                      micro_batches * (padded + again) * compute};
      }
      CHECK(counts == expected);

      // In elements, a ring's all-reduce being a reduce-scatter and an all-gather: 2Ψ a step in
      // stages 0 and 1, (m + 1)Ψ in stage 2, 3mΨ in stage 3 but for what it need not gather twice.
      std::int64_t elements = 0;
      for (const auto& [what, count] : counts) {
        const std::int64_t size = what.second == Purpose::kGradient ? wire : compute;
        elements += (what.first == Op::kAllReduce ? 2 : 1) * count.bytes / size;
      }
      const std::int64_t padding = padded - psi;
      const std::int64_t head = run.unit_padded.back();
      const std::int64_t embedding = run.unit_padded.front();
      const std::int64_t story = stage < 2 ? 2 : stage == 2 ? micro_batches + 1 : 3 * micro_batches;
      const std::int64_t spared = stage == 3 ? micro_batches * (head + (tied ? 0 : embedding)) : 0;
      CHECK(elements >= story * psi - spared);
      CHECK(elements <= story * (psi + padding) - spared);
    }
  }
}

TEST_CASE("stage 3 that keeps nothing moves three elements a parameter",
          "[parity][zero][traffic]") {
  // A tied model reads every unit twice; forward's last is backward's first, which is the only
  // gather that can be spared, and it is 40 parameters large.
  const std::vector<TinyRun> runs =
      train_ranks(4, {.tied = true, .micro_batch = 1, .zero_stage = 3, .steps = 2});
  std::int64_t elements = 0;
  for (const auto& [what, count] : counted(runs[0])) {
    elements += count.bytes / 4;
  }
  const std::int64_t psi = sum_of(runs[0].unit_numel);
  const std::int64_t padding = sum_of(runs[0].unit_padded) - psi;
  CHECK(std::abs(elements - 3 * psi) <= 3 * padding + runs[0].unit_padded.back());
}

TEST_CASE("what stage 3 may keep, it does not gather again", "[parity][zero][traffic]") {
  const std::vector<TinyRun> runs =
      train_ranks(2, {.tied = true,
                      .micro_batch = 1,
                      .zero_stage = 3,
                      .zero = {.param_persistence_threshold = 0, .max_reuse_distance = 1'000'000},
                      .steps = 2});
  const auto counts = counted(runs[0]);
  CHECK(counts.at({Op::kAllGather, Purpose::kParameter}) ==
        Count{runs[0].num_units, sum_of(runs[0].unit_padded) * 4});
}

// ---- bytes --------------------------------------------------------------------------------------

std::int64_t bytes_of(const TinyRun& run, std::initializer_list<RegionKind> kinds) {
  std::int64_t bytes = 0;
  for (const Region& region : run.regions) {
    bytes += std::find(kinds.begin(), kinds.end(), region.kind) != kinds.end() ? region.bytes : 0;
  }
  return bytes;
}

TEST_CASE("the arena holds the plan, and the plan holds the papers' formulas",
          "[parity][zero][memory]") {
  const std::int64_t ranks = GENERATE(1, 2, 4);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(ranks, stage);
    const auto model_states = [&](Precision precision, const FormatConfig& formats) {
      const std::vector<TinyRun> runs =
          train_ranks(static_cast<int>(ranks), {.precision = precision,
                                                .micro_batch = 1,
                                                .zero_stage = stage,
                                                .formats = formats,
                                                .steps = 1});
      for (const TinyRun& run : runs) {
        CHECK(run.arena_bytes == run.plan_bytes);
      }
      return std::pair{
          bytes_of(runs[0], {RegionKind::kParameters, RegionKind::kMaster, RegionKind::kGradients,
                             RegionKind::kFirstMoment, RegionKind::kSecondMoment}),
          sum_of(runs[0].unit_padded)};
    };
    // Rajbhandari et al. 2020, §5: 2 + 2 + 12 bytes, of which stage 1 cuts the optimizer's 12,
    // stage 2 also the gradients' 2, stage 3 all. Ψ with its padding.
    const auto [bf16, psi] = model_states(Precision::kBF16, {.grad_accum = DType::kBF16});
    const std::int64_t formula[] = {16 * psi, 4 * psi + 12 * psi / ranks,
                                    2 * psi + 14 * psi / ranks, 16 * psi / ranks};
    CHECK(bf16 == formula[stage]);
    // fp32 sums: 2 bytes more a gradient kept.
    const std::int64_t more[] = {2 * psi, 2 * psi, 2 * psi / ranks, 2 * psi / ranks};
    CHECK(model_states(Precision::kBF16, {}).first == formula[stage] + more[stage]);
    // fp32: 4 + 4 + 8, and the parameters are the master.
    const std::int64_t fp32[] = {16 * psi, 8 * psi + 8 * psi / ranks, 4 * psi + 12 * psi / ranks,
                                 16 * psi / ranks};
    CHECK(model_states(Precision::kF32, {}).first == fp32[stage]);
  }
}

TEST_CASE("buckets and gathered units take two blocks, not the model", "[parity][zero][memory]") {
  ModelSpec deep = tiny_model(Family::kLlama);
  deep.num_layers = 8;
  const auto regions_of = [&](bool overlap) {
    return train_ranks(
        2,
        {.model = deep, .micro_batch = 1, .overlap_comm = overlap, .zero_stage = 3, .steps = 1})[0];
  };
  const TinyRun run = regions_of(true);
  const std::int64_t block = run.unit_padded[1];
  CHECK(bytes_of(run, {RegionKind::kGradientBuckets}) == 2 * block * 4);
  CHECK(bytes_of(run, {RegionKind::kGathered}) == 2 * block * 4);
  CHECK(bytes_of(regions_of(false), {RegionKind::kGradientBuckets}) == block * 4);
}

}  // namespace
}  // namespace dstrain::test
