// Operations over flat ranges: addition, conversion, zeros, sums, AdamW.
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Around the vector lengths (16), the pieces that tasks take (2¹⁵) and the blocks of sums (2¹⁶).
constexpr std::int64_t kSizes[] = {1, 7, 16, 33, 257, (1 << 15) + 5, (1 << 17) + 9};

}  // namespace

TEST_CASE("add adds, also into one of its inputs", "[ops][flat]") {
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t n : kSizes) {
      CAPTURE(name_of(dtype), n);
      const Values a = rounded_to(dtype, random_values(n, 1));
      const Values b = rounded_to(dtype, random_values(n, 2));
      Values y(a.size());
      std::transform(a.begin(), a.end(), b.begin(), y.begin(), std::plus<>());
      conforms({{"y", rounded_to(dtype, y), 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
        const Tensor sum = lab.put(a, dtype, {n});
        lab.ops().add(sum, lab.put(b, dtype, {n}), sum, lab.stream());
        return {lab.get(sum)};
      });
    }
  }
}

TEST_CASE("cast rounds to nearest even, keeps infinities and NaN, and widens exactly",
          "[ops][flat]") {
  for (const std::int64_t n : kSizes) {
    const Values x = rounded_to(DType::kF32, random_values(n, 1, 100.0));
    const Values narrow = rounded_to(DType::kBF16, x);
    conforms({{"bf16", narrow, 0.0, 0.0}, {"back to f32", narrow, 0.0, 0.0}, {"copy", x, 0.0, 0.0}},
             [&](Lab& lab) -> std::vector<Values> {
               const Tensor in = lab.put(x, DType::kF32, {n});
               const Tensor half = lab.unset(DType::kBF16, {n});
               const Tensor wide = lab.unset(DType::kF32, {n});
               const Tensor copy = lab.unset(DType::kF32, {n});
               lab.ops().cast(in, half, lab.stream());
               lab.ops().cast(half, wide, lab.stream());
               lab.ops().cast(in, copy, lab.stream());
               return {lab.get(half), lab.get(wide), lab.get(copy)};
             });
  }
  // 1 + 2⁻⁸ lies half way between two bf16 numbers and goes to the even one, 1 + 3·2⁻⁸ likewise.
  const double infinity = INFINITY;
  const Values ties{1.0 + 0x1p-8, 1.0 + 0x3p-8, -1.0 - 0x1p-8, infinity, -infinity, 0.0};
  conforms({{"ties", {1.0, 1.0 + 0x1p-6, -1.0}, 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
    Values with_nan = ties;
    with_nan.push_back(NAN);
    // Repeated, so that whole vectors as well as the rest of one see each of them.
    Values x;
    for (int i = 0; i < 5; ++i) {
      x.insert(x.end(), with_nan.begin(), with_nan.end());
    }
    const auto n = static_cast<std::int64_t>(x.size());
    const Tensor out = lab.unset(DType::kBF16, {n});
    lab.ops().cast(lab.put(x, DType::kF32, {n}), out, lab.stream());
    const Values y = lab.get(out);
    for (std::size_t at = 0; at < y.size(); at += with_nan.size()) {
      CHECK(y[at + 3] == infinity);
      CHECK(y[at + 4] == -infinity);
      CHECK(std::isnan(y[at + 6]));
      CHECK(Values(y.begin() + static_cast<std::ptrdiff_t>(at),
                   y.begin() + static_cast<std::ptrdiff_t>(at) + 3) ==
            Values(y.begin(), y.begin() + 3));
    }
    return {Values(y.begin(), y.begin() + 3)};
  });
}

TEST_CASE("zero clears every byte and no other", "[ops][flat]") {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{33}, (std::int64_t{1} << 22) + 3}) {
    Values expected(static_cast<std::size_t>(n + 2), 0.0);
    expected.front() = expected.back() = 99.0;
    conforms({{"zeros", expected, 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
      const Tensor whole = lab.unset(DType::kF32, {n + 2});
      lab.ops().zero(whole.flat(1, n + 1), lab.stream());
      return {lab.get(whole)};
    });
  }
}

TEST_CASE("sums are fp64 sums, whatever the number of threads", "[ops][flat]") {
  for (const std::int64_t n : kSizes) {
    CAPTURE(n);
    const Values x = rounded_to(DType::kF32, random_values(n, 1));
    const double sum = std::accumulate(x.begin(), x.end(), 0.0);
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    // fp64 in another order.
    conforms({{"sum", {sum}, 1e-12, 1e-10},
              {"sum added", {sum + 2.0}, 1e-12, 1e-10},
              {"squares", {squares}, 1e-12, 1e-10},
              {"squares added", {squares + 2.0}, 1e-12, 1e-10}},
             [&](Lab& lab) -> std::vector<Values> {
               const Tensor in = lab.put(x, DType::kF32, {n});
               std::vector<Values> outputs;
               for (const auto op : {&Ops::sum, &Ops::sum_of_squares}) {
                 for (const Write write : {Write::kOverwrite, Write::kAdd}) {
                   const Tensor total = lab.put({2.0}, DType::kF64, {1});
                   (lab.ops().*op)(in, total, write, lab.stream());
                   outputs.push_back(lab.get(total));
                 }
               }
               return outputs;
             });
  }
}

TEST_CASE("three steps of adamw follow the paper's algorithm in fp64", "[ops][adamw]") {
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{37}, std::int64_t{(1 << 15) + 5}}) {
      CAPTURE(name_of(dtype), n);
      const Values start = rounded_to(DType::kF32, random_values(n, 1));
      Values master = start;
      Values m(start.size(), 0.0);
      Values v(start.size(), 0.0);
      std::vector<Values> gradients;
      std::vector<AdamwStep> steps;
      for (int t = 1; t <= 3; ++t) {
        gradients.push_back(
            rounded_to(DType::kF32, random_values(n, 10 + static_cast<std::uint64_t>(t), 0.1)));
        steps.push_back({.learning_rate = 1e-2F,
                         .weight_decay = 0.1F,
                         .bias_correction1 = 1.0F - std::pow(0.9F, static_cast<float>(t)),
                         .bias_correction2 = 1.0F - std::pow(0.999F, static_cast<float>(t)),
                         .gradient_scale = 0.5F});
        const AdamwStep& step = steps.back();
        for (std::size_t i = 0; i < start.size(); ++i) {
          const double g = gradients.back()[i] * step.gradient_scale;
          m[i] = step.beta1 * m[i] + (1.0 - step.beta1) * g;
          v[i] = step.beta2 * v[i] + (1.0 - step.beta2) * g * g;
          const double m_hat = m[i] / step.bias_correction1;
          const double v_hat = v[i] / step.bias_correction2;
          master[i] -= step.learning_rate *
                       (m_hat / (std::sqrt(v_hat) + step.epsilon) + step.weight_decay * master[i]);
        }
      }
      // 1 - 0.999 in f32 is off by 5e-5 relative to exact 0.001, but the reference starts from the
      // same f32 beta; what remains is rounding of three steps of order 1e-2.
      conforms({{"master", master, 1e-6, 1e-7},
                {"m", m, 1e-5, 1e-9},
                {"v", v, 1e-4, 1e-12},
                {"parameters", master, relative_error_of(dtype), 1e-7}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Values zeros(start.size(), 0.0);
                 const Tensor master_io = lab.put(start, DType::kF32, {n});
                 const Tensor m_io = lab.put(zeros, DType::kF32, {n});
                 const Tensor v_io = lab.put(zeros, DType::kF32, {n});
                 const bool copies = dtype != DType::kF32;
                 const Tensor copy = copies ? lab.unset(dtype, {n}) : Tensor{};
                 for (std::size_t t = 0; t < steps.size(); ++t) {
                   lab.ops().adamw(steps[t], lab.put(gradients[t], DType::kF32, {n}), master_io,
                                   m_io, v_io, copy, lab.stream());
                 }
                 return {lab.get(master_io), lab.get(m_io), lab.get(v_io),
                         lab.get(copies ? copy : master_io)};
               });
    }
  }
}

TEST_CASE("an operation refuses tensors of the wrong size or dtype by name", "[ops]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    const Tensor a = lab.put(Values(6, 1.0), DType::kF32, {6});
    const Tensor shorter = lab.put(Values(5, 1.0), DType::kF32, {5});
    const Tensor half = lab.put(Values(6, 1.0), DType::kBF16, {6});
    CHECK_THROWS_WITH(lab.ops().add(a, shorter, a, lab.stream()),
                      Catch::Contains("add: b is f32 of shape [5]"));
    CHECK_THROWS_WITH(lab.ops().add(a, a, half, lab.stream()), Catch::Contains("add: y is bf16"));
  }
}

}  // namespace dstrain::test
