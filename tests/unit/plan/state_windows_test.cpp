#include "engine/plan/state_windows.h"

#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

#include "engine/plan/space.h"

namespace dstrain {
namespace {

constexpr std::int64_t kUnit = StateWindows::kElementUnit;

StateWindows::Passing passing(std::initializer_list<std::pair<WindowTensor, DType>> tensors) {
  StateWindows::Passing all{};
  for (const auto& [tensor, dtype] : tensors)
    all.at(static_cast<std::size_t>(tensor)) = dtype;
  return all;
}

TEST_CASE("windows cover a row of elements once, each beginning at a block of the disk",
          "[plan][offload]") {
  for (const std::int64_t elements : {std::int64_t{1}, kUnit, kUnit + 1, 10 * kUnit, 12'345'678L}) {
    for (const std::int64_t most : {std::int64_t{1}, kUnit, 3 * kUnit + 5, std::int64_t{1} << 20}) {
      CAPTURE(elements, most);
      const StateWindows windows(elements, passing({{WindowTensor::kMaster, DType::kF32}}),
                                 {.most_elements = most, .slots = 4});
      std::int64_t covered = 0;
      for (std::int64_t window = 0; window < windows.count(); ++window) {
        CHECK(windows.begin(window) == covered);
        CHECK(windows.begin(window) % kUnit == 0);
        CHECK(windows.end(window) > windows.begin(window));
        covered = windows.end(window);
      }
      CHECK(covered == elements);
      CHECK(windows.size() <= std::max(kUnit, (most + kUnit - 1) / kUnit * kUnit));
    }
  }
  CHECK(StateWindows(0, {}, {}).count() == 0);
  CHECK(StateWindows(0, {}, {}).bytes() == 0);
}

TEST_CASE("a slot has memory for what passes, and for nothing else", "[plan][offload]") {
  const StateWindows windows(100 * kUnit,
                             passing({{WindowTensor::kGradient, DType::kBF16},
                                      {WindowTensor::kMaster, DType::kF32},
                                      {WindowTensor::kSecondMoment, DType::kBF16}}),
                             {.most_elements = 2 * kUnit, .slots = 3});
  CHECK(windows.slots() == 3);
  CHECK(windows.bytes() == 3 * 2 * kUnit * (2 + 4 + 2));
  CHECK_FALSE(windows.passing(WindowTensor::kParameters));
  CHECK_THROWS(windows.offset_bytes(0, WindowTensor::kParameters));
  std::set<std::int64_t> begins;
  for (std::int64_t window = 0; window < 3; ++window) {
    for (const WindowTensor tensor :
         {WindowTensor::kGradient, WindowTensor::kMaster, WindowTensor::kSecondMoment}) {
      const std::int64_t begin = windows.offset_bytes(window, tensor);
      CHECK(begin % kDiskBlockBytes == 0);
      CHECK(begins.insert(begin).second);
      CHECK(windows.offset_bytes(window + 3, tensor) == begin);  // the slot comes round
    }
  }
}

TEST_CASE("a row that fills one window takes one slot", "[plan][offload]") {
  const StateWindows windows(5, passing({{WindowTensor::kMaster, DType::kF32}}), {});
  CHECK(windows.count() == 1);
  CHECK(windows.slots() == 1);
  CHECK(windows.bytes() == kUnit * 4);
}

}  // namespace
}  // namespace dstrain
