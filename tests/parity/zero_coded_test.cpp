// ZeRO++: parameters that travel in 8 bits and gradients that do in 4. What is sent, byte by byte;
// which runs still have each other's bits; and how near training stays to that with whole numbers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/math/block_code.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/zero_ladder.h"

namespace dstrain::test {
namespace {

void check_planned(const std::vector<TinyRun>& runs) {
  for (const TinyRun& run : runs) {
    CHECK(run.arena_spaces == run.plan_spaces);
    CHECK(run.unplanned_traffic == "");
    CHECK(run.parameters == runs[0].parameters);
    CHECK(run.grad_norms == runs[0].grad_norms);
  }
}

/// Bytes of the operations of a purpose in groups whose name begins so.
std::int64_t bytes_of(const TinyRun& run, Purpose purpose, const std::string& group) {
  return std::accumulate(run.traffic.begin(), run.traffic.end(), std::int64_t{0},
                         [&](std::int64_t total, const CollectiveLog::Entry& entry) {
                           const bool counts =
                               entry.purpose == purpose && entry.group.starts_with(group);
                           return total + (counts ? entry.bytes() : 0);
                         });
}

const std::string kAllRanks = "data-parallel (";
const std::string kNeighbours = "data-parallel neighbours (";
const std::string kAcross = "data-parallel across neighbours (";

/// Bytes of all units, each in `slices` coded slices.
std::int64_t coded_bytes(const TinyRun& run, const BlockCode& code, int slices) {
  std::int64_t bytes = 0;
  for (const std::int64_t padded : run.unit_padded) {
    bytes += slices * code.bytes(padded / slices);
  }
  return bytes;
}

constexpr BlockCode kEightBits{.bits = 8};
constexpr BlockCode kFourBits{.bits = 4};

/// All of ZeRO++ on four ranks, as on two hosts of two.
TinyOptions all_of_it(TinyOptions options) {
  options.zero_stage = 3;
  options.zero = {.secondary_ranks = 2,
                  .quantized_weights = true,
                  .quantized_gradients = true,
                  .param_persistence_threshold = 0};
  return options;
}

TEST_CASE("parameters in 8 bits are sent as planned, and nothing else changes place",
          "[parity][zero][qwz]") {
  for (const Formats& formats : kFormats) {
    for (const bool tied : {false, true}) {
      for (const bool overlap : {false, true}) {
        CAPTURE(formats.name, tied, overlap);
        TinyOptions options{.tied = tied,
                            .precision = formats.precision,
                            .micro_batch = 2,
                            .accumulation = 2,
                            .gradient_clipping = 0.5,
                            .overlap_comm = overlap,
                            .zero_stage = 3,
                            .formats = formats.formats,
                            .steps = 3};
        const std::vector<TinyRun> plain = train_ranks(4, options);
        options.zero.quantized_weights = true;
        const std::vector<TinyRun> coded = train_ranks(4, options);
        check_planned(coded);
        CHECK(coded[0].parameters != plain[0].parameters);
        CHECK(worst_relative(coded[0].losses, plain[0].losses) < 2e-3);
        // As often as without, in fewer bytes.
        const std::int64_t size = formats.precision == Precision::kF32 ? 4 : 2;
        std::int64_t most = 0;
        std::int64_t gathered = 0;
        for (const CollectiveLog::Entry& entry : coded[0].traffic) {
          if (entry.purpose != Purpose::kParameter) continue;
          CHECK(entry.dtype == DType::kU8);
          most = std::max(most, entry.bytes());
          ++gathered;
        }
        CHECK(gathered == std::count_if(plain[0].traffic.begin(), plain[0].traffic.end(),
                                        [](const CollectiveLog::Entry& entry) {
                                          return entry.purpose == Purpose::kParameter;
                                        }));
        const double share =
            static_cast<double>(bytes_of(coded[0], Purpose::kParameter, kAllRanks)) /
            static_cast<double>(bytes_of(plain[0], Purpose::kParameter, kAllRanks));
        CHECK(share > 1.0 / static_cast<double>(size));
        CHECK(share < 1.03 / static_cast<double>(size));
        CHECK(coded[0].arena_bytes - plain[0].arena_bytes == most);
      }
    }
  }
}

TEST_CASE("a second copy holds decoded parameters: the same bits, half a 16-bit copy across hosts",
          "[parity][zero][qwz][hpz]") {
  for (const Formats& formats : kFormats) {
    for (const int accumulation : {1, 3}) {
      CAPTURE(formats.name, accumulation);
      TinyOptions options{.precision = formats.precision,
                          .micro_batch = 2,
                          .accumulation = accumulation,
                          .gradient_clipping = 0.5,
                          .zero_stage = 3,
                          .zero = {.quantized_weights = true, .param_persistence_threshold = 0},
                          .formats = formats.formats,
                          .steps = 3};
      const std::vector<TinyRun> once = train_ranks(4, options);
      options.zero.secondary_ranks = 2;
      const std::vector<TinyRun> twice = train_ranks(4, options);
      check_planned(twice);
      check_same_bits(twice, once);
      CHECK(twice[0].grad_norms == once[0].grad_norms);
      // The forward of the first micro-batch; nothing in backward (Wang et al. 2023, table 1).
      CHECK(bytes_of(twice[0], Purpose::kParameter, kAllRanks) ==
            coded_bytes(twice[0], kEightBits, 4));
      CHECK(bytes_of(twice[0], Purpose::kParameter, kNeighbours) > 0);
    }
  }
}

TEST_CASE("coded parameters give the same bits in groups, with offloading and in any order",
          "[parity][zero][qwz]") {
  TinyOptions options{.micro_batch = 2,
                      .accumulation = 2,
                      .gradient_clipping = 0.5,
                      .zero_stage = 3,
                      .zero = {.quantized_weights = true, .param_persistence_threshold = 0},
                      .steps = 3,
                      .dealt = {0, 2, 1, 3}};
  const std::vector<TinyRun> two = train_ranks(2, options);
  TinyOptions grouped = options;
  grouped.accumulation = 1;
  grouped.dealt = {};
  grouped.zero.shard_ranks = 2;
  const std::vector<TinyRun> four = train_ranks(4, grouped);
  check_planned(four);
  CHECK(four[0].parameters == two[0].parameters);
  CHECK(four[0].grad_norms == two[0].grad_norms);
  CHECK(bytes_of(four[0], Purpose::kParameter, kAllRanks) == 0);

  options.dealt = {};
  const std::vector<TinyRun> beside = train_ranks(2, options);
  options.states = options.parameters = Space::kHost;
  const std::vector<TinyRun> on_host = train_ranks(2, options);
  check_planned(on_host);
  check_same_bits(on_host, beside);
  options.states = Space::kDisk;
  options.parameters = Space::kDevice;
  check_same_bits(train_ranks(2, options), beside);

  // One rank has nothing to send.
  options = {.zero_stage = 3, .steps = 2};
  const TinyRun plain = train_tiny(options);
  options.zero.quantized_weights = true;
  const TinyRun alone = train_tiny(options);
  CHECK(alone.parameters == plain.parameters);
  CHECK(alone.arena_bytes == plain.arena_bytes);
}

TEST_CASE("with all of ZeRO++ hosts exchange half of the parameters and a quarter of the gradients",
          "[parity][zero][qgz]") {
  // Wang et al. 2023, table 1: M forward, M backward and M of gradients across hosts become 0.5 M,
  // nothing and 0.25 M; M is the parameters in 16 bits.
  for (const Formats& formats : kFormats) {
    for (const int accumulation : {1, 2}) {
      CAPTURE(formats.name, accumulation);
      ModelSpec model = tiny_model(Family::kLlama);
      model.hidden_size = 80;
      model.head_dim = 20;
      model.intermediate_size = 256;
      const std::vector<TinyRun> runs = train_ranks(4, all_of_it({.model = model,
                                                                  .precision = formats.precision,
                                                                  .micro_batch = 2,
                                                                  .accumulation = accumulation,
                                                                  .gradient_clipping = 0.5,
                                                                  .formats = formats.formats,
                                                                  .steps = 2}));
      check_planned(runs);
      const TinyRun& run = runs[0];
      const std::int64_t across_forward = bytes_of(run, Purpose::kParameter, kAllRanks);
      CHECK(across_forward == coded_bytes(run, kEightBits, 4));
      CHECK(bytes_of(run, Purpose::kParameter, kAcross) == 0);
      CHECK(bytes_of(run, Purpose::kGradient, kAllRanks) == 0);
      const std::int64_t coded = coded_bytes(run, kFourBits, 4);
      CHECK(bytes_of(run, Purpose::kGradient, kNeighbours) == accumulation * coded);
      CHECK(bytes_of(run, Purpose::kGradient, kAcross) == accumulation * coded / 2);
      const std::int64_t gradients_of_host = 2 * bytes_of(run, Purpose::kGradient, kAcross);
      const std::int64_t m =
          2 * std::accumulate(run.unit_padded.begin(), run.unit_padded.end(), std::int64_t{0});
      const auto in_m = [&](std::int64_t bytes) {
        return static_cast<double>(bytes) / static_cast<double>(m);
      };
      // And the scales: 1.6 % in 8 bits, 3.1 % in 4, and a little that slices end with.
      CHECK(in_m(across_forward) == Approx(0.5 * 1.016).epsilon(0.005));
      CHECK(in_m(gradients_of_host) == Approx(0.25 * 1.031 * accumulation).epsilon(0.01));
      for (const CollectiveLog::Entry& entry : run.traffic) {
        CHECK(entry.op != Op::kReduceScatter);
      }
    }
  }
}

TEST_CASE("gradients in 4 bits go straight to their owners where there are no neighbours",
          "[parity][zero][qgz]") {
  for (const Formats& formats : kFormats) {
    for (const bool tied : {false, true}) {
      for (const bool overlap : {false, true}) {
        CAPTURE(formats.name, tied, overlap);
        TinyOptions options{.tied = tied,
                            .precision = formats.precision,
                            .micro_batch = 2,
                            .accumulation = 2,
                            .gradient_clipping = 0.5,
                            .overlap_comm = overlap,
                            .zero_stage = 3,
                            .formats = formats.formats,
                            .steps = 3};
        const std::vector<TinyRun> plain = train_ranks(3, options);
        options.zero.quantized_gradients = true;
        const std::vector<TinyRun> coded = train_ranks(3, options);
        check_planned(coded);
        CHECK(worst_relative(coded[0].losses, plain[0].losses) < 1e-2);
        CHECK(coded[0].parameters != plain[0].parameters);
        CHECK(bytes_of(coded[0], Purpose::kGradient, kAllRanks) ==
              2 * coded_bytes(coded[0], kFourBits, 3));
        // The same bits again, and whether or not anything overlaps.
        options.overlap_comm = !overlap;
        check_same_bits(train_ranks(3, options), coded);
      }
    }
  }
}

TEST_CASE("gradients in 4 bits go first among neighbours that hold no second copy: the same bits",
          "[parity][zero][qgz]") {
  for (const Formats& formats : kFormats) {
    for (const bool overlap : {false, true}) {
      for (const int neighbours : {2, 3}) {
        CAPTURE(formats.name, overlap, neighbours);
        TinyOptions options{.precision = formats.precision,
                            .micro_batch = 2,
                            .accumulation = 2,
                            .gradient_clipping = 0.5,
                            .overlap_comm = overlap,
                            .zero_stage = 3,
                            .zero = {.secondary_ranks = neighbours,
                                     .quantized_gradients = true,
                                     .param_persistence_threshold = 0},
                            .formats = formats.formats,
                            .steps = 3};
        const std::vector<TinyRun> with_copy = train_ranks(6, options);
        options.zero.secondary_ranks = 1;
        options.zero.gradient_ranks = neighbours;
        const std::vector<TinyRun> runs = train_ranks(6, options);
        check_planned(runs);
        check_same_bits(runs, with_copy);
        CHECK(runs[0].grad_norms == with_copy[0].grad_norms);
        CHECK(runs[0].arena_bytes < with_copy[0].arena_bytes);
        const std::int64_t coded = coded_bytes(runs[0], kFourBits, 6);
        CHECK(bytes_of(runs[0], Purpose::kGradient, kNeighbours) == 2 * coded);
        CHECK(bytes_of(runs[0], Purpose::kGradient, kAcross) == 2 * coded / neighbours);
        CHECK(bytes_of(runs[0], Purpose::kGradient, kAllRanks) == 0);
        CHECK(bytes_of(runs[0], Purpose::kParameter, kNeighbours) == 0);
        options.zero.gradient_ranks = 1;
        const std::vector<TinyRun> at_once = train_ranks(6, options);
        CHECK(bytes_of(at_once[0], Purpose::kGradient, kAllRanks) == 2 * coded);
        CHECK(at_once[0].parameters != runs[0].parameters);  // coded once, not twice
      }
    }
  }
}

TEST_CASE("an overflow in fp16 goes through 4 bits and skips the update on all ranks",
          "[parity][zero][qgz]") {
  TinyOptions options = all_of_it({.precision = Precision::kF16, .micro_batch = 2, .steps = 1});
  const std::vector<TinyRun> good = train_ranks(4, options);
  CHECK(std::isfinite(good[0].grad_norms[0]));
  options.loss_scale = 1e12;
  const std::vector<TinyRun> once = train_ranks(4, options);
  options.steps = 2;
  const std::vector<TinyRun> twice = train_ranks(4, options);
  for (const TinyRun& run : twice) {
    CHECK_FALSE(std::isfinite(run.grad_norms[0]));
    CHECK_FALSE(std::isfinite(run.grad_norms[1]));
    CHECK(run.parameters == once[0].parameters);
  }
  CHECK(once[0].parameters != good[0].parameters);
}

TEST_CASE("all of ZeRO++ has the same bits with recomputing and wherever states lie",
          "[parity][zero][qgz][offload]") {
  const TinyOptions options = all_of_it({.tied = true,
                                         .precision = Precision::kBF16,
                                         .micro_batch = 2,
                                         .accumulation = 3,
                                         .gradient_clipping = 0.5,
                                         .steps = 3});
  const std::vector<TinyRun> plain = train_ranks(4, options);
  std::vector<TinyOptions> others(4, options);
  others[0].recompute.granularity = RecomputeGranularity::kFull;
  others[1].states = Space::kDisk;
  others[2].states = others[2].parameters = Space::kHost;
  others[3].overlap_comm = false;
  for (std::size_t i = 0; i < others.size(); ++i) {
    CAPTURE(i);
    const std::vector<TinyRun> runs = train_ranks(4, others[i]);
    check_planned(runs);
    check_same_bits(runs, plain);
    CHECK(runs[0].grad_norms == plain[0].grad_norms);
  }
}

TEST_CASE("all of ZeRO++ goes with any number of hosts and with other ways to divide a model",
          "[parity][zero][qgz]") {
  struct Case {
    int ranks;
    int neighbours;
    int tensor;
    int pipeline;
  };
  // Three hosts of two, two of three; then two of two, divided once more.
  for (const Case& at : {Case{6, 2, 1, 1}, Case{6, 3, 1, 1}, Case{8, 2, 2, 1}, Case{8, 2, 1, 2}}) {
    CAPTURE(at.ranks, at.neighbours, at.tensor, at.pipeline);
    TinyOptions options{.sequence = 20,
                        .micro_batch = 2,
                        .accumulation = 2,
                        .gradient_clipping = 0.5,
                        .zero_stage = 3,
                        .tensor_parallel = {.size = at.tensor, .sequence_parallel = at.tensor > 1},
                        .pipeline = {.stages = at.pipeline},
                        .steps = 4};
    const std::vector<TinyRun> plain = train_ranks(at.ranks, options);
    const TinyOptions coded = [&] {
      TinyOptions all = all_of_it(options);
      all.zero.secondary_ranks = at.neighbours;
      return all;
    }();
    const std::vector<TinyRun> runs = train_ranks(at.ranks, coded);
    CHECK(worst_relative(runs[0].losses, plain[0].losses) < 1e-2);
    for (const TinyRun& run : runs) {
      CHECK(run.arena_spaces == run.plan_spaces);
      CHECK(run.unplanned_traffic == "");
      CHECK(run.grad_norms == runs[0].grad_norms);
    }
  }
}

TEST_CASE("all of ZeRO++ learns as whole numbers do", "[parity][zero][qgz]") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const TinyOptions options{.precision = Precision::kBF16,
                              .micro_batch = 2,
                              .gradient_clipping = 1.0,
                              .zero_stage = 3,
                              .steps = 300,
                              .seed = seed};
    const std::vector<double> plain = train_ranks(4, options)[0].losses;
    const std::vector<TinyRun> runs = train_ranks(4, all_of_it(options));
    check_planned(runs);
    // Of the last steps together: single ones go up and down by the samples that they see.
    const auto end_of = [](const std::vector<double>& losses) {
      return std::accumulate(losses.end() - 30, losses.end(), 0.0) / 30.0;
    };
    CAPTURE(seed, plain.front(), end_of(plain), end_of(runs[0].losses));
    CHECK(end_of(plain) < 0.75 * plain.front());
    CHECK(end_of(runs[0].losses) == Approx(end_of(plain)).epsilon(0.01));
    if (std::getenv("DSTRAIN_SHOW_LOSSES") != nullptr) {
      std::cout << fmt::format("seed {}: from {:.4f} to {:.5f}, with ZeRO++ to {:.5f}\n", seed,
                               plain.front(), end_of(plain), end_of(runs[0].losses));
    }
  }
}

}  // namespace
}  // namespace dstrain::test
