// Master and moments in bf16: rounded up or down at random, with bits that depend on nothing but
// seed, stream and element.
#include <cmath>

#include <catch2/catch.hpp>

#include "kernels/math/philox.h"
#include "kernels/optimizers.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

constexpr RoundingNoise kNoise{.seed = 0x123456789abcdefU,
                               .stream = 0x300000007U,
                               .first_element = (std::int64_t{1} << 32) - 50};

/// bf16(x - g) with lr 1: the master of a step that computes nothing else.
Values rounded_differences(Lab& lab, const Values& x, const Values& g, const RoundingNoise& noise) {
  const auto n = static_cast<std::int64_t>(x.size());
  const OptimizerTensors tensors{.gradient = lab.put(g, DType::kF32, {n}),
                                 .master = lab.put(x, DType::kBF16, {n}),
                                 .noise = noise};
  lab.ops().update(SgdStep{.learning_rate = 1.0F}, tensors, lab.stream());
  return lab.get(tensors.master);
}

/// All of AdamW's state after a step over elements [begin, end) of a unit.
std::vector<Values> after_adamw(Lab& lab, std::int64_t begin, std::int64_t end, DType moments) {
  const auto part = [&](std::uint64_t seed, double scale, DType dtype) {
    const Values whole = random_values(301, seed, scale);
    return lab.put(Values(whole.begin() + begin, whole.begin() + end), dtype, {end - begin});
  };
  const OptimizerTensors tensors{.gradient = part(1, 0.1, DType::kF32),
                                 .master = part(2, 1.0, DType::kBF16),
                                 .first_moment = part(3, 0.1, moments),
                                 .second_moment = part(4, 0.0, moments),
                                 .noise = {.seed = 1, .stream = 2, .first_element = begin}};
  lab.ops().update(AdamwStep{.learning_rate = 0.01F, .weight_decay = 0.1F}, tensors, lab.stream());
  return {lab.get(tensors.master), lab.get(tensors.first_moment), lab.get(tensors.second_moment)};
}

}  // namespace

TEST_CASE("random bits below bf16's last one are added and cut off", "[ops][rounding]") {
  // 1 + k · 2⁻¹⁶ lies between the neighbours 1 and 1 + 2⁻⁷; its sum with Philox's bits, by hand.
  constexpr std::int64_t kElements = 512;
  Values g;
  Values expected;
  for (std::int64_t k = 0; k < kElements; ++k) {
    const double sign = k % 3 == 0 ? -1.0 : 1.0;
    g.push_back(sign * (-1.0 - static_cast<double>(k) * 0x1p-16));
    const auto words =
        philox(kNoise.seed, static_cast<std::uint64_t>(kNoise.first_element + k), kNoise.stream);
    const double fraction = static_cast<double>(k) / 512.0;
    const bool up = fraction + static_cast<double>(words[2] & 0xffffU) / 65536.0 >= 1.0;
    expected.push_back(sign * (up ? 1.0 + 0x1p-7 : 1.0));
  }
  conforms({{"rounded", expected, 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
    return {rounded_differences(lab, Values(g.size(), 0.0), g, kNoise)};
  });
}

TEST_CASE("rounding is right on average", "[ops][rounding]") {
  constexpr std::size_t kDraws = 1 << 16;
  for (const double fraction : {0.03125, 0.25, 0.6875}) {
    for (const double scale : {1.0, -0x1p-20, 0x1p30}) {
      for (const std::uint64_t stream : {std::uint64_t{0}, std::uint64_t{1} << 40}) {
        CAPTURE(fraction, scale, stream);
        const double value = scale * (1.0 + fraction * 0x1p-7);
        Lab lab(backends_under_test().back().make(1));
        const Values rounded =
            rounded_differences(lab, Values(kDraws, 0.0), Values(kDraws, -value),
                                {.seed = 3, .stream = stream, .first_element = 0});
        double ups = 0.0;
        for (const double r : rounded) {
          REQUIRE((r == scale || r == scale * (1.0 + 0x1p-7)));
          ups += r == scale ? 0.0 : 1.0;
        }
        const double draws = static_cast<double>(kDraws);
        CHECK(std::abs(ups / draws - fraction) <
              4.0 * std::sqrt(fraction * (1.0 - fraction) / draws));
      }
    }
  }
}

TEST_CASE("what bf16 holds stays as it is, infinities and NaN too", "[ops][rounding]") {
  const Values exact{0.0, 1.0, -1.5, 0x1.fep127, -0x1p-126, 0x1p-133, INFINITY, -INFINITY, NAN};
  // Repeated, so that whole vectors and the rest of one see each of them.
  Values repeated;
  for (int i = 0; i < 5; ++i) {
    repeated.insert(repeated.end(), exact.begin(), exact.end());
  }
  const auto n = static_cast<std::int64_t>(repeated.size());
  const Values zeros(repeated.size(), 0.0);
  for (const BackendUnderTest& backend : backends_under_test()) {
    CAPTURE(backend.name);
    Lab lab(backend.make(1));
    for (std::uint64_t stream = 0; stream < 100; ++stream) {
      const OptimizerTensors tensors{.gradient = lab.put(zeros, DType::kF32, {n}),
                                     .master = lab.put(zeros, DType::kF32, {n}),
                                     .first_moment = lab.put(repeated, DType::kBF16, {n}),
                                     .noise = {.seed = 1, .stream = stream, .first_element = 0}};
      lab.ops().update(LionStep{.beta2 = 1.0F}, tensors, lab.stream());
      const Values kept = lab.get(tensors.first_moment);
      for (std::size_t i = 0; i < kept.size(); ++i) {
        CAPTURE(i, kept[i], repeated[i]);
        REQUIRE((kept[i] == repeated[i] || (std::isnan(kept[i]) && std::isnan(repeated[i]))));
      }
    }
  }
}

TEST_CASE("a rounded element has the same bits in whatever range it is updated",
          "[ops][rounding]") {
  const std::vector<std::int64_t> cuts{0, 1, 8, 100, 129, 257, 301};
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType moments : {DType::kF32, DType::kBF16}) {
      CAPTURE(backend.name, name_of(moments));
      Lab lab(backend.make(2));
      const std::vector<Values> whole = after_adamw(lab, 0, 301, moments);
      std::vector<Values> joined(whole.size());
      for (std::size_t cut = 0; cut + 1 < cuts.size(); ++cut) {
        const std::vector<Values> part = after_adamw(lab, cuts[cut], cuts[cut + 1], moments);
        for (std::size_t i = 0; i < part.size(); ++i) {
          joined[i].insert(joined[i].end(), part[i].begin(), part[i].end());
        }
      }
      CHECK(joined == whole);
    }
  }
}

TEST_CASE("master, first and second moment are rounded by different bits", "[ops][rounding]") {
  // All three hold 1 + 2⁻⁸, half way between two bf16 numbers, after the step.
  constexpr std::int64_t n = 4096;
  constexpr double kHalfWay = 1.0 + 0x1p-8;
  Lab lab(backends_under_test().back().make(1));
  const Values zeros(n, 0.0);
  const OptimizerTensors tensors{.gradient = lab.put(Values(n, kHalfWay), DType::kF32, {n}),
                                 .master = lab.put(zeros, DType::kBF16, {n}),
                                 .first_moment = lab.put(zeros, DType::kBF16, {n}),
                                 .second_moment = lab.put(zeros, DType::kBF16, {n}),
                                 .noise = kNoise};
  // m = g, v = g², p = -m: the second moment is 1 + 2⁻⁷ + 2⁻¹⁶, nearly always 1 + 2⁻⁷.
  lab.ops().update(AdamwStep{.learning_rate = -1.0F, .beta1 = 0.0F, .beta2 = 1.0F, .epsilon = 1.0F},
                   tensors, lab.stream());
  const Values master = lab.get(tensors.master);
  const Values first = lab.get(tensors.first_moment);
  int differ = 0;
  for (std::size_t i = 0; i < master.size(); ++i) {
    REQUIRE((first[i] == 1.0 || first[i] == 1.0 + 0x1p-7));
    REQUIRE((master[i] == 1.0 || master[i] == 1.0 + 0x1p-7));
    differ += first[i] != master[i] ? 1 : 0;
  }
  CHECK(differ > n / 2 - 4 * 32);  // n/2 ± 4 standard deviations of √n/2
  CHECK(differ < n / 2 + 4 * 32);
}

}  // namespace dstrain::test
