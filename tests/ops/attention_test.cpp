// Attention as training has it, queries, keys and values in one matrix, and RoPE against fp64.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <catch2/catch.hpp>

#include "tests/ops/attention_reference.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

const AttentionShape kShapes[] = {{1, 1, 4, 1, 8},    {2, 33, 4, 1, 8},   {1, 65, 6, 2, 80},
                                  {1, 257, 2, 1, 64}, {1, 64, 2, 2, 128}, {3, 5, 6, 2, 64},
                                  {1, 130, 4, 4, 32}};

/// Compares forward and backward at one shape, on every backend under test.
void expect_conforming_attention(DType dtype, const AttentionShape& shape) {
  CAPTURE(name_of(dtype), shape.batch, shape.sequence, shape.query_heads, shape.key_value_heads,
          shape.head_dim);
  const std::int64_t tokens = shape.batch * shape.sequence;
  const std::int64_t width = (shape.query_heads + 2 * shape.key_value_heads) * shape.head_dim;
  const std::int64_t out_width = shape.query_heads * shape.head_dim;
  const AttentionProblem problem{shape, shape.sequence, {}};
  const AttentionInputs in(problem, dtype);
  const AttentionReference reference(problem, in.q, in.k, in.v);
  const AttentionGradients gradients = reference.backward(in.dout);
  const Values qkv = packed_rows(shape, in.q, in.k, in.v);
  const Values dqkv = packed_rows(shape, gradients.dq, gradients.dk, gradients.dv);
  const Values rounded_out = rounded_to(dtype, reference.out);

  // f32: scores of order 8 with an error of 1e-6. With matrix tiles (bf16 on a CPU, bf16 and
  // f16 on a GPU) every probability and every dS is rounded (2⁻⁹, 2⁻¹²) before it is summed,
  // and delta comes from the rounded out.
  const bool bf16 = dtype == DType::kBF16;
  const bool f16 = dtype == DType::kF16;
  const double out_error = (bf16 ? 0x1p-8 : f16 ? 0x1p-11 : 0.0) * largest(reference.out) + 1e-5;
  const double gradient_error = (bf16 ? 0x1p-7 : f16 ? 0x1p-10 : 1e-5) * largest(dqkv);
  // A tensor core cuts 16 products and what it had off at 2⁻²⁴ of the largest of them: at 64, which
  // q · k of 128 columns may reach, each by up to 4e-6. Of 8 · 17 such errors of either sign about
  // √136 halves add up, of which the scale leaves 1/√128: some 2e-6, and in the worst of all scores
  // a few times that.
  const double logsumexp_error = bf16 || f16 ? 2e-5 : 5e-6;
  conforms({{"out", reference.out, relative_error_of(dtype), out_error},
            {"logsumexp", reference.logsumexp, 1e-6, logsumexp_error},
            {"dqkv", dqkv, relative_error_of(dtype), gradient_error}},
           [&](Lab& lab) -> std::vector<Values> {
             const Tensor qkv_in = lab.put(qkv, dtype, {tokens, width});
             const Tensor out = lab.unset(dtype, {tokens, out_width});
             const Tensor logsumexp =
                 lab.unset(DType::kF32, {shape.batch, shape.query_heads, shape.sequence});
             const Tensor delta =
                 lab.unset(DType::kF32, {shape.batch, shape.query_heads, shape.sequence});
             const Tensor dqkv_out = lab.unset(dtype, {tokens, width});
             lab.ops().attention_forward({packed_attention(shape, qkv_in), out, logsumexp},
                                         lab.stream());
             lab.ops().attention_backward(
                 packed_attention_backward(shape, qkv_in, out, logsumexp,
                                           lab.put(in.dout, dtype, {tokens, out_width}), delta,
                                           dqkv_out),
                 lab.stream());
             return {lab.get(out), lab.get(logsumexp), lab.get(dqkv_out)};
           });
}

}  // namespace

TEST_CASE("attention and its gradient agree with fp64 loops over all scores", "[ops][attention]") {
  for (const DType dtype : kComputeDtypes) {
    for (const AttentionShape& shape : kShapes) {
      expect_conforming_attention(dtype, shape);
    }
  }
}

// Sizes that no tile divides, groups of all kinds, every head size that tensor cores have kernels
// for, and one in between.
TEST_CASE("attention conforms at sizes drawn at random", "[ops][attention]") {
  std::mt19937 random(20);
  const auto draw = [&](int most) { return 1 + static_cast<std::int64_t>(random()) % most; };
  for (const std::int64_t head_dim : {64, 80, 96, 128, 72}) {
    const std::int64_t key_value_heads = draw(2);
    const AttentionShape shape{.batch = draw(2),
                               .sequence = 130 + draw(140),
                               .query_heads = key_value_heads * draw(3),
                               .key_value_heads = key_value_heads,
                               .head_dim = head_dim};
    expect_conforming_attention(head_dim % 32 == 0 ? DType::kBF16 : DType::kF16, shape);
  }
}

TEST_CASE("rope rotates pairs of the first part of heads, and backward rotates back",
          "[ops][rope]") {
  struct Case {
    AttentionShape shape;
    std::int64_t half;  ///< pairs: the numbers of one lie so far apart
  };
  for (const DType dtype : kComputeDtypes) {
    for (const auto& [shape, half] : {Case{{1, 1, 4, 1, 8}, 4},
                                      {{2, 33, 6, 2, 80}, 40},
                                      {{1, 65, 2, 2, 2}, 1},
                                      {{2, 9, 6, 2, 80}, 16},
                                      {{1, 17, 3, 1, 10}, 2},
                                      {{1, 5, 3, 1, 9}, 4},
                                      {{1, 5, 4, 2, 44}, 16}}) {
      CAPTURE(name_of(dtype), shape.sequence, shape.head_dim, half);
      const std::int64_t tokens = shape.batch * shape.sequence;
      const std::int64_t heads = shape.query_heads + 2 * shape.key_value_heads;
      const Values qkv = rounded_to(dtype, random_values(tokens * heads * shape.head_dim, 1));
      Values cosine;
      Values sine;
      for (std::int64_t t = 0; t < shape.sequence; ++t) {
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(t) *
              std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
          cosine.push_back(std::cos(angle));
          sine.push_back(std::sin(angle));
        }
      }
      std::vector<std::int32_t> others;  // positions, backwards
      for (std::int64_t n = 0; n < tokens; ++n) {
        others.push_back(static_cast<std::int32_t>(shape.sequence - 1 - n % shape.sequence));
      }
      const auto rotated = [&, &shape = shape, half = half](double direction, bool by_others) {
        Values result = qkv;
        for (std::int64_t n = 0; n < tokens; ++n) {
          for (std::int64_t head = 0; head < shape.query_heads + shape.key_value_heads; ++head) {
            for (std::int64_t i = 0; i < half; ++i) {
              const auto a = static_cast<std::size_t>((n * heads + head) * shape.head_dim + i);
              const auto b = a + static_cast<std::size_t>(half);
              const std::int64_t position =
                  by_others ? others[static_cast<std::size_t>(n)] : n % shape.sequence;
              const auto at = static_cast<std::size_t>(position * half + i);
              // (a + ib) · exp(± i angle), as complex numbers.
              result[a] = qkv[a] * cosine[at] - qkv[b] * sine[at] * direction;
              result[b] = qkv[b] * cosine[at] + qkv[a] * sine[at] * direction;
            }
          }
        }
        return result;
      };
      // A rotation's transpose is its inverse, so the gradient is the opposite rotation.
      conforms(
          {{"forward", rotated(1.0, false), relative_error_of(dtype), 1e-6},
           {"backward", rotated(-1.0, false), relative_error_of(dtype), 1e-6},
           {"positions", rotated(1.0, true), relative_error_of(dtype), 1e-6},
           {"chunks", rotated(1.0, false), relative_error_of(dtype), 1e-6},
           {"positions of a chunk", rotated(1.0, true), relative_error_of(dtype), 1e-6}},
          [&, &shape = shape, half = half](Lab& lab) -> std::vector<Values> {
            const Shape table{shape.sequence, half};
            const Tensor c = lab.put(cosine, DType::kF32, table);
            const Tensor s = lab.put(sine, DType::kF32, table);
            const Shape rows{tokens, heads * shape.head_dim};
            const Tensor forward = lab.put(qkv, dtype, rows);
            const Tensor backward = lab.put(qkv, dtype, rows);
            lab.ops().rope(shape, forward, c, s, {}, Pass::kForward, lab.stream());
            lab.ops().rope(shape, backward, c, s, {}, Pass::kBackward, lab.stream());
            const Tensor placed = lab.put(qkv, dtype, rows);
            lab.ops().rope(shape, placed, c, s, lab.put_ids(others), Pass::kForward, lab.stream());
            // Chunk by chunk of the first sequence: rows of the tables from the chunk's first
            // position on, or the whole tables with positions.
            const Tensor chunks = lab.put(qkv, dtype, rows);
            const Tensor placed_chunks = lab.put(qkv, dtype, rows);
            for (std::int64_t b = 0; b < shape.batch; ++b) {
              const std::int64_t cut = shape.sequence / 3;
              for (const auto& [begin, end] :
                   {std::pair{std::int64_t{0}, cut}, std::pair{cut, shape.sequence}}) {
                if (begin == end) {
                  continue;
                }
                AttentionShape chunk = shape;
                chunk.batch = 1;
                chunk.sequence = end - begin;
                const std::int64_t row = b * shape.sequence + begin;
                lab.ops().rope(chunk, chunks.rows(row, row + chunk.sequence), c.rows(begin, end),
                               s.rows(begin, end), {}, Pass::kForward, lab.stream());
                const std::vector<std::int32_t> places(others.begin() + row,
                                                       others.begin() + row + chunk.sequence);
                lab.ops().rope(chunk, placed_chunks.rows(row, row + chunk.sequence), c, s,
                               lab.put_ids(places), Pass::kForward, lab.stream());
              }
            }
            return {lab.get(forward), lab.get(backward), lab.get(placed), lab.get(chunks),
                    lab.get(placed_chunks)};
          });
    }
  }
}

}  // namespace dstrain::test
