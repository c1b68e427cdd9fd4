// Dropout of rows and of attention's probabilities against loops in fp64 that draw each element's
// random number by itself; how many elements are dropped; and that none are where nothing should
// be.
//
// B batch, T tokens of a sample, H query heads, K key/value heads, D head dim
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/attention.h"
#include "kernels/math/philox.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

constexpr std::uint64_t kKey = 0x123456789abcdefULL;
/// Beyond 32 bits, so that both words count.
constexpr std::int64_t kFirstSample = (std::int64_t{5} << 32) + 0xfffffffe;

/// Whether an element is kept, from the definition in kernels/math/dropout.h.
bool is_kept(float probability,
             std::int64_t sample,
             std::uint32_t plane,
             std::int64_t along,
             std::int64_t across) {
  const std::int64_t counter = along / 16 * 4 + along % 8 / 2;
  const std::int64_t word = (along / 8 % 2) * 2 + along % 2;
  const std::uint64_t low = static_cast<std::uint64_t>(counter) | static_cast<std::uint64_t>(across)
                                                                      << 32;
  const auto whole = static_cast<std::uint64_t>(sample);
  const std::uint64_t high =
      (whole & 0xffffffffU) |
      (static_cast<std::uint64_t>(plane) ^ ((whole >> 32) << 16 & 0xffffffffU)) << 32;
  const auto words = philox(kKey, low, high);
  return static_cast<double>(words[static_cast<std::size_t>(word)]) >=
         std::floor(static_cast<double>(probability) * 4294967296.0);
}

double factor(float probability,
              std::int64_t sample,
              std::uint32_t plane,
              std::int64_t along,
              std::int64_t across) {
  return is_kept(probability, sample, plane, along, across)
             ? 1.0 / (1.0 - static_cast<double>(probability))
             : 0.0;
}

Tensor put_first_sample(Lab& lab, std::array<std::int32_t, 2> words) {
  return lab.put_ids({words[0], words[1]});
}

struct Rows {
  std::int64_t sequence;
  std::int64_t first_row;
  std::int64_t rows;
  std::int64_t width;
  std::int64_t first_position = 0;
};

Values dropped_rows(const Rows& c, float probability, const Values& x) {
  Values y = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int64_t row = c.first_row + static_cast<std::int64_t>(i) / c.width;
    y[i] *= factor(probability, kFirstSample + row / c.sequence, 0,
                   c.first_position + row % c.sequence, static_cast<std::int64_t>(i) % c.width);
  }
  return y;
}

/// Causal attention of one batch, each head by itself, with dropped probabilities. Every query sees
/// a key.
struct Reference {
  AttentionShape shape;
  std::int64_t keys;
  AttentionReach reach;
  float probability;
  std::int64_t first_head;
  Values q;  ///< [B·T, H·D]
  Values k;  ///< [B·S, K·D]
  Values v;

  struct Results {
    Values out;
    Values logsumexp;
    Values dq;
    Values dk;
    Values dv;
  };

  [[nodiscard]] Results of(const Values& dout) const {
    Results r{Values(q.size()), {}, Values(q.size()), Values(k.size()), Values(v.size())};
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t h = 0; h < shape.query_heads; ++h) {
        for (std::int64_t t = 0; t < shape.sequence; ++t) {
          query(b, h, t, dout, r);
        }
      }
    }
    return r;
  }

 private:
  void query(std::int64_t b, std::int64_t h, std::int64_t t, const Values& dout, Results& r) const {
    const std::int64_t depth = shape.head_dim;
    const std::int64_t kv = h / (shape.query_heads / shape.key_value_heads);
    const std::int64_t row = ((b * shape.sequence + t) * shape.query_heads + h) * depth;
    const auto key = [&](std::int64_t u) {
      return ((b * keys + u) * shape.key_value_heads + kv) * depth;
    };
    const auto dot = [&](const Values& a, std::int64_t i, const Values& c, std::int64_t j) {
      double sum = 0.0;
      for (std::int64_t d = 0; d < depth; ++d) {
        sum += at(a, i + d) * at(c, j + d);
      }
      return sum;
    };
    const double scale = 1.0 / std::sqrt(static_cast<double>(depth));
    const std::int64_t own = reach.first_query - reach.first_key + t;
    const std::int64_t begin =
        reach.window == 0 ? 0 : std::max<std::int64_t>(0, own + 1 - reach.window);
    const std::int64_t end = std::min(own + 1, keys);
    double total = 0.0;
    for (std::int64_t u = begin; u < end; ++u) {
      total += std::exp(dot(q, row, k, key(u)) * scale);
    }
    r.logsumexp.push_back(std::log(total));
    const auto kept = [&](std::int64_t u) {
      return factor(probability, kFirstSample + b, static_cast<std::uint32_t>(first_head + h),
                    reach.first_key + u, reach.first_query + t);
    };
    double delta = 0.0;  // the derivative of the softmax's sum
    for (std::int64_t u = begin; u < end; ++u) {
      const double p = std::exp(dot(q, row, k, key(u)) * scale) / total;
      delta += p * kept(u) * dot(dout, row, v, key(u));
      for (std::int64_t d = 0; d < depth; ++d) {
        at(r.out, row + d) += p * kept(u) * at(v, key(u) + d);
      }
    }
    for (std::int64_t u = begin; u < end; ++u) {
      const double p = std::exp(dot(q, row, k, key(u)) * scale) / total;
      const double ds = p * (kept(u) * dot(dout, row, v, key(u)) - delta) * scale;
      for (std::int64_t d = 0; d < depth; ++d) {
        at(r.dq, row + d) += ds * at(k, key(u) + d);
        at(r.dk, key(u) + d) += ds * at(q, row + d);
        at(r.dv, key(u) + d) += p * kept(u) * at(dout, row + d);
      }
    }
  }

  static double& at(Values& values, std::int64_t i) { return values[static_cast<std::size_t>(i)]; }
  static double at(const Values& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  }
};

double largest(const Values& values) {
  double most = 0.0;
  for (const double value : values) {
    most = std::max(most, std::abs(value));
  }
  return most;
}

}  // namespace

TEST_CASE("dropout of rows keeps the elements that the definition says, wherever rows begin",
          "[ops][dropout]") {
  const Rows cases[] = {{7, 0, 7, 5},         {40, 0, 80, 33},       {33, 20, 46, 100},
                        {64, 100, 1, 64},     {7, 0, 21, 5, 30},     {40, 0, 80, 33, 16},
                        {33, 20, 46, 100, 7}, {5, 3, 4, 24, 1000000}};
  for (const DType dtype : kComputeDtypes) {
    for (const Rows& c : cases) {
      for (const float probability : {0.1F, 0.75F}) {
        CAPTURE(name_of(dtype), c.sequence, c.first_row, c.rows, c.width, probability);
        const Values x = rounded_to(dtype, random_values(c.rows * c.width, 3));
        conforms({{"y", dropped_rows(c, probability, x), relative_error_of(dtype),
                   absolute_error_of(dtype)}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const Tensor y = lab.put(x, dtype, {c.rows, c.width});
                   const DropoutRows rows{.dropout = {.probability = probability,
                                                      .key = kKey,
                                                      .first_sample = put_first_sample(
                                                          lab, first_sample_words(kFirstSample))},
                                          .sequence = c.sequence,
                                          .first_row = c.first_row,
                                          .first_position = c.first_position};
                   lab.ops().dropout(rows, y, y, lab.stream());
                   return {lab.get(y)};
                 });
      }
    }
  }
}

TEST_CASE("chunks of samples lose what they lose among the whole samples' rows", "[ops][dropout]") {
  constexpr std::int64_t kSamples = 2;
  constexpr std::int64_t kTokens = 60;
  constexpr std::int64_t kWidth = 40;
  constexpr std::int64_t kChunks = 4;  // of 15 tokens: their borders are none of the blocks of 16
  constexpr std::int64_t kChunk = kTokens / kChunks;
  const Values x = rounded_to(DType::kBF16, random_values(kSamples * kTokens * kWidth, 5));
  const Rows whole{kTokens, 0, kSamples * kTokens, kWidth};
  conforms(
      {{"y", rounded_to(DType::kBF16, dropped_rows(whole, 0.5F, x)), 0.0, 0.0}},
      [&](Lab& lab) -> std::vector<Values> {
        const Tensor first = put_first_sample(lab, first_sample_words(kFirstSample));
        Values y(x.size());
        for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
          const auto each_row = [&](const auto& visit) {  // of the chunk and of the whole
            for (std::int64_t n = 0; n < kSamples * kChunk; ++n) {
              const std::int64_t row = n / kChunk * kTokens + chunk * kChunk + n % kChunk;
              visit(static_cast<std::size_t>(n * kWidth), static_cast<std::size_t>(row * kWidth));
            }
          };
          Values rows(static_cast<std::size_t>(kSamples * kChunk * kWidth));
          each_row([&](std::size_t at, std::size_t of_whole) {
            std::copy_n(&x[of_whole], kWidth, &rows[at]);
          });
          const Tensor of_chunk = lab.put(rows, DType::kBF16, {kSamples * kChunk, kWidth});
          lab.ops().dropout({.dropout = {.probability = 0.5F, .key = kKey, .first_sample = first},
                             .sequence = kChunk,
                             .first_position = chunk * kChunk},
                            of_chunk, of_chunk, lab.stream());
          const Values dropped = lab.get(of_chunk);
          each_row([&](std::size_t at, std::size_t of_whole) {
            std::copy_n(&dropped[at], kWidth, &y[of_whole]);
          });
        }
        return {y};
      });
}

TEST_CASE("parts of rows lose what they lose among the whole rows", "[ops][dropout]") {
  constexpr std::int64_t kTokens = 20;
  constexpr std::int64_t kWidth = 60;
  constexpr std::int64_t kFirst = 23;
  const Values x = rounded_to(DType::kF32, random_values(kTokens * kWidth, 5));
  const auto part_of = [&](const Values& whole) {
    Values part;
    for (std::int64_t i = 0; i < kTokens * kWidth; ++i) {
      if (i % kWidth >= kFirst) part.push_back(whole[static_cast<std::size_t>(i)]);
    }
    return part;
  };
  const Values expected = part_of(dropped_rows({kTokens, 0, kTokens, kWidth}, 0.5F, x));
  conforms(
      {{"y", rounded_to(DType::kF32, expected), 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
        const Tensor y = lab.put(part_of(x), DType::kF32, {kTokens, kWidth - kFirst});
        const Tensor first = put_first_sample(lab, first_sample_words(kFirstSample));
        lab.ops().dropout({.dropout = {.probability = 0.5F, .key = kKey, .first_sample = first},
                           .sequence = kTokens,
                           .first_column = kFirst},
                          y, y, lab.stream());
        return {lab.get(y)};
      });
}

TEST_CASE("noise is uniform, and that of each element's own word", "[ops][dropout]") {
  constexpr double kMagnitude = 0.25;
  const Rows c{33, 17, 80, 24, 7};
  for (const DType dtype : kComputeDtypes) {
    CAPTURE(name_of(dtype));
    const Values x = rounded_to(dtype, random_values(c.rows * c.width, 4));
    Values expected = x;
    double sum = 0.0;
    double squares = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::int64_t row = c.first_row + static_cast<std::int64_t>(i) / c.width;
      const auto along = static_cast<std::uint32_t>(c.first_position + row % c.sequence);
      const auto sample = static_cast<std::uint64_t>(kFirstSample + row / c.sequence);
      const auto words =
          philox(kKey,
                 (along / 16 * 4 + along % 8 / 2) |
                     static_cast<std::uint64_t>(static_cast<std::int64_t>(i) % c.width) << 32,
                 (sample & 0xffffffffU) | ((sample >> 32) << 16 & 0xffffffffU) << 32);
      const std::uint32_t word = words[(along / 8 % 2) * 2 + along % 2];
      const double noise = static_cast<std::int32_t>(word) * 0x1p-31 * kMagnitude;
      expected[i] += noise;
      sum += noise;
      squares += noise * noise;
    }
    const auto count = static_cast<double>(x.size());
    CHECK(std::abs(sum) < 4.0 * kMagnitude * std::sqrt(count / 3.0));
    CHECK(squares / count == Approx(kMagnitude * kMagnitude / 3.0).epsilon(0.05));
    for (const bool is_training : {true, false}) {
      conforms(
          {{"x", is_training ? expected : x, relative_error_of(dtype), 1e-7}},
          [&](Lab& lab) -> std::vector<Values> {
            const Tensor y = lab.put(x, dtype, {c.rows, c.width});
            const auto words = is_training ? first_sample_words(kFirstSample) : kNothingDropped;
            lab.ops().add_noise(
                {.place = {.dropout = {.key = kKey, .first_sample = put_first_sample(lab, words)},
                           .sequence = c.sequence,
                           .first_row = c.first_row,
                           .first_position = c.first_position},
                 .magnitude = static_cast<float>(kMagnitude)},
                y, lab.stream());
            return {lab.get(y)};
          });
    }
  }
}

TEST_CASE("a batch that nothing is dropped of stays as it is", "[ops][dropout]") {
  const Values x = random_values(20 * 24, 4);
  conforms({{"y", rounded_to(DType::kF32, x), 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
    const Tensor in = lab.put(x, DType::kF32, {20, 24});
    const Tensor y = lab.unset(DType::kF32, {20, 24});
    lab.ops().dropout({.dropout = {.probability = 0.5F,
                                   .key = kKey,
                                   .first_sample = put_first_sample(lab, kNothingDropped)},
                       .sequence = 10},
                      in, y, lab.stream());
    return {lab.get(y)};
  });
}

// About n · p of n elements are dropped, with deviation sqrt(n p (1 - p)); neighbours along,
// across, in other samples and in other planes are independent, so that the products of their
// deviations average to zero likewise.
TEST_CASE("as many elements are dropped as asked, independently of each other", "[ops][dropout]") {
  constexpr float kProbability = 0.3F;
  constexpr std::int64_t kSize = 64;
  constexpr std::int64_t kCount = kSize * kSize * 2 * 2;
  const auto deviation = [](std::int64_t i) {
    const bool kept = is_kept(kProbability, i / (kSize * kSize * 2), i / (kSize * kSize) % 2 == 1,
                              i / kSize % kSize, i % kSize);
    return (kept ? 0.0 : 1.0) - static_cast<double>(kProbability);
  };
  const double variance = 0.3 * 0.7;
  double sum = 0.0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    sum += deviation(i);
  }
  CHECK(std::abs(sum) < 4.0 * std::sqrt(kCount * variance));
  for (const std::int64_t step :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{8}, std::int64_t{9}, kSize, 2 * kSize,
        8 * kSize, 16 * kSize, kSize * kSize, 2 * kSize * kSize}) {
    double products = 0.0;
    for (std::int64_t i = 0; i + step < kCount; ++i) {
      products += deviation(i) * deviation(i + step);
    }
    CAPTURE(step);
    CHECK(std::abs(products) < 4.0 * std::sqrt(kCount) * variance);
  }
}

TEST_CASE("attention with dropped probabilities agrees with fp64", "[ops][attention][dropout]") {
  struct Case {
    AttentionShape shape;
    std::int64_t keys;
    AttentionReach reach;
    float probability;
  };
  // Whole sequences, and chunks, which drop what the whole drops at their positions. Where all keys
  // are before all queries and fill whole tiles, tensor cores take them.
  const Case cases[] = {
      {{2, 19, 4, 2, 12}, 19, {}, 0.2F},
      {{1, 137, 2, 1, 64}, 137, {}, 0.1F},
      {{2, 70, 2, 2, 80}, 70, {.window = 21}, 0.5F},
      {{1, 150, 1, 1, 32}, 150, {}, 0.9F},
      {{1, 137, 2, 1, 64}, 137, {.first_query = 144, .first_key = 144}, 0.3F},  // of sixteens
      {{2, 70, 2, 1, 64}, 70, {.first_query = 131, .first_key = 131}, 0.3F},    // of none
      {{2, 33, 2, 1, 12}, 33, {.first_query = 66, .first_key = 33}, 0.5F},
      {{1, 70, 2, 1, 64}, 100, {.first_query = 116, .first_key = 16}, 0.2F},
      {{2, 150, 4, 2, 64}, 128, {.first_query = 128}, 0.0F},
      {{1, 70, 4, 1, 128}, 192, {.first_query = 255, .first_key = 64}, 0.0F},
      {{1, 33, 2, 2, 96}, 128, {.first_query = 127}, 0.0F},
      {{2, 140, 2, 1, 64}, 192, {.first_query = 208, .first_key = 16}, 0.3F},
      {{1, 130, 2, 1, 80}, 64, {.first_query = 128}, 0.3F},
      {{1, 40, 2, 2, 32}, 150, {.first_query = 57, .first_key = 7, .window = 45}, 0.5F}};
  constexpr std::int64_t kFirstHead = 6;
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : cases) {
      const AttentionShape& shape = c.shape;
      CAPTURE(name_of(dtype), shape.sequence, shape.head_dim, c.reach.first_query,
              c.reach.first_key, c.reach.window, c.probability);
      const std::int64_t tokens = shape.batch * shape.sequence;
      const std::int64_t key_rows = shape.batch * c.keys;
      const std::int64_t width = shape.query_heads * shape.head_dim;
      const std::int64_t kv_width = shape.key_value_heads * shape.head_dim;
      const auto operand = [&](std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
        return rounded_to(dtype, random_values(rows * columns, seed));
      };
      const Reference reference{shape,
                                c.keys,
                                c.reach,
                                c.probability,
                                kFirstHead,
                                operand(tokens, width, 11),
                                operand(key_rows, kv_width, 12),
                                operand(key_rows, kv_width, 13)};
      const Values dout = operand(tokens, width, 14);
      const Reference::Results expected = reference.of(dout);
      const double relative = relative_error_of(dtype);
      // Tensor cores and tiles of bf16 round probabilities, which dropout makes larger.
      const double rounding = dtype == DType::kBF16  ? 0x1p-7
                              : dtype == DType::kF16 ? 0x1p-10
                                                     : 1e-5;
      const auto within = [&](const Values& values) { return rounding * (1.0 + largest(values)); };
      conforms({{"out", expected.out, relative, within(expected.out)},
                {"logsumexp", expected.logsumexp, 1e-6, dtype == DType::kF32 ? 5e-6 : 2e-5},
                {"dq", expected.dq, relative, within(expected.dq)},
                {"dk", expected.dk, relative, within(expected.dk)},
                {"dv", expected.dv, relative, within(expected.dv)}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor q = lab.put(reference.q, dtype, {tokens, width});
                 const Tensor k = lab.put(reference.k, dtype, {key_rows, kv_width});
                 const Tensor v = lab.put(reference.v, dtype, {key_rows, kv_width});
                 const Tensor out = lab.unset(dtype, {tokens, width});
                 const Shape sums{shape.batch, shape.query_heads, shape.sequence};
                 const Tensor logsumexp = lab.unset(DType::kF32, sums);
                 AttentionDropout dropout;
                 dropout.probability = c.probability;
                 dropout.key = kKey;
                 dropout.first_sample = put_first_sample(lab, first_sample_words(kFirstSample));
                 dropout.first_head = kFirstHead;
                 const AttentionOperands in{.shape = shape,
                                            .reach = c.reach,
                                            .dropout = dropout,
                                            .q = {q, 0, width},
                                            .k = {k, 0, kv_width},
                                            .v = {v, 0, kv_width}};
                 lab.ops().attention_forward({.in = in, .out = out, .logsumexp_BHT = logsumexp},
                                             lab.stream());
                 const Tensor dq = lab.unset(dtype, {tokens, width});
                 const Tensor dk = lab.unset(dtype, {key_rows, kv_width});
                 const Tensor dv = lab.unset(dtype, {key_rows, kv_width});
                 lab.ops().attention_backward({.in = in,
                                               .out = out,
                                               .logsumexp_BHT = logsumexp,
                                               .dout = lab.put(dout, dtype, {tokens, width}),
                                               .delta_BHT = lab.unset(DType::kF32, sums),
                                               .dq = {dq, 0, width},
                                               .dk = {dk, 0, kv_width},
                                               .dv = {dv, 0, kv_width}},
                                              lab.stream());
                 return {lab.get(out), lab.get(logsumexp), lab.get(dq), lab.get(dk), lab.get(dv)};
               });
    }
  }
}

}  // namespace dstrain::test
