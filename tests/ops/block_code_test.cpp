// Block codes against their bound: every element within half a step of its block, computed in fp64
// from the block's largest magnitude; and what has no such neighbour: NaN, infinity, zero.
#include "kernels/math/block_code.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

constexpr BlockCode kCodes[] = {{8}, {4}};

/// x coded and decoded, in parts.
Values coded(Lab& lab, const BlockCode& code, std::int64_t parts, const Values& x, DType dtype) {
  const auto n = static_cast<std::int64_t>(x.size());
  const Tensor values = lab.put(x, dtype, {n});
  const Tensor wire = lab.unset(DType::kU8, {parts * code.bytes(n / parts)});
  lab.ops().encode_blocks(code, {.count = parts}, values, wire, lab.stream());
  const Tensor back = lab.unset(dtype, {n});
  lab.ops().decode_blocks(code, {.count = parts}, wire, back, Write::kOverwrite, lab.stream());
  return lab.get(back);
}

/// How far an element may be off: half a step, by a trifle more for a scale in f32, and its own
/// rounding. Below f32's normal numbers a step is nothing, and what is coded is zero.
double bound(const BlockCode& code, double largest, double x, DType dtype) {
  const double step = largest / static_cast<double>(code.largest());
  const bool vanishes = step < 0x1p-125;
  return (vanishes ? largest : 0.5001 * step) + relative_error_of(dtype) * std::abs(x) +
         absolute_error_of(dtype) + (dtype == DType::kBF16 ? 0x1p-133 : 0x1p-149);
}

/// Empty if the blocks of one part are within bounds; blocks with a NaN or infinity must be all
/// NaN.
std::string fault_of(const BlockCode& code, const Values& x, const Values& y, DType dtype) {
  for (std::size_t begin = 0; begin < x.size(); begin += static_cast<std::size_t>(code.block())) {
    const std::size_t end = std::min(x.size(), begin + static_cast<std::size_t>(code.block()));
    double largest = 0.0;
    bool finite = true;
    for (std::size_t i = begin; i < end; ++i) {
      finite = finite && std::isfinite(x[i]);
      largest = std::max(largest, std::abs(x[i]));
    }
    for (std::size_t i = begin; i < end; ++i) {
      const bool right =
          finite ? std::abs(y[i] - x[i]) <= bound(code, largest, x[i], dtype) : std::isnan(y[i]);
      if (!right) {
        return fmt::format("{} of block {} became {}, in {} bits of a largest {}", x[i],
                           begin / static_cast<std::size_t>(code.block()), y[i], code.bits,
                           largest);
      }
    }
  }
  return "";
}

void check_bounds(const Values& x, DType dtype) {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(2));
    for (const BlockCode& code : kCodes) {
      CAPTURE(backend.name, code.bits, name_of(dtype), x.size());
      CHECK(fault_of(code, x, coded(lab, code, 1, x, dtype), dtype) == "");
    }
  }
}

/// Numbers of very different size side by side, as gradients are.
Values wide_values(std::int64_t n, std::uint64_t seed) {
  Values values = random_values(n, seed);
  const Values exponents = random_values(n, seed + 1, 6.0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] *= std::exp2(std::round(exponents[i]));
  }
  return values;
}

}  // namespace

TEST_CASE("codes are within half a step of their block's largest", "[ops][block_code]") {
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t n : {16, 48, 240, 256, 272, 512, 2064, 10'000}) {
      check_bounds(rounded_to(dtype, random_values(n, 1)), dtype);
      check_bounds(rounded_to(dtype, wide_values(n, 2)), dtype);
    }
  }
}

TEST_CASE("codes of all numbers of 16 bits are within bounds", "[ops][block_code]") {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Values all;
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      all.push_back(dtype == DType::kBF16 ? to_float(BF16{half}) : to_float(F16{half}));
    }
    check_bounds(all, dtype);
    check_bounds(all, DType::kF32);
    // Neighbours with all exponents.
    Values mixed;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double value = all[i * 40503U % all.size()];
      mixed.push_back(std::isfinite(value) ? value : 0.0);
    }
    check_bounds(mixed, dtype);
    check_bounds(mixed, DType::kF32);
  }
}

TEST_CASE("a coded block keeps its largest number, both ways", "[ops][block_code]") {
  for (const DType dtype : kComputeDtypes) {
    for (const BackendUnderTest& backend : backends_under_test()) {
      Lab lab(backend.make(1));
      for (const BlockCode& code : kCodes) {
        CAPTURE(backend.name, name_of(dtype), code.bits);
        const double most = dtype == DType::kF32    ? std::numeric_limits<float>::max()
                            : dtype == DType::kBF16 ? 0x1.fep127
                                                    : 65504.0;
        for (const double largest : {1.0, 0.1, 1e-3, most}) {
          Values x(32, 0.0);
          x[3] = largest;
          x[20] = -largest;
          x = rounded_to(dtype, x);
          const Values y = coded(lab, code, 1, x, dtype);
          CHECK(std::abs(y[3] - x[3]) <= (relative_error_of(dtype) + 0x1p-21) * x[3]);
          CHECK(y[20] == -y[3]);
          CHECK(y[0] == 0.0);
        }
        CHECK(coded(lab, code, 1, Values(4096, 0.0), dtype) == Values(4096, 0.0));
      }
    }
  }
}

TEST_CASE("a NaN or an infinity makes its block NaN, and no other", "[ops][block_code]") {
  for (const DType dtype : kComputeDtypes) {
    for (const BackendUnderTest& backend : backends_under_test()) {
      Lab lab(backend.make(1));
      for (const BlockCode& code : kCodes) {
        for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
          for (const std::int64_t at : {0L, 7L, code.block() - 1, code.block(), code.block() + 9}) {
            CAPTURE(backend.name, name_of(dtype), code.bits, bad, at);
            Values x = rounded_to(dtype, random_values(3 * code.block(), 5));
            x[static_cast<std::size_t>(at)] = bad;
            const Values y = coded(lab, code, 1, x, dtype);
            CHECK(fault_of(code, x, y, dtype) == "");
            CHECK(std::count_if(y.begin(), y.end(), [](double v) { return std::isnan(v); }) ==
                  code.block());
          }
        }
      }
    }
  }
}

TEST_CASE("parts are coded each on its own, and what is decoded can be added",
          "[ops][block_code]") {
  constexpr std::int64_t kParts = 3;
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t n : {16, 2064, 4096}) {
      for (const BackendUnderTest& backend : backends_under_test()) {
        Lab lab(backend.make(2));
        for (const BlockCode& code : kCodes) {
          CAPTURE(backend.name, name_of(dtype), code.bits, n);
          const Values x = rounded_to(dtype, random_values(kParts * n, 7));
          const Values together = coded(lab, code, kParts, x, dtype);
          Values one_by_one;
          for (auto part = x.begin(); part != x.end(); part += n) {
            const Values y = coded(lab, code, 1, Values(part, part + n), dtype);
            one_by_one.insert(one_by_one.end(), y.begin(), y.end());
          }
          CHECK(together == one_by_one);

          const Values before = random_values(kParts * n, 8);
          const Tensor values = lab.put(x, dtype, {kParts * n});
          const Tensor wire = lab.unset(DType::kU8, {kParts * code.bytes(n)});
          lab.ops().encode_blocks(code, {.count = kParts}, values, wire, lab.stream());
          const Tensor sum = lab.put(before, DType::kF32, {kParts * n});
          lab.ops().decode_blocks(code, {.count = kParts}, wire, sum, Write::kAdd, lab.stream());
          const Values after = lab.get(sum);
          double worst = 0.0;
          for (std::size_t i = 0; i < after.size(); ++i) {
            worst = std::max(worst, std::abs(after[i] - before[i] - together[i]));
          }
          CHECK(worst <= 2e-7 + relative_error_of(dtype) + absolute_error_of(dtype));
        }
      }
    }
  }
}

TEST_CASE("coded parts may lie apart, and leave those between them as they are",
          "[ops][block_code]") {
  constexpr std::int64_t kElements = 2064;
  constexpr std::int64_t kParts = 4;
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(2));
    for (const BlockCode& code : kCodes) {
      CAPTURE(backend.name, code.bits);
      // Parts 0, 1, 2, 3 go to places 0, 2, 1, 3, as rows and columns change places.
      const Values x = rounded_to(DType::kF32, random_values(kParts * kElements, 9));
      const Tensor values = lab.put(x, DType::kF32, {kParts * kElements});
      const std::int64_t bytes = code.bytes(kElements);
      const Tensor wire = lab.unset(DType::kU8, {kParts * bytes});
      for (const std::int64_t row : {0, 1}) {
        lab.ops().encode_blocks(code, {.count = 2, .stride = 2},
                                values.flat(2 * row * kElements, 2 * (row + 1) * kElements),
                                wire.flat(row * bytes, (row + 3) * bytes), lab.stream());
      }
      const Values in_order = coded(lab, code, kParts, x, DType::kF32);
      const Tensor back = lab.unset(DType::kF32, {kParts * kElements});
      lab.ops().decode_blocks(code, {.count = kParts}, wire, back, Write::kOverwrite, lab.stream());
      const Values places = lab.get(back);
      const auto part = [](const Values& of, std::int64_t index) {
        return Values(of.begin() + index * kElements, of.begin() + (index + 1) * kElements);
      };
      CHECK(part(places, 0) == part(in_order, 0));
      CHECK(part(places, 2) == part(in_order, 1));
      CHECK(part(places, 1) == part(in_order, 2));
      CHECK(part(places, 3) == part(in_order, 3));
      // And back again, row by row.
      for (const std::int64_t row : {0, 1}) {
        lab.ops().decode_blocks(code, {.count = 2, .stride = 2},
                                wire.flat(row * bytes, (row + 3) * bytes),
                                back.flat(2 * row * kElements, 2 * (row + 1) * kElements),
                                Write::kOverwrite, lab.stream());
      }
      CHECK(lab.get(back) == in_order);
    }
  }
}

TEST_CASE("coded parts take a byte or half a byte an element, and a scale a block",
          "[ops][block_code]") {
  CHECK(BlockCode{8}.bytes(4096) == 4096 + 16 * 4);
  CHECK(BlockCode{8}.bytes(1024) == 1024 + 4 * 4);
  CHECK(BlockCode{8}.bytes(16) == 32);
  CHECK(BlockCode{4}.bytes(256 * 8) == 128 * 8 + 4 * 8);
  CHECK(BlockCode{4}.bytes(272) == 136 + 8);
  CHECK(BlockCode{4}.bytes(0) == 0);
}

}  // namespace dstrain::test
