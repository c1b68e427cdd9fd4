// 8-bit floats: conversion against NVIDIA's own (cuda_fp8.h) where its headers are, and against
// arithmetic in fp64; transposition, largest magnitude, products.
#include <cmath>
#include <cstring>

#include <catch2/catch.hpp>

#ifdef DSTRAIN_CUDA_FP8
#include <cuda_fp8.h>
#endif

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

struct Format {
  DType dtype;
  int digits;           ///< significant bits
  int lowest_exponent;  ///< of a normal number
  double largest;
};
constexpr Format kFormats[] = {{DType::kF8E4M3, 4, -6, 448.0}, {DType::kF8E5M2, 3, -14, 57344.0}};

/// The nearest number of the format, ties to even; beyond the largest, that; NaN for what is not
/// finite.
double nearest(const Format& format, double value) {
  if (!std::isfinite(value)) {
    return NAN;
  }
  if (value == 0.0) {
    return value;
  }
  const int exponent = std::max(std::ilogb(value), format.lowest_exponent);
  const double step = std::ldexp(1.0, exponent - format.digits + 1);
  const double rounded = std::nearbyint(value / step) * step;
  return std::copysign(std::min(std::abs(rounded), format.largest), value);
}

Values nearest(const Format& format, const Values& values, double scale) {
  Values result;
  for (const double value : values) {
    result.push_back(nearest(format, value / scale));
  }
  return result;
}

Values transposed(const Values& values, std::int64_t rows, std::int64_t columns) {
  Values result;
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = 0; r < rows; ++r) {
      result.push_back(values[static_cast<std::size_t>(r * columns + c)]);
    }
  }
  return result;
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

/// The numbers of a format that are not negative, in order.
Values numbers_of(const Format& format) {
  Values numbers{0.0};
  const double step = std::ldexp(1.0, format.lowest_exponent - format.digits + 1);
  while (numbers.back() < format.largest) {
    const double last = numbers.back();
    const int exponent =
        last == 0.0 ? format.lowest_exponent : std::max(std::ilogb(last), format.lowest_exponent);
    numbers.push_back(last + std::max(step, std::ldexp(1.0, exponent - format.digits + 1)));
  }
  return numbers;
}

/// Every number of the format, the ties between neighbours and the f32 numbers beside those, what
/// is beyond the largest, of both signs; and what is no number.
Values hard_cases(const Format& format) {
  Values values{0.0, -0.0, INFINITY, -INFINITY, NAN, 1e30, -1e30, 1e-30, 3.0e38, 1e-45};
  const Values numbers = numbers_of(format);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double next = i + 1 < numbers.size() ? numbers[i + 1] : 1.2 * format.largest;
    const auto tie = static_cast<float>((numbers[i] + next) / 2);
    for (const float value :
         {static_cast<float>(numbers[i]), tie, std::nextafter(tie, 0.0F),
          std::nextafter(tie, INFINITY), static_cast<float>(numbers[i] * 0.75 + next * 0.25)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  return values;
}

}  // namespace

TEST_CASE("8-bit floats hold what their tables say", "[ops][fp8]") {
  CHECK(numbers_of(kFormats[0]).size() == 0x7f);  // 0 … 0x7e
  CHECK(numbers_of(kFormats[1]).size() == 0x7c);  // 0 … 0x7b
  for (int code = 0; code < 0x80; ++code) {
    CAPTURE(code);
    const auto bits = static_cast<std::uint8_t>(code);
    const auto index = static_cast<std::size_t>(code);
    const Values e4m3 = numbers_of(kFormats[0]);
    const Values e5m2 = numbers_of(kFormats[1]);
    CHECK(same(to_float(F8E4M3{bits}), index < e4m3.size() ? e4m3[index] : NAN));
    CHECK(same(to_float(F8E5M2{bits}), index < e5m2.size()    ? e5m2[index]
                                       : index == e5m2.size() ? INFINITY
                                                              : NAN));
    const auto negative = static_cast<std::uint8_t>(code | 0x80);
    CHECK(same(to_float(F8E4M3{negative}), -to_float(F8E4M3{bits})));
    CHECK(same(to_float(F8E5M2{negative}), -to_float(F8E5M2{bits})));
  }
}

TEST_CASE("quantize rounds to the nearest 8-bit float", "[ops][fp8]") {
  for (const Format& format : kFormats) {
    for (const DType dtype : kComputeDtypes) {
      for (const double scale : {1.0, 0x1p-20, 0x1p12}) {
        CAPTURE(name_of(format.dtype), name_of(dtype), scale);
        Values x = hard_cases(format);
        if (dtype == DType::kF32) {
          for (double& value : x)
            value *= scale;  // the ties of another scale
        }
        x = rounded_to(dtype, x);
        if (dtype != DType::kF32) {
          for (double& value : x) {  // subnormals, which some processors take as zero
            if (std::abs(value) < 0x1p-126) value = 0.0;
          }
        }
        const Values expected = nearest(format, x, scale);
        for (const BackendUnderTest& backend : backends_under_test()) {
          INFO(backend.name);
          Lab lab(backend.make(2));
          const auto n = static_cast<std::int64_t>(x.size());
          const Tensor q = lab.unset(format.dtype, {1, n});
          const Tensor amax = lab.put({0.5}, DType::kF32, {1});
          lab.ops().quantize({.x_RC = lab.put(x, dtype, {1, n}),
                              .scale = lab.put({scale}, DType::kF32, {1}),
                              .q_RC = q,
                              .q_CR = {},
                              .amax = amax},
                             lab.stream());
          const Values actual = lab.get(q);
          for (std::size_t i = 0; i < x.size(); ++i) {
            if (!same(actual[i], expected[i])) {
              FAIL(fmt::format("{} becomes {}, expected {}", x[i], actual[i], expected[i]));
            }
          }
          CHECK(std::isnan(lab.get(amax)[0]));
        }
      }
    }
  }
}

TEST_CASE("quantize writes rows, columns and the largest magnitude", "[ops][fp8]") {
  for (const Format& format : kFormats) {
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{16, 16},
                                        {64, 128},
                                        {80, 48},
                                        {16, 208},
                                        {272, 64}}) {
      for (const DType dtype : kComputeDtypes) {
        CAPTURE(name_of(format.dtype), name_of(dtype), rows, columns);
        Values x = rounded_to(dtype, random_values(rows * columns, 1, 3.0));
        x[static_cast<std::size_t>(rows * columns / 2)] = -3.25;
        const double scale = 0x1p-5;
        const Values by_rows = nearest(format, x, scale);
        const Values by_columns = transposed(by_rows, rows, columns);
        conforms({{"q", by_rows, 0.0, 0.0},
                  {"transposed", by_columns, 0.0, 0.0},
                  {"transposed alone", by_columns, 0.0, 0.0},
                  {"amax", {3.25}, 0.0, 0.0},
                  {"amax of more", {4.0}, 0.0, 0.0},
                  {"amax alone", {3.25}, 0.0, 0.0}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const Tensor in = lab.put(x, dtype, {rows, columns});
                   const Tensor factor = lab.put({scale}, DType::kF32, {1});
                   const Tensor q = lab.unset(format.dtype, {rows, columns});
                   const Tensor both = lab.unset(format.dtype, {columns, rows});
                   const Tensor alone = lab.unset(format.dtype, {columns, rows});
                   const Tensor amax = lab.put({0.0}, DType::kF32, {1});
                   const Tensor more = lab.put({4.0}, DType::kF32, {1});
                   const Tensor only = lab.put({1.0}, DType::kF32, {1});
                   Ops& ops = lab.ops();
                   ops.quantize({in, factor, q, both, amax}, lab.stream());
                   ops.quantize({in, factor, {}, alone, more}, lab.stream());
                   ops.quantize({in, {}, {}, {}, only}, lab.stream());
                   return {lab.get(q),    lab.get(both), lab.get(alone),
                           lab.get(amax), lab.get(more), lab.get(only)};
                 });
      }
    }
  }
}

TEST_CASE("a product in 8 bits is that of the scaled numbers", "[ops][fp8]") {
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{16, 16, 16}, {80, 48, 128}, {32, 272, 64}, {128, 64, 304}}) {
    for (const auto& [left, right] : {std::pair{kFormats[0], kFormats[0]},
                                      {kFormats[1], kFormats[0]},
                                      {kFormats[0], kFormats[1]}}) {
      CAPTURE(m, n, k, name_of(left.dtype), name_of(right.dtype));
      const double a_scale = 0x1p-9;
      const double b_scale = 0x1p3;
      const Values a = random_values(m * k, 1, 200 * a_scale);
      const Values b = random_values(n * k, 2, 200 * b_scale);
      const Values bias = rounded_to(DType::kBF16, random_values(n, 3, 100.0));
      const Values a8 = nearest(left, rounded_to(DType::kF32, a), a_scale);
      const Values b8 = nearest(right, rounded_to(DType::kF32, b), b_scale);
      Values c;
      Values with_bias;
      Values twice;
      double largest = 0.0;
      for (std::int64_t row = 0; row < m; ++row) {
        for (std::int64_t column = 0; column < n; ++column) {
          double sum = 0.0;
          for (std::int64_t i = 0; i < k; ++i) {
            sum += a8[static_cast<std::size_t>(row * k + i)] * a_scale *
                   b8[static_cast<std::size_t>(column * k + i)] * b_scale;
          }
          c.push_back(sum);
          twice.push_back(2 * sum);
          with_bias.push_back(sum + bias[static_cast<std::size_t>(column)]);
          largest = std::max(largest, std::abs(sum));
        }
      }
      for (const BackendUnderTest& backend : backends_with_fp8()) {
        // Up to 304 products that f32 adds.
        const double absolute =
            (1e-6 * 16 + backend.fp8_loss * std::ceil(static_cast<double>(k) / 32)) * largest;
        conforms({{"c", c, 2e-6, absolute},
                  {"added to itself", twice, 2e-6, 2 * absolute},
                  {"with bias", with_bias, relative_error_of(DType::kBF16), absolute}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const auto quantized = [&](const Values& x, DType dtype, std::int64_t rows,
                                              double scale) {
                     const ScaledTensor result{lab.unset(dtype, {rows, k}),
                                               lab.put({scale}, DType::kF32, {1})};
                     const Tensor q(const_cast<void*>(result.q.data()), dtype, {rows, k});
                     lab.ops().quantize({lab.put(x, DType::kF32, {rows, k}),
                                         result.scale,
                                         q,
                                         {},
                                         lab.put({0.0}, DType::kF32, {1})},
                                        lab.stream());
                     return result;
                   };
                   const ScaledTensor left_in = quantized(a, left.dtype, m, a_scale);
                   const ScaledTensor right_in = quantized(b, right.dtype, n, b_scale);
                   const Tensor out = lab.unset(DType::kF32, {m, n});
                   const Tensor sums = lab.unset(DType::kF32, {m, n});
                   const Tensor narrow = lab.unset(DType::kBF16, {m, n});
                   Ops& ops = lab.ops();
                   ops.scaled_product(left_in, right_in, {}, out, Write::kOverwrite, lab.stream());
                   ops.scaled_product(left_in, right_in, {}, sums, Write::kOverwrite, lab.stream());
                   ops.scaled_product(left_in, right_in, {}, sums, Write::kAdd, lab.stream());
                   ops.scaled_product(left_in, right_in, lab.put(bias, DType::kBF16, {n}), narrow,
                                      Write::kOverwrite, lab.stream());
                   return {lab.get(out), lab.get(sums), lab.get(narrow)};
                 },
                 AcrossThreads::kWithinTolerance,  // the library may split its sums by threads
                 {backend});
      }
    }
  }
}

#ifdef DSTRAIN_CUDA_FP8
TEST_CASE("conversions are NVIDIA's, for every bf16", "[ops][fp8]") {
  for (const auto& [dtype, format] :
       {std::pair{DType::kF8E4M3, __NV_E4M3}, {DType::kF8E5M2, __NV_E5M2}}) {
    Values x;
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
      const float value = to_float(BF16{static_cast<std::uint16_t>(bits)});
      const bool is_subnormal = value != 0.0F && std::abs(value) < 0x1p-126F;
      x.push_back(is_subnormal ? 0.0 : static_cast<double>(value));
    }
    const auto n = static_cast<std::int64_t>(x.size());
    for (const BackendUnderTest& backend : backends_under_test()) {
      INFO(backend.name);
      Lab lab(backend.make(2));
      const Tensor q = lab.unset(dtype, {1, n});
      lab.ops().quantize({lab.put(x, DType::kBF16, {1, n}),
                          lab.put({1.0}, DType::kF32, {1}),
                          q,
                          {},
                          lab.put({0.0}, DType::kF32, {1})},
                         lab.stream());
      const Values actual = lab.get(q);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto theirs = __nv_cvt_float_to_fp8(static_cast<float>(x[i]), __NV_SATFINITE, format);
        const float value =
            dtype == DType::kF8E4M3 ? to_float(F8E4M3{theirs}) : to_float(F8E5M2{theirs});
        if (std::isfinite(x[i]) && !same(actual[i], value)) {  // they make infinity the largest
          FAIL(fmt::format("{} becomes {}, theirs {}", x[i], actual[i], value));
        }
      }
    }
  }
}
#endif

}  // namespace dstrain::test
