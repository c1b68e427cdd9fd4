// Masters and moments in the host's memory or on a disk, updated by the processor, against the same
// on the device. Built for the CPU, and for the emulated GPU (tests/emulated_cuda), which ends a
// process that touches the memory of one as if it were the other's.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>

#include <catch2/catch.hpp>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/ops/lab.h"
#include "tests/unit/parallel/updating_rank.h"

namespace dstrain::test {
namespace {

Blueprint two_units() {
  Blueprint blueprint;
  blueprint.begin_unit("table");
  blueprint.add_param({.name = "table", .shape = {67, 31}});
  blueprint.begin_unit("block");
  blueprint.add_param({.name = "norm", .shape = {31}, .decays = false});
  blueprint.add_param({.name = "matrix", .shape = {31, 53}, .hidden_matrix = true});
  return blueprint;
}

float start_of(int unit, std::int64_t i) {
  return std::cos(static_cast<float>(7 * i + unit));
}

struct Outcome {
  std::vector<double> norms;
  std::vector<std::vector<std::byte>> states;  ///< of every region and unit
  std::vector<DType> dtypes;                   ///< likewise
  std::int64_t on_device = 0;
  std::int64_t on_host = 0;
  std::int64_t on_disk = 0;
};

Outcome train(const BackendUnderTest& under_test, UpdatingOptions options, Space states) {
  options.placement.states.space = states;
  const auto world = make_local_rendezvous(1);
  const std::vector<int> me{0};
  const auto group = world[0]->make_group("data", me);
  Backend backend = under_test.make(1);
  UpdatingRank rank(options, backend, {{kGradientAxes, group.get(), nullptr}}, start_of);
  Outcome outcome;
  for (int step = 1; step <= 4; ++step) {
    const auto gradient = [step](int unit, std::int64_t i) {
      return 0.1F * std::sin(static_cast<float>(3 * i + 5 * step + 11 * unit));
    };
    const StepStats stats = rank.step(
        gradient,
        {.learning_rate = 0.01, .update = step, .gradient_clipping = step % 2 == 0 ? 0.5 : 0.0});
    outcome.norms.push_back(stats.grad_norm);
  }
  for (const RegionKind kind : {RegionKind::kParameters, RegionKind::kMaster,
                                RegionKind::kFirstMoment, RegionKind::kSecondMoment}) {
    for (int unit = 0; unit < 2; ++unit) {
      if (kind == RegionKind::kMaster || rank.memory().has(kind)) {
        outcome.states.push_back(rank.bytes_of(kind, unit));
        outcome.dtypes.push_back(rank.memory().has(kind) ? rank.memory().dtype(kind) : DType::kF32);
      }
    }
  }
  outcome.on_device = rank.arena().bytes(Space::kDevice);
  outcome.on_host = rank.arena().bytes(Space::kHost);
  CHECK(outcome.on_device == rank.memory().bytes(Space::kDevice));
  CHECK(outcome.on_host == rank.memory().bytes(Space::kHost));
  outcome.on_disk = rank.arena().bytes(Space::kDisk);
  CHECK(outcome.on_disk == rank.memory().bytes(Space::kDisk));
  return outcome;
}

template <typename T>
double largest_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t at = 0; at + sizeof(T) <= a.size(); at += sizeof(T)) {
    T left;
    T right;
    std::memcpy(&left, &a[at], sizeof(T));
    std::memcpy(&right, &b[at], sizeof(T));
    const auto x = static_cast<double>(to_float(left));
    const auto y = static_cast<double>(to_float(right));
    largest = std::max(largest, std::abs(x - y) / std::max(1.0, std::abs(x)));
  }
  return largest;
}

/// Between two devices a product and the sum it goes into may be rounded once or twice: the last
/// digits of f32, and of 16 bits where that moves a value over the border between two.
void check_close(const Outcome& a, const Outcome& b) {
  REQUIRE(a.states.size() == b.states.size());
  for (std::size_t i = 0; i < a.states.size(); ++i) {
    INFO("state " << i);
    switch (a.dtypes[i]) {
      case DType::kBF16:
        CHECK(largest_difference<BF16>(a.states[i], b.states[i]) <= 0x1p-7);
        break;
      case DType::kF16:
        CHECK(largest_difference<F16>(a.states[i], b.states[i]) <= 0x1p-10);
        break;
      default:
        CHECK(largest_difference<float>(a.states[i], b.states[i]) <= 2e-6);
    }
  }
}

TEST_CASE("states in the host's memory or on a disk become what states on the device become",
          "[zero][offload]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const OptimizerKind kind :
         {OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kAdagrad,
          OptimizerKind::kRmsprop, OptimizerKind::kLion}) {
      for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const int stage : kZeroStages) {
          INFO(backend.name << ", optimizer " << static_cast<int>(kind) << ", " << name_of(compute)
                            << ", ZeRO " << stage);
          const UpdatingOptions options{
              .blueprint = two_units(),
              .placement = zero_placement(cuts_of(stage)),
              .compute = compute,
              .optimizer = {.kind = kind, .weight_decay = 0.1, .momentum = 0.9}};
          const Outcome device = train(backend, options, Space::kDevice);
          const Outcome host = train(backend, options, Space::kHost);
          CHECK(host.norms == device.norms);
          if (std::string_view(backend.name) == "cpu") {
            CHECK(host.states == device.states);
          } else {
            check_close(host, device);
          }
          CHECK(device.on_host == 0);
          CHECK(host.on_device < device.on_device);
          const Outcome disk = train(backend, options, Space::kDisk);
          CHECK(disk.norms == host.norms);
          CHECK(disk.states == host.states);
          CHECK(disk.on_device == host.on_device);
          CHECK(device.on_disk == 0);
          CHECK(disk.on_disk > 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dstrain::test
