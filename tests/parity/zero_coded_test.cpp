// ZeRO++: parameters that travel in 8 bits. What is sent, byte by byte; which runs still have each
// other's bits; and how near training stays to that with whole numbers.
#include <algorithm>
#include <cstdint>
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

/// Bytes of all units, each in `slices` coded slices.
std::int64_t coded_bytes(const TinyRun& run, const BlockCode& code, int slices) {
  std::int64_t bytes = 0;
  for (const std::int64_t padded : run.unit_padded) {
    bytes += slices * code.bytes(padded / slices);
  }
  return bytes;
}

constexpr BlockCode kEightBits{.bits = 8};

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
        CHECK(share < 1.02 / static_cast<double>(size));
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

}  // namespace
}  // namespace dstrain::test
