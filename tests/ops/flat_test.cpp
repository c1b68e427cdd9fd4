// Operations over flat ranges: addition, zeros, sums. Conversion is convert_test.cpp.
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "kernels/math/bit_sums.h"
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
    // fp64 in another order.
    conforms({{"sum", {sum}, 1e-12, 1e-10}, {"sum added", {sum + 2.0}, 1e-12, 1e-10}},
             [&](Lab& lab) -> std::vector<Values> {
               const Tensor in = lab.put(x, DType::kF32, {n});
               std::vector<Values> outputs;
               for (const Write write : {Write::kOverwrite, Write::kAdd}) {
                 const Tensor total = lab.put({2.0}, DType::kF64, {1});
                 lab.ops().sum(in, total, write, lab.stream());
                 outputs.push_back(lab.get(total));
               }
               return outputs;
             });
  }
}

TEST_CASE("sums of squares of every dtype are fp64 sums, beyond what f16 and f32 can hold",
          "[ops][flat]") {
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t n : kSizes) {
      for (const double scale : {1.0, dtype == DType::kF16 ? 60000.0 : 1e30}) {
        CAPTURE(name_of(dtype), n, scale);
        const Values x = rounded_to(dtype, random_values(n, 1, scale));
        const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
        const double earlier = 2.0 * scale * scale;
        // fp64 in another order, of terms of one sign.
        conforms({{"squares", {squares}, 1e-12, 0.0}, {"added", {squares + earlier}, 1e-12, 0.0}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const Tensor in = lab.put(x, dtype, {n});
                   const Tensor first = lab.put({earlier}, DType::kF64, {1});
                   const Tensor second = lab.put({earlier}, DType::kF64, {1});
                   lab.ops().sum_of_squares(in, first, Write::kOverwrite, lab.stream());
                   lab.ops().sum_of_squares(in, second, Write::kAdd, lab.stream());
                   return {lab.get(first), lab.get(second)};
                 });
      }
    }
  }
}

TEST_CASE("sums of bits are those of a loop over the bits, also of what a cast would make",
          "[ops][flat]") {
  const auto bits_of = [](float x, DType dtype) -> std::uint64_t {
    return dtype == DType::kBF16  ? to_bf16(x).bits
           : dtype == DType::kF16 ? to_f16(x).bits
                                  : std::bit_cast<std::uint32_t>(x);
  };
  const auto halves = [](const BitSums& sums) {
    const auto words = std::bit_cast<std::array<std::int32_t, 4>>(sums);
    return Values(words.begin(), words.end());
  };
  for (const DType from : kComputeDtypes) {
    for (const DType as : kComputeDtypes) {
      if (from != as && from != DType::kF32) continue;
      for (const std::int64_t n : kSizes) {
        CAPTURE(name_of(from), name_of(as), n);
        Values x = rounded_to(from, random_values(n + 1, 1));
        x.back() = -INFINITY;
        BitSums sums;
        BitSums of_rest;  // which begins at an odd address
        for (std::int64_t i = 0; i <= n; ++i) {
          const std::uint64_t bits =
              bits_of(static_cast<float>(x[static_cast<std::size_t>(i)]), as);
          sums.plain += bits;
          sums.weighted += static_cast<std::uint64_t>(i) * bits;
          if (i == 0) continue;
          of_rest.plain += bits;
          of_rest.weighted += static_cast<std::uint64_t>(i - 1) * bits;
        }
        conforms({{"of all", halves(sums), 0.0, 0.0}, {"of the rest", halves(of_rest), 0.0, 0.0}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const Tensor in = lab.put(x, from, {n + 1});
                   const Tensor all = lab.put_ids({1, 2, 3, 4});
                   const Tensor rest = lab.put_ids({1, 2, 3, 4});
                   lab.ops().bit_sums(in, as, all, lab.stream());
                   lab.ops().bit_sums(in.flat(1, n + 1), as, rest, lab.stream());
                   return {lab.get(all), lab.get(rest)};
                 });
      }
    }
  }
}

TEST_CASE("sums of bits of two parts make those of the whole", "[ops][flat]") {
  BitSums whole{.plain = 1 + 2 + 3, .weighted = 2 * 1 + 3 * 2};
  BitSums joined{.plain = 1, .weighted = 0};
  joined.add({.plain = 2 + 3, .weighted = 3}, 1);
  CHECK(joined == whole);
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
