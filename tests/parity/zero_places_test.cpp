// ZeRO with states or parameters in another place than the device, or with a second copy of the
// parameters: the bits of the same stage without, and in every space the bytes of the plan.
#include <cstdint>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/tiny_model.h"
#include "tests/parity/zero_ladder.h"

namespace dstrain::test {
namespace {

TEST_CASE("states in the host's memory or on a disk give the bits of states beside the parameters",
          "[parity][zero][offload]") {
  for (const Formats& formats : kFormats) {
    for (const int stage : {0, 1, 2, 3}) {
      TinyOptions options{.precision = formats.precision,
                          .micro_batch = 2,
                          .accumulation = 2,
                          .gradient_clipping = 0.5,
                          .formats = formats.formats,
                          .steps = 3};
      const std::vector<TinyRun> beside = train_ranks(2, with_stage(options, stage));
      for (const Space space : {Space::kHost, Space::kDisk}) {
        for (const int slots : {1, 2, 4}) {
          CAPTURE(formats.name, stage, static_cast<int>(space), slots);
          options.states = space;
          options.offload.state_buffers = slots;
          const std::vector<TinyRun> apart = train_ranks(2, with_stage(options, stage));
          check_same_bits(apart, beside);
          CHECK(apart[0].grad_norms == beside[0].grad_norms);
          CHECK(apart[0].arena_spaces == apart[0].plan_spaces);
          CHECK(apart[0].plan_spaces[static_cast<std::size_t>(space)] > 0);
        }
      }
    }
  }
}

TEST_CASE("a part of the states leaves the device by whole units, and moves no bit",
          "[parity][zero][offload]") {
  for (const Formats& formats : kFormats) {
    for (const int stage : {0, 1, 2, 3}) {
      TinyOptions options{.precision = formats.precision,
                          .micro_batch = 2,
                          .accumulation = 2,
                          .gradient_clipping = 0.5,
                          .formats = formats.formats,
                          .steps = 3};
      const std::vector<TinyRun> beside = train_ranks(2, with_stage(options, stage));
      for (const Space space : {Space::kHost, Space::kDisk}) {
        options.states = space;
        std::int64_t before = 0;
        for (const double ratio : {0.2, 0.7, 1.0}) {
          CAPTURE(formats.name, stage, static_cast<int>(space), ratio);
          options.offload.states_ratio = ratio;
          const std::vector<TinyRun> apart = train_ranks(2, with_stage(options, stage));
          check_same_bits(apart, beside);
          CHECK(apart[0].grad_norms == beside[0].grad_norms);
          CHECK(apart[0].arena_spaces == apart[0].plan_spaces);
          const std::int64_t there = apart[0].plan_spaces[static_cast<std::size_t>(space)];
          CHECK(there > before);
          before = there;
        }
      }
    }
  }
}

TEST_CASE("a second copy of the parameters gives stage 3's bits, and gathers across once a step",
          "[parity][zero][hpz]") {
  for (const Formats& formats : kFormats) {
    for (const bool tied : {false, true}) {
      for (const int accumulation : {1, 3}) {
        for (const bool overlap : {false, true}) {
          CAPTURE(formats.name, tied, accumulation, overlap);
          TinyOptions options{.tied = tied,
                              .precision = formats.precision,
                              .micro_batch = 2,
                              .accumulation = accumulation,
                              .gradient_clipping = 0.5,
                              .overlap_comm = overlap,
                              .zero_stage = 3,
                              .formats = formats.formats,
                              .steps = 3};
          const std::vector<TinyRun> once = train_ranks(4, options);
          options.zero.secondary_ranks = 2;
          const std::vector<TinyRun> twice = train_ranks(4, options);
          check_same_bits(twice, once);
          CHECK(twice[0].grad_norms == once[0].grad_norms);
          const std::int64_t all = std::accumulate(twice[0].unit_padded.begin(),
                                                   twice[0].unit_padded.end(), std::int64_t{0});
          const std::int64_t size = formats.precision == Precision::kF32 ? 4 : 2;
          CHECK(twice[0].arena_bytes - once[0].arena_bytes == all * size / 2);
          std::int64_t across = 0;
          std::int64_t among_few = 0;
          for (const TinyRun& run : twice) {
            CHECK(run.arena_spaces == run.plan_spaces);
            CHECK(run.unplanned_traffic.empty());
          }
          for (const CollectiveLog::Entry& entry : twice[0].traffic) {
            if (entry.purpose != Purpose::kParameter) continue;
            const bool is_few = entry.group.starts_with("data-parallel neighbours");
            (is_few ? among_few : across) += entry.elements;
          }
          CHECK(across == all);  // forward of the first micro-batch; nothing in backward
          CHECK(among_few > 0);
        }
      }
    }
  }
}

TEST_CASE("parameters in the host's memory or on a disk give the bits of those on the device",
          "[parity][zero][offload]") {
  for (const Formats& formats : kFormats) {
    for (const int ranks : {1, 2, 4}) {
      for (const bool tied : {false, true}) {
        CAPTURE(formats.name, ranks, tied);
        TinyOptions options{.tied = tied,
                            .precision = formats.precision,
                            .micro_batch = 2,
                            .accumulation = 2,
                            .gradient_clipping = 0.5,
                            .zero_stage = 3,
                            .formats = formats.formats,
                            .steps = 3};
        const std::vector<TinyRun> on_device = train_ranks(ranks, options);
        options.parameters = Space::kHost;
        options.states = Space::kHost;
        const std::vector<TinyRun> on_host = train_ranks(ranks, options);
        check_same_bits(on_host, on_device);
        CHECK(on_host[0].grad_norms == on_device[0].grad_norms);
        CHECK(on_host[0].arena_spaces == on_host[0].plan_spaces);
        CHECK(on_host[0].plan_bytes < on_device[0].plan_bytes);
        CHECK(on_host[0].unplanned_traffic.empty());
        options.parameters = Space::kDisk;
        options.states = Space::kDisk;
        for (const int slots : {1, 4}) {
          CAPTURE(slots);
          options.offload.parameter_buffers = slots;
          options.offload.state_buffers = slots;
          const std::vector<TinyRun> on_disk = train_ranks(ranks, options);
          check_same_bits(on_disk, on_device);
          CHECK(on_disk[0].grad_norms == on_device[0].grad_norms);
          CHECK(on_disk[0].arena_spaces == on_disk[0].plan_spaces);
          CHECK(on_disk[0].unplanned_traffic.empty());
        }
      }
    }
  }
}

}  // namespace
}  // namespace dstrain::test
