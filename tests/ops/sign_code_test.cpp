// Sign codes against a plain loop, byte for byte and bit for bit: what goes into messages, what
// stays behind, and what is made of messages again.
#include "kernels/math/sign_code.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"
#include "tests/ops/lab_bytes.h"

namespace dstrain::test {
namespace {

/// Around a byte of signs, the vectors (16), and the pieces that tasks take (2¹⁴).
constexpr std::int64_t kSizes[] = {0,     1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 1000, (1 << 14) + 13,
                                   40'007};

struct Layout {
  std::int64_t count;
  std::int64_t spare;  ///< chunks that nothing goes into
  std::int64_t signs;
  std::int64_t scale;
};
const Layout kLayouts[] = {{1, 0, 4, 0}, {2, 0, 0, -1}, {3, 0, 7, 0}, {5, 2, 13, 8}, {8, 7, 5, 0}};

/// Messages that the last `spare` have nothing of; the scale behind the signs where it is negative.
SignParts parts_of(const Layout& layout, std::int64_t n) {
  const std::int64_t filled = layout.count - layout.spare;
  SignParts parts{.count = layout.count, .signs = layout.signs, .scale = layout.scale};
  parts.chunk = ((n + filled - 1) / filled + 7) / 8 * 8;
  const std::int64_t behind = (parts.signs + parts.sign_bytes() + 3) / 4 * 4;
  parts.scale = layout.scale < 0 ? behind : layout.scale;
  parts.stride = behind + 12;
  return parts;
}
std::int64_t bytes_of(const SignParts& parts) {
  return parts.count * parts.stride;
}

float value_of(const Bytes& coded, const SignParts& parts, std::int64_t message, std::int64_t i) {
  const std::uint8_t* const from = coded.data() + message * parts.stride;
  float scale = 0.0F;
  std::memcpy(&scale, from + parts.scale, sizeof scale);
  const bool plus = ((from[parts.signs + i / 8] >> (7 - i % 8)) & 1) != 0;
  return plus ? scale : -scale;
}

struct Coded {
  Bytes messages;
  Values rest;
};
/// What coding x has to give, the bytes of the messages being 0x7f before.
Coded expected_code(const SignParts& parts, const Values& x, double squares) {
  const auto n = static_cast<std::int64_t>(x.size());
  Coded expected{Bytes(static_cast<std::size_t>(bytes_of(parts)), 0x7fU), x};
  const float scale =
      n == 0 ? 0.0F : static_cast<float>(std::sqrt(squares / static_cast<double>(n)));
  for (std::int64_t message = 0; message < parts.count; ++message) {
    std::uint8_t* const to = expected.messages.data() + message * parts.stride;
    std::memcpy(to + parts.scale, &scale, sizeof scale);
    std::memset(to + parts.signs, 0, static_cast<std::size_t>(parts.chunk / 8));
    for (std::int64_t k = 0; k < parts.chunk && message * parts.chunk + k < n; ++k) {
      const auto i = static_cast<std::size_t>(message * parts.chunk + k);
      const auto value = static_cast<float>(x[i]);
      const bool minus = value < 0.0F;
      to[parts.signs + k / 8] |= minus ? 0 : static_cast<std::uint8_t>(0x80 >> (k % 8));
      expected.rest[i] = value - (minus ? -scale : scale);
    }
  }
  return expected;
}

/// Values with zeros of both signs among them.
Values with_zeros(std::int64_t n, std::uint64_t seed) {
  Values x = rounded_to(DType::kF32, random_values(n, seed));
  for (std::size_t i = 3; i < x.size(); i += 11) {
    x[i] = i % 2 == 0 ? 0.0 : -0.0;
  }
  return x;
}
double squares_of(const Values& x) {
  double total = 0.0;
  for (const double value : x) {
    total += value * value;
  }
  return total;
}

/// A view of n floats that begins `skipped` elements into memory.
Tensor put_at(Lab& lab, const Values& x, std::int64_t skipped) {
  Values with_skipped(static_cast<std::size_t>(skipped), 99.0);
  with_skipped.insert(with_skipped.end(), x.begin(), x.end());
  const auto all = static_cast<std::int64_t>(with_skipped.size());
  return lab.put(with_skipped, DType::kF32, {all}).flat(skipped, all);
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

}  // namespace

TEST_CASE("signs and scale go into messages as a plain loop puts them, and the rest stays",
          "[ops][sign_code]") {
  on_each_backend([](Lab& lab) {
    for (const std::int64_t n : kSizes) {
      for (const Layout& layout : kLayouts) {
        for (const std::int64_t skipped : {0, 1}) {
          CAPTURE(n, layout.count, layout.signs, skipped);
          const SignParts parts = parts_of(layout, n);
          const Values x = with_zeros(n, 1);
          const Coded expected = expected_code(parts, x, squares_of(x));
          const Tensor values = put_at(lab, x, skipped);
          const Tensor coded = lab.unset(DType::kU8, {bytes_of(parts)});
          const Tensor squares = lab.put({squares_of(x)}, DType::kF64, {1});
          lab.ops().encode_signs(parts, values, squares, coded, lab.stream());
          CHECK((get_bytes(lab, coded) == expected.messages));
          CHECK((lab.get(values) == expected.rest));

          // What was coded and what was left out make up what there was.
          const Tensor back = put_at(lab, Values(x.size(), 99.0), skipped);
          lab.ops().decode_signs(parts, coded, back, lab.stream());
          const Values codes = lab.get(back);
          const Values rest = lab.get(values);
          bool right = true;
          for (std::int64_t i = 0; i < n; ++i) {
            const auto at = static_cast<std::size_t>(i);
            const std::int64_t message = i / parts.chunk;
            right = right && codes[at] == value_of(expected.messages, parts, message,
                                                   i - message * parts.chunk);
            right = right && rest[at] == static_cast<float>(x[at] - codes[at]);
          }
          CHECK(right);
        }
      }
    }
  });
}

TEST_CASE("messages are summed in their order, whatever bytes they have", "[ops][sign_code]") {
  constexpr float kThird = 1.0F / 3.0F;
  on_each_backend([](Lab& lab) {
    std::mt19937 random(5);
    for (const std::int64_t n : {0, 1, 8, 9, 17, 2048, (1 << 14) + 13}) {
      for (const Layout& layout : kLayouts) {
        SignParts parts = parts_of({layout.count, 0, layout.signs, layout.scale}, n * layout.count);
        parts.chunk = 0;
        Bytes messages(static_cast<std::size_t>(bytes_of(parts)));
        // 2048 neighbours have all patterns of a byte.
        for (std::size_t i = 0; i < messages.size(); ++i) {
          messages[i] = static_cast<std::uint8_t>(n == 2048 ? i : random());
        }
        for (std::int64_t message = 0; message < parts.count; ++message) {
          const float scale = std::ldexp(1.0F + 0.37F * static_cast<float>(message), -3);
          std::memcpy(messages.data() + message * parts.stride + parts.scale, &scale, sizeof scale);
        }
        const Values before = rounded_to(DType::kF32, random_values(n, 2));
        for (const float factor : {1.0F, 0.25F, kThird}) {
          CAPTURE(n, layout.count, layout.signs, factor);
          Values sums;
          Values added;
          for (std::int64_t i = 0; i < n; ++i) {
            float sum = 0.0F;
            for (std::int64_t message = 0; message < parts.count; ++message) {
              sum += value_of(messages, parts, message, i);
            }
            sum *= factor;
            sums.push_back(sum);
            added.push_back(static_cast<float>(before[static_cast<std::size_t>(i)]) + sum);
          }
          const Tensor coded = put_bytes(lab, messages);
          const Tensor values = put_at(lab, Values(sums.size(), 99.0), n % 2);
          lab.ops().sum_signs(parts, coded, factor, values, Write::kOverwrite, lab.stream());
          CHECK((lab.get(values) == sums));
          const Tensor summed = put_at(lab, before, n % 2);
          lab.ops().sum_signs(parts, coded, factor, summed, Write::kAdd, lab.stream());
          const Values after = lab.get(summed);
          double worst = 0.0;
          for (std::size_t i = 0; i < after.size(); ++i) {
            worst = std::max(worst, std::abs(after[i] - added[i]));
          }
          // A device may round the product by the factor and the sum at once.
          CHECK(worst <= (factor == kThird ? 0x1p-23 : 0.0));
        }
      }
    }
  });
}

TEST_CASE("a code has the length of what it codes", "[ops][sign_code]") {
  constexpr std::int64_t kN = 1003;
  const Values x = rounded_to(DType::kF32, random_values(kN, 3));
  on_each_backend([&](Lab& lab) {
    const SignParts parts = parts_of(kLayouts[3], kN);
    const Tensor values = lab.put(x, DType::kF32, {kN});
    const Tensor squares = lab.unset(DType::kF64, {1});
    const Tensor coded = lab.unset(DType::kU8, {bytes_of(parts)});
    lab.ops().sum_of_squares(values, squares, Write::kOverwrite, lab.stream());
    lab.ops().encode_signs(parts, values, squares, coded, lab.stream());
    lab.ops().decode_signs(parts, coded, values, lab.stream());
    CHECK(std::sqrt(squares_of(lab.get(values))) == Approx(std::sqrt(squares_of(x))).epsilon(1e-7));
  });
}

TEST_CASE("a NaN spoils the scale, but no sign of another element", "[ops][sign_code]") {
  constexpr std::int64_t kN = 77;
  on_each_backend([](Lab& lab) {
    for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
      for (const std::size_t at : {0, 17, 76}) {
        CAPTURE(bad, at);
        Values x = rounded_to(DType::kF32, random_values(kN, 4));
        x[at] = bad;
        const SignParts parts = parts_of(kLayouts[0], kN);
        const Tensor values = lab.put(x, DType::kF32, {kN});
        const Tensor squares = lab.put({bad * bad}, DType::kF64, {1});
        const Tensor coded = lab.unset(DType::kU8, {bytes_of(parts)});
        lab.ops().encode_signs(parts, values, squares, coded, lab.stream());
        const Bytes messages = get_bytes(lab, coded);
        float scale = 0.0F;
        std::memcpy(&scale, messages.data() + parts.scale, sizeof scale);
        CHECK_FALSE(std::isfinite(scale));
        for (std::size_t i = 0; i < x.size(); ++i) {
          const bool plus =
              ((messages[static_cast<std::size_t>(parts.signs) + i / 8] >> (7 - i % 8)) & 1) != 0;
          CHECK((plus == !(x[i] < 0.0)));
        }
      }
    }
  });
}

TEST_CASE("sign codes refuse messages that do not hold them", "[ops][sign_code]") {
  on_each_backend([](Lab& lab) {
    const Tensor values = lab.unset(DType::kF32, {20});
    const Tensor squares = lab.unset(DType::kF64, {1});
    const Tensor coded = lab.unset(DType::kU8, {16});
    const auto encode = [&](const SignParts& parts) {
      lab.ops().encode_signs(parts, values, squares, coded, lab.stream());
    };
    const SignParts right{.count = 2, .chunk = 16, .stride = 8, .signs = 4};
    CHECK_NOTHROW(encode(right));
    SignParts wrong = right;
    wrong.chunk = 12;
    CHECK_THROWS_WITH(encode(wrong), Catch::Contains("expected a multiple of 8 that suffices"));
    wrong.chunk = 8;
    CHECK_THROWS_WITH(encode(wrong), Catch::Contains("20 values in 2 messages of 8"));
    wrong = right;
    wrong.signs = 7;
    CHECK_THROWS_WITH(encode(wrong), Catch::Contains("expected at least 17 bytes"));
    wrong.signs = 3;
    CHECK_THROWS_WITH(encode(wrong), Catch::Contains("lie over the scale"));
    wrong.scale = 2;
    wrong.signs = 0;
    CHECK_THROWS_WITH(encode(wrong), Catch::Contains("expected multiples of 4"));
    CHECK_THROWS_WITH(lab.ops().sum_signs(right, coded, 1.0F, lab.unset(DType::kF32, {40}),
                                          Write::kOverwrite, lab.stream()),
                      Catch::Contains("expected at least 17 bytes"));
    CHECK_THROWS_WITH(
        lab.ops().decode_signs(right, coded, lab.unset(DType::kBF16, {20}), lab.stream()),
        Catch::Contains("values is bf16"));
  });
}

}  // namespace dstrain::test
