// cast and add_scaled between f32, bf16 and f16, in all nine ways.
#include <cfloat>
#include <cmath>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Around the vector lengths (16) and the pieces that tasks take (2¹⁵).
constexpr std::int64_t kSizes[] = {1, 7, 16, 33, 257, (1 << 15) + 5};

struct Format {
  int digits;           ///< significant bits
  int lowest_exponent;  ///< of a normal number
  double largest;
};
Format format_of(DType dtype) {
  constexpr Format kF32{24, -126, 0x1.fffffep127};
  constexpr Format kBF16{8, -126, 0x1.fep127};
  constexpr Format kF16{11, -14, 65504.0};
  return dtype == DType::kF32 ? kF32 : dtype == DType::kBF16 ? kBF16 : kF16;
}

/// The nearest number of the dtype, ties to even, computed in fp64 (whose rounding mode that is).
double nearest(DType dtype, double value) {
  if (value == 0.0 || !std::isfinite(value)) {
    return value;
  }
  const Format format = format_of(dtype);
  const int exponent = std::max(std::ilogb(value), format.lowest_exponent);
  const double step = std::ldexp(1.0, exponent - format.digits + 1);
  const double rounded = std::nearbyint(value / step) * step;
  return std::abs(rounded) > format.largest ? std::copysign(INFINITY, value) : rounded;
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

/// Every number of a dtype of 16 bits, infinities and a NaN of each sign among them. Without bf16's
/// subnormals, which some processors take as zero.
Values all_of(DType dtype) {
  const Format format = format_of(dtype);
  Values values{0.0, -0.0, INFINITY, -INFINITY, NAN, -NAN};
  const auto add = [&](double value) {
    values.push_back(value);
    values.push_back(-value);
  };
  const double step = std::ldexp(1.0, format.lowest_exponent - format.digits + 1);
  for (double subnormal = step; dtype == DType::kF16 && subnormal < 0x1p-14; subnormal += step) {
    add(subnormal);
  }
  for (int exponent = format.lowest_exponent; std::ldexp(1.0, exponent) <= format.largest;
       ++exponent) {
    const double ulp = std::ldexp(1.0, exponent - format.digits + 1);
    for (int mantissa = 1 << (format.digits - 1); mantissa < 1 << format.digits; ++mantissa) {
      add(mantissa * ulp);
    }
  }
  return values;
}

/// The ties between any two neighbours of the dtype, and the f32 numbers on both sides of them.
Values around_ties_of(DType dtype) {
  const Format format = format_of(dtype);
  Values values;
  for (const double number : all_of(dtype)) {
    if (std::isfinite(number)) {
      const int exponent = number == 0.0 ? format.lowest_exponent
                                         : std::max(std::ilogb(number), format.lowest_exponent);
      const double half_step = std::ldexp(0.5, exponent - format.digits + 1);
      const auto tie = static_cast<float>(number + std::copysign(half_step, number));
      values.insert(values.end(), {tie, std::nextafter(tie, 0.0F),
                                   std::nextafter(tie, std::copysign(INFINITY, tie))});
    }
  }
  return values;
}

void check_casts(const Values& x, DType from, DType to) {
  CAPTURE(name_of(from), name_of(to), x.size());
  const auto n = static_cast<std::int64_t>(x.size());
  for (const BackendUnderTest& backend : backends_under_test()) {
    INFO(backend.name);
    Lab lab(backend.make(2));
    const Tensor out = lab.unset(to, {n});
    lab.ops().cast(lab.put(x, from, {n}), out, lab.stream());
    const Values y = lab.get(out);
    std::int64_t wrong = 0;
    std::string first_wrong;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = nearest(to, x[i]);
      // AVX512_BF16's instruction takes denormals as zero.
      const bool flushed = to == DType::kBF16 && y[i] == 0.0 && std::abs(x[i]) < FLT_MIN;
      if (!flushed && !same(y[i], expected) && wrong++ == 0) {
        first_wrong = fmt::format("{} became {}, not {}", x[i], y[i], expected);
      }
    }
    INFO(first_wrong);
    CHECK(wrong == 0);
  }
}

}  // namespace

TEST_CASE("cast rounds to nearest even and widens exactly, at any length", "[ops][convert]") {
  for (const DType from : kComputeDtypes) {
    for (const DType to : kComputeDtypes) {
      for (const std::int64_t n : kSizes) {
        CAPTURE(name_of(from), name_of(to), n);
        const Values x = rounded_to(from, random_values(n, 1, 100.0));
        Values expected;
        for (const double value : x) {
          expected.push_back(nearest(to, value));
        }
        conforms({{"y", expected, 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
          const Tensor y = lab.unset(to, {n});
          lab.ops().cast(lab.put(x, from, {n}), y, lab.stream());
          return {lab.get(y)};
        });
      }
    }
  }
}

TEST_CASE("cast gets every number of 16 bits, every tie and what is beside it right",
          "[ops][convert]") {
  for (const DType narrow : {DType::kBF16, DType::kF16}) {
    const Values all = all_of(narrow);
    CHECK(all.size() == (narrow == DType::kF16 ? 2 * 0x7c00 + 4 : 2 * (0x7f80 - 0x7f) + 4));
    for (const DType to : kComputeDtypes) {
      check_casts(all, narrow, to);  // to f16: overflow and underflow; to itself: a copy
    }
    check_casts(all, DType::kF32, narrow);  // back from f32
    check_casts(around_ties_of(narrow), DType::kF32, narrow);
  }
}

TEST_CASE("cast refuses what is no compute dtype, unless it copies", "[ops][convert]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    const Tensor wide = lab.put({1.0, 2.0}, DType::kF64, {2});
    const Tensor half = lab.put({1.0, 2.0}, DType::kF16, {2});
    CHECK_THROWS_WITH(lab.ops().cast(wide, half, lab.stream()), Catch::Contains("cast: in is f64"));
    CHECK_THROWS_WITH(lab.ops().cast(half, wide, lab.stream()),
                      Catch::Contains("cast: out is f64"));
    const Tensor copy = lab.put({0.0, 0.0}, DType::kF64, {2});
    lab.ops().cast(wide, copy, lab.stream());
    CHECK(lab.get(copy) == Values{1.0, 2.0});
  }
}

TEST_CASE("add_scaled scales, and adds, from every dtype to every dtype", "[ops][convert]") {
  constexpr float kScale = -0.37F;
  for (const DType from : kComputeDtypes) {
    for (const DType to : kComputeDtypes) {
      for (const std::int64_t n : kSizes) {
        CAPTURE(name_of(from), name_of(to), n);
        const Values x = rounded_to(from, random_values(n, 1));
        const Values earlier = rounded_to(to, random_values(n, 2));
        Values scaled;
        Values added;
        for (std::size_t i = 0; i < x.size(); ++i) {
          scaled.push_back(kScale * x[i]);
          added.push_back(earlier[i] + scaled[i]);
        }
        // A product and a sum of numbers of order one in f32 (2⁻²⁴ each), then the rounding.
        const double relative = relative_error_of(to);
        const double absolute = 2e-7 + absolute_error_of(to);
        conforms({{"scaled", scaled, relative, absolute}, {"added", added, relative, absolute}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const Tensor in = lab.put(x, from, {n});
                   const Tensor overwritten = lab.unset(to, {n});
                   const Tensor sum = lab.put(earlier, to, {n});
                   lab.ops().add_scaled(in, kScale, overwritten, Write::kOverwrite, lab.stream());
                   lab.ops().add_scaled(in, kScale, sum, Write::kAdd, lab.stream());
                   CHECK(lab.get(in) == x);
                   return {lab.get(overwritten), lab.get(sum)};
                 });
      }
    }
  }
}

TEST_CASE("add_scaled works in place", "[ops][convert]") {
  constexpr float kScale = 0.25F;  // a power of two: what is computed in f32 is exact but the sum
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t n : kSizes) {
      CAPTURE(name_of(dtype), n);
      const Values x = rounded_to(dtype, random_values(n, 1));
      Values scaled;
      Values added;
      for (const double value : x) {
        scaled.push_back(nearest(dtype, 0.25 * value));
        added.push_back(nearest(dtype, 1.25 * value));
      }
      conforms({{"scaled", scaled, 0.0, 0.0}, {"added", added, 0.0, 0.0}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor overwritten = lab.put(x, dtype, {n});
                 const Tensor sum = lab.put(x, dtype, {n});
                 lab.ops().add_scaled(overwritten, kScale, overwritten, Write::kOverwrite,
                                      lab.stream());
                 lab.ops().add_scaled(sum, kScale, sum, Write::kAdd, lab.stream());
                 return {lab.get(overwritten), lab.get(sum)};
               });
    }
  }
}

TEST_CASE("scaling a loss up overflows f16 to infinity, and scaling down does not hide it",
          "[ops][convert]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    INFO(backend.name);
    Lab lab(backend.make(1));
    // Repeated, so that whole vectors as well as the rest of one see each of them.
    Values x;
    for (int i = 0; i < 5; ++i) {
      x.insert(x.end(), {1.0, 40000.0, -40000.0, 0x1p-24, INFINITY, -INFINITY, NAN});
    }
    const auto n = static_cast<std::int64_t>(x.size());
    const Tensor half = lab.put(x, DType::kF16, {n});
    lab.ops().add_scaled(half, 2.0F, half, Write::kOverwrite, lab.stream());
    const Values doubled = lab.get(half);
    const Tensor single = lab.unset(DType::kF32, {n});
    lab.ops().add_scaled(half, 0x1p-16F, single, Write::kOverwrite, lab.stream());
    const Values unscaled = lab.get(single);
    const Values expected{2.0, INFINITY, -INFINITY, 0x1p-23, INFINITY, -INFINITY, NAN};
    for (std::size_t i = 0; i < x.size(); ++i) {
      CAPTURE(i, doubled[i], unscaled[i]);
      CHECK(same(doubled[i], expected[i % expected.size()]));
      CHECK(same(unscaled[i], 0x1p-16 * expected[i % expected.size()]));
    }
  }
}

}  // namespace dstrain::test
