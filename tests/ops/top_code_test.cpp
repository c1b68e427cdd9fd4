// Top codes against a sort: which numbers go into messages and where they are, what stays behind,
// and what is made of messages again, bit for bit.
#include "kernels/math/top_code.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"
#include "tests/ops/lab_bytes.h"

namespace dstrain::test {
namespace {

constexpr std::int64_t kBlock = TopCode::kBlock;

struct Coded {
  Bytes message;
  Values rest;
};

/// What coding x has to give: places sorted by magnitude, NaN first, then by place.
Coded expected_code(const TopCode& code, const Values& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  Coded expected{Bytes(static_cast<std::size_t>(code.bytes(n)), 0), x};
  std::vector<float> values;
  std::vector<std::uint16_t> places;
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t size = std::min(kBlock, n - first);
    std::vector<std::int64_t> order(static_cast<std::size_t>(size));
    std::iota(order.begin(), order.end(), first);
    const auto magnitude = [&](std::int64_t i) {
      const double value = std::abs(x[static_cast<std::size_t>(i)]);
      return std::isnan(value) ? std::make_pair(1, 0.0) : std::make_pair(0, value);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t a, std::int64_t b) { return magnitude(a) > magnitude(b); });
    order.resize(static_cast<std::size_t>(std::min(code.keep, size)));
    std::sort(order.begin(), order.end());
    for (const std::int64_t i : order) {
      values.push_back(static_cast<float>(x[static_cast<std::size_t>(i)]));
      places.push_back(static_cast<std::uint16_t>(i - first));
      expected.rest[static_cast<std::size_t>(i)] = 0.0;
    }
  }
  if (values.empty()) return expected;
  std::memcpy(expected.message.data(), values.data(), 4 * values.size());
  std::memcpy(expected.message.data() + 4 * values.size(), places.data(), 2 * places.size());
  return expected;
}

/// The bits of floats, so that NaN equals itself.
Bytes float_bytes(Lab& lab, ConstTensor tensor) {
  return get_bytes(lab, tensor);
}

void check_code(Lab& lab, const TopCode& code, const Values& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  const Coded expected = expected_code(code, x);
  for (const std::int64_t skipped : {0, 1}) {
    CAPTURE(n, code.keep, skipped);
    Values all(static_cast<std::size_t>(skipped), 99.0);
    all.insert(all.end(), x.begin(), x.end());
    const Tensor values = lab.put(all, DType::kF32, {n + skipped}).flat(skipped, n + skipped);
    const Tensor coded = lab.unset(DType::kU8, {code.bytes(n)});
    lab.ops().encode_largest(code, values, coded, lab.stream());
    CHECK((get_bytes(lab, coded) == expected.message));
    CHECK((float_bytes(lab, values) == float_bytes(lab, lab.put(expected.rest, DType::kF32, {n}))));
  }
}

template <typename Body>
void on_each_backend(Body&& body) {
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const int threads : {1, 2}) {
      CAPTURE(backend.name, threads);
      Lab lab(backend.make(threads));
      body(lab);
    }
  }
}

/// Numbers of very different size side by side, as gradients are.
Values wide_values(std::int64_t n, std::uint64_t seed) {
  Values values = random_values(n, seed);
  const Values exponents = random_values(n, seed + 1, 20.0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] *= std::exp2(std::round(exponents[i]));
  }
  return rounded_to(DType::kF32, values);
}

}  // namespace

TEST_CASE("the largest numbers of each block are sent, as a sort finds them", "[ops][top_code]") {
  on_each_backend([](Lab& lab) {
    for (const std::int64_t n :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{15}, std::int64_t{41}, std::int64_t{42},
          std::int64_t{1000}, kBlock - 1, kBlock, kBlock + 1, 3 * kBlock + 1001}) {
      for (const std::int64_t keep :
           {std::int64_t{1}, std::int64_t{41}, std::int64_t{512}, kBlock}) {
        check_code(lab, {keep}, wide_values(n, 1));
      }
    }
  });
}

TEST_CASE("of numbers of one magnitude the first are sent", "[ops][top_code]") {
  on_each_backend([](Lab& lab) {
    for (const std::int64_t n : {std::int64_t{700}, kBlock, kBlock + 300}) {
      const auto size = static_cast<std::size_t>(n);
      check_code(lab, {}, Values(size, 0.0));
      check_code(lab, {}, Values(size, -1.5));
      Values signs(size);       // equal but for the sign
      Values few(size);         // fewer that are not zero than are sent, among them the last
      Values levels(size);      // many of each of a few magnitudes
      Values above(size, 2.0);  // a few above many that are equal
      for (std::size_t i = 0; i < size; ++i) {
        signs[i] = i % 3 == 0 ? 0.25 : -0.25;
        few[i] = i % 97 == 96 || i + 1 == size ? 1.0 : 0.0;
        levels[i] = static_cast<double>(i * 7919 % 9) - 4.0;
        above[i] += i % 301 == 300 ? 1.0 : 0.0;
      }
      for (const Values& x : {signs, few, levels, above}) {
        check_code(lab, {}, x);
        check_code(lab, {.keep = 600}, x);
      }
    }
  });
}

TEST_CASE("NaN is the largest number, infinity the next, and the least ones count as well",
          "[ops][top_code]") {
  on_each_backend([](Lab& lab) {
    Values x = wide_values(kBlock, 3);
    x[4000] = NAN;
    x[17] = -INFINITY;
    x[2000] = INFINITY;
    for (const std::int64_t keep : {1, 2, 3, 4}) {
      check_code(lab, {keep}, x);
    }
    Values least(static_cast<std::size_t>(kBlock), 0.0);
    least[4095] = std::numeric_limits<float>::denorm_min();
    least[9] = -3.0 * std::numeric_limits<float>::denorm_min();
    for (const std::int64_t keep : {1, 2, 3}) {
      check_code(lab, {keep}, least);
    }
  });
}

TEST_CASE("messages of the largest numbers are summed in their order", "[ops][top_code]") {
  constexpr float kThird = 1.0F / 3.0F;
  on_each_backend([](Lab& lab) {
    for (const std::int64_t n :
         {std::int64_t{0}, std::int64_t{30}, std::int64_t{1001}, kBlock, 2 * kBlock + 77}) {
      for (const TopCode code : {TopCode{1}, TopCode{41}, TopCode{700}}) {
        for (const std::int64_t messages : {1, 3}) {
          CAPTURE(n, code.keep, messages);
          Bytes wire;
          std::vector<float> sums(static_cast<std::size_t>(n), 0.0F);
          for (std::int64_t message = 0; message < messages; ++message) {
            // Few places that are large, so that messages meet in them.
            Values x = wide_values(n, 10 + static_cast<std::uint64_t>(message));
            for (std::size_t i = 0; i < x.size(); i += 13) {
              x[i] = 5e5 + x[i];
            }
            x = rounded_to(DType::kF32, x);
            const Coded coded = expected_code(code, x);
            wire.insert(wire.end(), coded.message.begin(), coded.message.end());
            for (std::size_t i = 0; i < x.size(); ++i) {
              sums[i] += static_cast<float>(x[i] == coded.rest[i] ? 0.0 : x[i]);
            }
          }
          for (const float factor : {1.0F, kThird}) {
            Values expected;
            for (const float sum : sums) {
              expected.push_back(sum * factor);
            }
            const Tensor values = lab.unset(DType::kF32, {n});
            lab.ops().sum_largest(code, messages, put_bytes(lab, wire), factor, values,
                                  lab.stream());
            CHECK((lab.get(values) == expected));
          }
        }
      }
    }
  });
}

TEST_CASE("what is not sent has at most its share of the sum of squares", "[ops][top_code]") {
  constexpr std::int64_t kN = 5 * kBlock;
  const Values x = rounded_to(DType::kF32, random_values(kN, 8));
  const auto squares = [](const Values& of) {
    return std::inner_product(of.begin(), of.end(), of.begin(), 0.0);
  };
  on_each_backend([&](Lab& lab) {
    for (const TopCode code : {TopCode{41}, TopCode{1024}}) {
      const Tensor values = lab.put(x, DType::kF32, {kN});
      lab.ops().encode_largest(code, values, lab.unset(DType::kU8, {code.bytes(kN)}), lab.stream());
      const double left = squares(lab.get(values));
      CHECK(left > 0.0);
      CHECK(left <=
            (1.0 - static_cast<double>(code.keep) / static_cast<double>(kBlock)) * squares(x));
    }
  });
}

TEST_CASE("a message of the largest numbers has six bytes for each", "[ops][top_code]") {
  CHECK(TopCode{41}.bytes(kBlock) == 256);  // 246, padded
  CHECK(TopCode{40}.bytes(3 * kBlock) == 720);
  CHECK(TopCode{40}.bytes(2 * kBlock + 8) == 528);
  CHECK(TopCode{40}.bytes(0) == 0);
  CHECK(TopCode{40}.place_offset(2 * kBlock + 8) == 352);
}

TEST_CASE("top codes refuse what does not fit", "[ops][top_code]") {
  on_each_backend([](Lab& lab) {
    const Tensor values = lab.unset(DType::kF32, {100});
    const Tensor coded = lab.unset(DType::kU8, {256});
    CHECK_NOTHROW(lab.ops().encode_largest({}, values, coded, lab.stream()));
    CHECK_THROWS_WITH(lab.ops().encode_largest({.keep = 0}, values, coded, lab.stream()),
                      Catch::Contains("expected at least 1, and 1 to 4096"));
    CHECK_THROWS_WITH(lab.ops().encode_largest({.keep = 30}, values, coded, lab.stream()),
                      Catch::Contains("expected u8 with 192 elements"));
    CHECK_THROWS_WITH(lab.ops().sum_largest({}, 2, coded, 1.0F, values, lab.stream()),
                      Catch::Contains("expected u8 with 512 elements"));
  });
}

}  // namespace dstrain::test
