// Attention whose queries and keys lie apart, have positions of their own, are hidden by a window
// or a document's border, or whose scores are bent by a cap or fall with distance, against fp64;
// documents packed into one sequence against each of them alone; and partial results over blocks of
// keys, merged, against the whole.
//
// B batch, T queries, S keys, H query heads, K key/value heads, D head dim
#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/attention.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/isa.h"
#include "tests/ops/attention_reference.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

using Problem = AttentionProblem;
using Gradients = AttentionGradients;
using Reference = AttentionReference;
using Operands = AttentionInputs;

/// In a matrix of its own with more columns before and behind, which hold 99.
Columns put(Lab& lab, const Values& values, DType dtype, std::int64_t width, std::int64_t before) {
  const std::int64_t rows = static_cast<std::int64_t>(values.size()) / width;
  const std::int64_t stride = before + width + 8;
  Values matrix(static_cast<std::size_t>(rows * stride), 99.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(values.begin() + row * width, width, matrix.begin() + row * stride + before);
  }
  return {lab.put(matrix, dtype, {rows, stride}), before, width};
}

Values get(Lab& lab, const Columns& columns) {
  const Values matrix = lab.get(columns.matrix());
  Values values;
  for (std::int64_t row = 0; row < columns.rows(); ++row) {
    const auto first = matrix.begin() + row * columns.stride();
    values.insert(values.end(), first + columns.first(), first + columns.first() + columns.width());
    CHECK(std::all_of(first, first + columns.first(), [](double x) { return x == 99.0; }));
  }
  return values;
}

// Heads of 32 and 64 are those of matrix tiles, of 12 those of none.
const Problem kProblems[] = {
    {{2, 33, 4, 2, 32}, 33, {}},                                  // training's, but not packed
    {{1, 70, 4, 1, 64}, 70, {.first_query = 5, .first_key = 5}},  // what counts is the distance
    {{2, 9, 4, 2, 12}, 20, {.first_query = 7}},                   // behind earlier keys
    {{1, 33, 4, 1, 32}, 33, {.window = 5}},                       // Mistral's window
    {{1, 65, 2, 2, 64}, 65, {.cap = 3.0F}},                       // Gemma 2's cap
    {{1, 33, 4, 2, 32}, 33, {.scale = 0.25F}},                    // Gemma 2's scale
    {{1, 20, 2, 1, 12}, 20, {.scale = 0.4F, .cap = 3.0F}},
    {{2, 17, 4, 2, 12}, 9, {.first_key = 6, .window = 7, .cap = 2.0F}},  // some queries see no key
    {{2, 33, 4, 2, 32}, 33, {}, {{5, 1, 27}, {32, 1}}},                  // documents
    {{1, 20, 4, 1, 12}, 20, {.first_query = 4, .first_key = 4}, {{7, 13}}},
    {{2, 33, 4, 2, 32}, 33, {}, {}, {0.5, 0.25, 0.125, 0.0625}},  // ALiBi
    {{1, 33, 4, 1, 12}, 33, {.window = 9}, {{20, 13}}, {1.0, 0.25, 0.0625, 0.0}},
    {{2, 17, 4, 2, 12}, 25, {.first_query = 11, .first_key = 3}, {}, {0.8, 0.4, 0.2, 0.1}},
    {{2, 17, 2, 2, 32}, 9, {.first_key = 6, .window = 7}, {}, {0.3, 0.6}},  // some see no key
};
/// Several tiles: tiles that nobody sees, and borders within tiles and between them.
const Problem kTiled[] = {
    {{2, 137, 2, 1, 64}, 137, {}, {{64, 40, 33}, {1, 126, 10}}},
    {{1, 150, 2, 1, 32}, 150, {.window = 70}},
    {{1, 140, 1, 1, 80}, 140, {.window = 33, .cap = 4.0F}, {{75, 65}}},
    {{2, 137, 3, 1, 64}, 137, {}, {}, {0.25, 0.01, 0.7}},
    {{1, 150, 2, 2, 32}, 150, {.window = 70}, {{64, 86}}, {0.03, 0.5}},
};

/// Several tiles of keys of other positions and numbers, as the chunks of a ring have them.
const Problem kChunks[] = {
    {{1, 130, 4, 2, 64}, 128, {.first_query = 128}},  // all keys before all queries
    {{2, 70, 2, 1, 32}, 100, {.first_query = 300}},   // the last tile of keys is not whole
    {{1, 137, 2, 1, 64}, 230, {.first_query = 64}},   // a diagonal, and keys behind it
    {{1, 100, 2, 2, 32}, 170, {.first_query = 37}},   // borders across tiles
    {{1, 137, 3, 3, 32}, 90, {.first_query = 64}},    // queries behind the last key
    {{1, 64, 2, 1, 64}, 100, {.first_query = 64}},    // a diagonal in a tile that is not whole
    {{1, 140, 2, 1, 64}, 70, {.first_key = 64}},      // a tile of queries that sees nothing
    {{2, 150, 2, 1, 12}, 100, {.first_key = 30}},     // some of a tile do
    {{1, 70, 2, 1, 32}, 70, {.first_key = 128}},      // nobody sees anything
    {{1, 80, 2, 1, 32}, 64, {.first_query = 60, .window = 20}},  // later queries see nothing
    {{1, 150, 2, 1, 64}, 200, {.first_query = 120, .window = 70, .cap = 3.0F}},
    {{1, 150, 2, 1, 64}, 128, {.first_query = 128}, {}, {0.03, 0.5}},
    {{1, 137, 3, 1, 32}, 170, {.first_query = 41, .window = 90}, {}, {0.25, 0.01, 0.7}},
    {{2, 90, 2, 1, 32}, 128, {.first_query = 128}, {{50, 40}, {3, 87}}, {}, {}, 75},  // begun
                                                                                      // before
    {{1, 90, 2, 1, 32}, 128, {.first_query = 328, .first_key = 200}, {{90}}, {}, {}, 300},
    {{1, 140, 2, 2, 64}, 200, {.first_query = 20}, {{64, 76}}, {}, {}, 7},
};

/// Where training has them: in rows q‖k‖v.
bool can_be_packed(const Problem& problem) {
  return problem.keys == problem.shape.sequence &&
         problem.reach.first_query == problem.reach.first_key;
}

/// The reach with its documents and slopes in the lab's memory.
AttentionReach reach_of(const Problem& problem, Lab& lab) {
  AttentionReach reach = problem.reach;
  if (!problem.documents.empty()) {
    reach.document_positions = lab.put_ids(problem.document_positions());
  }
  if (!problem.slopes.empty()) {
    reach.slopes_H = lab.put(problem.slopes, DType::kF32, {problem.shape.query_heads});
  }
  return reach;
}

struct Tolerance {
  double relative;
  double out;
  double gradient;

  /// As in attention_test.cpp: tensor cores and tiles of bf16 round probabilities.
  Tolerance(DType dtype, double largest_out)
      : relative(relative_error_of(dtype)),
        out((dtype == DType::kBF16  ? 0x1p-8
             : dtype == DType::kF16 ? 0x1p-11
                                    : 0.0) *
                largest_out +
            1e-5),
        gradient(dtype == DType::kBF16  ? 0x1p-7
                 : dtype == DType::kF16 ? 0x1p-10
                                        : 1e-5) {}
};

}  // namespace

TEST_CASE("the fp64 attention gradient equals finite differences", "[ops][attention]") {
  const Problem problem =
      GENERATE(Problem{{1, 4, 2, 1, 3}, 5, {.first_query = 3, .window = 3, .cap = 1.5F}},
               Problem{{1, 4, 2, 1, 3}, 5, {.first_query = 3, .window = 3}, {}, {0.5, 0.2}},
               Problem{{2, 5, 4, 2, 3}, 5, {}});
  const Operands in(problem, DType::kF32);
  const auto weighted = [&](const Values& q, const Values& k, const Values& v) {
    const Reference reference(problem, q, k, v);
    return std::inner_product(in.dout.begin(), in.dout.end(), reference.out.begin(), 0.0);
  };
  const Gradients gradients = Reference(problem, in.q, in.k, in.v).backward(in.dout);
  const auto expect_slope = [](const Values& gradient, const Values& slope) {
    for (std::size_t i = 0; i < slope.size(); ++i) {
      CHECK(gradient[i] == Approx(slope[i]).margin(1e-8));
    }
  };
  expect_slope(gradients.dq,
               finite_difference([&](const Values& q) { return weighted(q, in.k, in.v); }, in.q));
  expect_slope(gradients.dk,
               finite_difference([&](const Values& k) { return weighted(in.q, k, in.v); }, in.k));
  expect_slope(gradients.dv,
               finite_difference([&](const Values& v) { return weighted(in.q, in.k, v); }, in.v));
}

TEST_CASE("attention of separate operands with positions, window and cap agrees with fp64",
          "[ops][attention]") {
  std::vector<Problem> problems(std::begin(kProblems), std::end(kProblems));
  problems.insert(problems.end(), std::begin(kChunks), std::end(kChunks));
  for (const DType dtype : kComputeDtypes) {
    for (const Problem& problem : problems) {
      const AttentionShape& shape = problem.shape;
      CAPTURE(name_of(dtype), shape.sequence, problem.keys, shape.head_dim,
              problem.reach.first_query, problem.reach.first_key, problem.reach.window,
              problem.reach.cap, problem.slopes.size());
      const Operands in(problem, dtype);
      Reference reference(problem, in.q, in.k, in.v);
      const Gradients expected = reference.backward(in.dout);
      for (double& sum : reference.logsumexp) {
        sum = std::max(sum, -1e30);  // so that differences are numbers
      }
      const Tolerance tolerance(dtype, largest(reference.out));
      conforms(
          {{"out", reference.out, tolerance.relative, tolerance.out},
           {"logsumexp", reference.logsumexp, 1e-6, dtype == DType::kF32 ? 5e-6 : 2e-5},
           {"dq", expected.dq, tolerance.relative, tolerance.gradient * largest(expected.dq)},
           {"dk", expected.dk, tolerance.relative, tolerance.gradient * largest(expected.dk)},
           {"dv", expected.dv, tolerance.relative, tolerance.gradient * largest(expected.dv)}},
          [&](Lab& lab) -> std::vector<Values> {
            const std::int64_t tokens = shape.batch * shape.sequence;
            const std::int64_t width = shape.query_heads * shape.head_dim;
            const std::int64_t kv_width = shape.key_value_heads * shape.head_dim;
            const Shape sums{shape.batch, shape.query_heads, shape.sequence};
            const AttentionOperands operands{.shape = shape,
                                             .reach = reach_of(problem, lab),
                                             .q = put(lab, in.q, dtype, width, 8),
                                             .k = put(lab, in.k, dtype, kv_width, 16),
                                             .v = put(lab, in.v, dtype, kv_width, 24)};
            const Tensor out = lab.unset(dtype, {tokens, width});
            const Tensor logsumexp = lab.unset(DType::kF32, sums);
            lab.ops().attention_forward({operands, out, logsumexp}, lab.stream());
            const Values of_nothing(in.q.size(), 99.0);
            const Values of_no_key(in.k.size(), 99.0);
            const AttentionBackward back{.in = operands,
                                         .out = out,
                                         .logsumexp_BHT = logsumexp,
                                         .dout = lab.put(in.dout, dtype, {tokens, width}),
                                         .delta_BHT = lab.unset(DType::kF32, sums),
                                         .dq = put(lab, of_nothing, dtype, width, 16),
                                         .dk = put(lab, of_no_key, dtype, kv_width, 8),
                                         .dv = put(lab, of_no_key, dtype, kv_width, 0)};
            lab.ops().attention_backward(back, lab.stream());
            Values of_sums = lab.get(logsumexp);
            for (double& sum : of_sums) {
              sum = std::max(sum, -1e30);
            }
            return {lab.get(out), of_sums, get(lab, back.dq), get(lab, back.dk), get(lab, back.dv)};
          });
    }
  }
}

TEST_CASE("attention of packed rows through windows and within documents agrees with fp64",
          "[ops][attention]") {
  std::vector<Problem> problems(std::begin(kTiled), std::end(kTiled));
  std::copy_if(std::begin(kProblems), std::end(kProblems), std::back_inserter(problems),
               can_be_packed);
  for (const DType dtype : kComputeDtypes) {
    for (const Problem& problem : problems) {
      const AttentionShape& shape = problem.shape;
      CAPTURE(name_of(dtype), shape.sequence, shape.head_dim, problem.reach.window,
              problem.reach.cap, problem.documents.size(), problem.slopes.size());
      const Operands in(problem, dtype);
      const Reference reference(problem, in.q, in.k, in.v);
      const Gradients expected = reference.backward(in.dout);
      const Tolerance tolerance(dtype, largest(reference.out));
      const Values rows = packed_rows(shape, in.q, in.k, in.v);
      const Values d_rows = packed_rows(shape, expected.dq, expected.dk, expected.dv);
      conforms({{"out", reference.out, tolerance.relative, tolerance.out},
                {"logsumexp", reference.logsumexp, 1e-6, dtype == DType::kF32 ? 5e-6 : 2e-5},
                {"dqkv", d_rows, tolerance.relative, tolerance.gradient * largest(d_rows)}},
               [&](Lab& lab) -> std::vector<Values> {
                 const std::int64_t tokens = shape.batch * shape.sequence;
                 const std::int64_t width = shape.query_heads * shape.head_dim;
                 const Shape packed{tokens, width + 2 * shape.key_value_heads * shape.head_dim};
                 const Shape sums{shape.batch, shape.query_heads, shape.sequence};
                 const AttentionReach reach = reach_of(problem, lab);
                 const Tensor qkv = lab.put(rows, dtype, packed);
                 const Tensor dqkv = lab.unset(dtype, packed);
                 const Tensor out = lab.unset(dtype, {tokens, width});
                 const Tensor logsumexp = lab.unset(DType::kF32, sums);
                 lab.ops().attention_forward({packed_attention(shape, qkv, reach), out, logsumexp},
                                             lab.stream());
                 lab.ops().attention_backward(
                     packed_attention_backward(shape, qkv, out, logsumexp,
                                               lab.put(in.dout, dtype, {tokens, width}),
                                               lab.unset(DType::kF32, sums), dqkv, reach),
                     lab.stream());
                 return {lab.get(out), lab.get(logsumexp), lab.get(dqkv)};
               });
    }
  }
}

TEST_CASE("a document that begins at a tile's border has the bits of the document alone",
          "[ops][attention][same-kernels]") {
  const Problem together{{1, 64 + 128 + 40, 4, 2, 64}, 64 + 128 + 40, {}, {{64, 128, 40}}};
  const AttentionShape& shape = together.shape;
  const std::int64_t width = shape.query_heads * shape.head_dim;
  const std::int64_t packed = width + 2 * shape.key_value_heads * shape.head_dim;
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType dtype : kComputeDtypes) {
      CAPTURE(backend.name, name_of(dtype));
      Lab lab(backend.make(2));
      const Values rows = random_values(shape.sequence * packed, 1, 2.0);
      const Values dout = random_values(shape.sequence * width, 2);
      /// Tokens [begin, end): out, then dqkv.
      const auto run = [&](std::int64_t begin, std::int64_t end, const AttentionReach& reach) {
        AttentionShape part = shape;
        part.sequence = end - begin;
        const Shape sums{1, shape.query_heads, part.sequence};
        const auto rows_of = [&](const Values& all, std::int64_t columns) {
          return lab.put({all.begin() + begin * columns, all.begin() + end * columns}, dtype,
                         {part.sequence, columns});
        };
        const Tensor qkv = rows_of(rows, packed);
        const Tensor out = lab.unset(dtype, {part.sequence, width});
        const Tensor dqkv = lab.unset(dtype, {part.sequence, packed});
        const Tensor logsumexp = lab.unset(DType::kF32, sums);
        lab.ops().attention_forward({packed_attention(part, qkv, reach), out, logsumexp},
                                    lab.stream());
        lab.ops().attention_backward(
            packed_attention_backward(part, qkv, out, logsumexp, rows_of(dout, width),
                                      lab.unset(DType::kF32, sums), dqkv, reach),
            lab.stream());
        return std::pair{lab.get(out), lab.get(dqkv)};
      };
      const auto [out, dqkv] = run(0, shape.sequence, reach_of(together, lab));
      std::int64_t begin = 0;
      for (const std::int64_t length : together.documents.front()) {
        const auto [out_alone, dqkv_alone] = run(begin, begin + length, {});
        CHECK(std::equal(out_alone.begin(), out_alone.end(), out.begin() + begin * width));
        CHECK(std::equal(dqkv_alone.begin(), dqkv_alone.end(), dqkv.begin() + begin * packed));
        begin += length;
      }
    }
  }
}

// Tiles of keys lie where they lie for all queries, so that each query's sums are those of the
// whole.
TEST_CASE("queries from a tile's border on have the bits that they have among all of them",
          "[ops][attention][same-kernels]") {
  const Problem problem = GENERATE(Problem{{1, 200, 2, 1, 64}, 200, {}},
                                   Problem{{2, 200, 4, 2, 32}, 200, {.window = 90}},
                                   Problem{{1, 200, 2, 1, 64}, 200, {}, {}, {0.5, 0.1}});
  const std::int64_t from = GENERATE(64, 128);
  const float dropped = GENERATE(0.0F, 0.3F);
  const AttentionShape& shape = problem.shape;
  const std::int64_t width = shape.query_heads * shape.head_dim;
  for (const CpuIsa isa : supported_isas()) {
    for (const DType dtype : kComputeDtypes) {
      CAPTURE(name_of(isa), name_of(dtype), from, dropped, problem.reach.window);
      Lab lab(make_cpu_backend(2, isa));
      const Operands in(problem, dtype);
      const std::int64_t kv_width = shape.key_value_heads * shape.head_dim;
      const Shape keys{shape.batch * shape.sequence, kv_width};
      /// out, logsumexp and dq of the queries from `first` on, each sequence's rows one after the
      /// other.
      const auto run = [&](std::int64_t first) {
        AttentionShape part = shape;
        part.sequence = shape.sequence - first;
        const Shape queries{part.batch * part.sequence, width};
        const Shape sums{part.batch, part.query_heads, part.sequence};
        const auto rows_of = [&](const Values& all) {
          Values rows;
          for (std::int64_t b = 0; b < shape.batch; ++b) {
            const auto begin = all.begin() + b * shape.sequence * width;
            rows.insert(rows.end(), begin + first * width, begin + shape.sequence * width);
          }
          return lab.put(rows, dtype, queries);
        };
        AttentionReach reach = reach_of(problem, lab);
        reach.first_query = first;
        AttentionDropout dropout;
        dropout.probability = dropped;
        dropout.key = 5;
        dropout.first_sample = lab.put_ids({3, 0});
        const AttentionOperands operands{.shape = part,
                                         .reach = reach,
                                         .dropout = dropout,
                                         .q = rows_of(in.q),
                                         .k = lab.put(in.k, dtype, keys),
                                         .v = lab.put(in.v, dtype, keys)};
        const Tensor out = lab.unset(dtype, queries);
        const Tensor logsumexp = lab.unset(DType::kF32, sums);
        const Tensor dq = lab.unset(dtype, queries);
        lab.ops().attention_forward({operands, out, logsumexp}, lab.stream());
        lab.ops().attention_backward({.in = operands,
                                      .out = out,
                                      .logsumexp_BHT = logsumexp,
                                      .dout = rows_of(in.dout),
                                      .delta_BHT = lab.unset(DType::kF32, sums),
                                      .dq = dq,
                                      .dk = lab.unset(dtype, keys),
                                      .dv = lab.unset(dtype, keys)},
                                     lab.stream());
        return std::tuple{lab.get(out), lab.get(logsumexp), lab.get(dq)};
      };
      const auto [all_out, all_sums, all_dq] = run(0);
      const auto [out, sums, dq] = run(from);
      /// The last `rows` of each sequence, of `columns` each.
      const auto ends_of = [&](const Values& all, std::int64_t sequences, std::int64_t columns) {
        Values ends;
        for (std::int64_t b = 0; b < sequences; ++b) {
          const auto begin = all.begin() + b * shape.sequence * columns;
          ends.insert(ends.end(), begin + from * columns, begin + shape.sequence * columns);
        }
        return ends;
      };
      CHECK(out == ends_of(all_out, shape.batch, width));
      CHECK(sums == ends_of(all_sums, shape.batch * shape.query_heads, 1));
      CHECK(dq == ends_of(all_dq, shape.batch, width));
    }
  }
}

// Rows as another rank sends them: the tiles and tensor cores that take packed rows take these too.
TEST_CASE("keys and values in a matrix of their own give the bits of packed rows",
          "[ops][attention][same-kernels]") {
  const AttentionShape shape{2, 70, 4, 2, 64};
  const std::int64_t tokens = shape.batch * shape.sequence;
  const std::int64_t q_width = shape.query_heads * shape.head_dim;
  const std::int64_t kv_width = shape.key_value_heads * shape.head_dim;
  const std::int64_t width = q_width + 2 * kv_width;
  const Shape sums{shape.batch, shape.query_heads, shape.sequence};
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType dtype : kComputeDtypes) {
      CAPTURE(backend.name, name_of(dtype));
      Lab lab(backend.make(1));
      const Values qkv = random_values(tokens * width, 1, 2.0);
      const Tensor dout = lab.put(random_values(tokens * q_width, 2), dtype, {tokens, q_width});
      const auto columns_of = [&](const Values& all, std::int64_t begin, std::int64_t end) {
        Values some;
        for (std::int64_t row = 0; row < tokens; ++row) {
          some.insert(some.end(), all.begin() + row * width + begin,
                      all.begin() + row * width + end);
        }
        return some;
      };
      const auto run = [&](const AttentionOperands& in, const Columns& dq, const Columns& dk,
                           const Columns& dv) -> std::pair<Values, Values> {
        const Tensor out = lab.unset(dtype, {tokens, q_width});
        const Tensor logsumexp = lab.unset(DType::kF32, sums);
        lab.ops().attention_forward({in, out, logsumexp}, lab.stream());
        lab.ops().attention_backward({.in = in,
                                      .out = out,
                                      .logsumexp_BHT = logsumexp,
                                      .dout = dout,
                                      .delta_BHT = lab.unset(DType::kF32, sums),
                                      .dq = dq,
                                      .dk = dk,
                                      .dv = dv},
                                     lab.stream());
        return {lab.get(out), lab.get(logsumexp)};
      };
      const Tensor packed = lab.put(qkv, dtype, {tokens, width});
      const Tensor d_packed = lab.unset(dtype, {tokens, width});
      const PackedColumns<Tensor> gradients(shape, d_packed);
      const auto together =
          run(packed_attention(shape, packed), gradients.q, gradients.k, gradients.v);

      const Tensor q = lab.put(columns_of(qkv, 0, q_width), dtype, {tokens, q_width});
      const Tensor kv = lab.put(columns_of(qkv, q_width, width), dtype, {tokens, 2 * kv_width});
      const Tensor dq = lab.unset(dtype, {tokens, q_width});
      const Tensor dkv = lab.unset(dtype, {tokens, 2 * kv_width});
      const auto apart = run({.shape = shape,
                              .reach = {},
                              .q = q,
                              .k = {kv, 0, kv_width},
                              .v = {kv, kv_width, kv_width}},
                             dq, {dkv, 0, kv_width}, {dkv, kv_width, kv_width});
      CHECK(apart == together);
      const Values all = lab.get(d_packed);
      CHECK(lab.get(dq) == columns_of(all, 0, q_width));
      CHECK(lab.get(dkv) == columns_of(all, q_width, width));

      // Packed rows, whose gradients go to matrices of their own, as a ring adds them.
      const Tensor dq_alone = lab.unset(dtype, {tokens, q_width});
      const Tensor dkv_alone = lab.unset(dtype, {tokens, 2 * kv_width});
      CHECK(run(packed_attention(shape, packed), dq_alone, {dkv_alone, 0, kv_width},
                {dkv_alone, kv_width, kv_width}) == together);
      CHECK(lab.get(dq_alone) == lab.get(dq));
      CHECK(lab.get(dkv_alone) == lab.get(dkv));
    }
  }
}

// Computes as ring attention does: each block of keys by itself, the results merged by their
// logsumexp, and backward block by block with the merged values.
TEST_CASE("attention over two blocks of keys, merged, is attention over all of them",
          "[ops][attention]") {
  struct Case {
    Problem whole;
    std::int64_t first;  // keys of the first block
  };
  const Case merged = GENERATE(
      Case{{{2, 24, 4, 2, 32}, 40, {.first_query = 10}}, 18},  // behind some of the queries
      Case{{{2, 24, 4, 2, 32}, 40, {.first_query = 10}, {}, {0.5, 0.1, 0.2, 0.05}}, 18},
      Case{{{1, 150, 2, 1, 64}, 350, {.first_query = 200}}, 200},  // a rank's own and an earlier's
      Case{{{1, 150, 2, 1, 32}, 300, {.first_query = 150, .window = 170}}, 150},
      Case{{{1, 130, 2, 1, 64}, 258, {.first_query = 128}, {{60, 70}}, {0.1, 0.02}, {}, 90}, 128});
  const Problem& whole = merged.whole;
  const AttentionShape& shape = whole.shape;
  const Operands in(whole, DType::kF32);
  const Reference reference(whole, in.q, in.k, in.v);
  const Gradients expected = reference.backward(in.dout);
  const std::int64_t kv_width = shape.key_value_heads * shape.head_dim;
  const auto block_of = [&](const Values& all, std::int64_t begin, std::int64_t end) {
    Values block;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const auto first = all.begin() + b * whole.keys * kv_width;
      block.insert(block.end(), first + begin * kv_width, first + end * kv_width);
    }
    return block;
  };
  std::vector<Expected> wanted{{"out", reference.out, 1e-6, 1e-5},
                               {"logsumexp", reference.logsumexp, 1e-6, 5e-6},
                               {"dq", expected.dq, 1e-6, 1e-5 * largest(expected.dq)}};
  for (const auto& [begin, end] :
       {std::pair<std::int64_t, std::int64_t>{0, merged.first}, {merged.first, whole.keys}}) {
    wanted.push_back({"dk", block_of(expected.dk, begin, end), 1e-6, 1e-5 * largest(expected.dk)});
    wanted.push_back({"dv", block_of(expected.dv, begin, end), 1e-6, 1e-5 * largest(expected.dv)});
  }
  conforms(wanted, [&](Lab& lab) -> std::vector<Values> {
    const std::int64_t tokens = shape.batch * shape.sequence;
    const std::int64_t width = shape.query_heads * shape.head_dim;
    const Shape sums{shape.batch, shape.query_heads, shape.sequence};
    const Tensor q = lab.put(in.q, DType::kF32, {tokens, width});
    const auto operands = [&](std::int64_t begin, std::int64_t end) -> AttentionOperands {
      const Shape rows{shape.batch * (end - begin), kv_width};
      AttentionReach reach = reach_of(whole, lab);
      reach.first_key = begin;
      return {.shape = shape,
              .reach = reach,
              .q = q,
              .k = lab.put(block_of(in.k, begin, end), DType::kF32, rows),
              .v = lab.put(block_of(in.v, begin, end), DType::kF32, rows)};
    };
    const AttentionOperands blocks[] = {operands(0, merged.first),
                                        operands(merged.first, whole.keys)};
    const Tensor out = lab.unset(DType::kF32, {tokens, width});
    const Tensor logsumexp = lab.unset(DType::kF32, sums);
    const Tensor other = lab.unset(DType::kF32, {tokens, width});
    const Tensor other_logsumexp = lab.unset(DType::kF32, sums);
    lab.ops().attention_forward({blocks[1], out, logsumexp}, lab.stream());
    lab.ops().attention_forward({blocks[0], other, other_logsumexp}, lab.stream());
    lab.ops().merge_attention(shape, other, other_logsumexp, out, logsumexp, lab.stream());
    std::vector<Values> results{lab.get(out), lab.get(logsumexp), {}};
    for (const AttentionOperands& block : blocks) {
      const Shape rows{block.k.rows(), kv_width};
      const Tensor dq = lab.unset(DType::kF32, {tokens, width});
      const Tensor dk = lab.unset(DType::kF32, rows);
      const Tensor dv = lab.unset(DType::kF32, rows);
      lab.ops().attention_backward({.in = block,
                                    .out = out,
                                    .logsumexp_BHT = logsumexp,
                                    .dout = lab.put(in.dout, DType::kF32, {tokens, width}),
                                    .delta_BHT = lab.unset(DType::kF32, sums),
                                    .dq = dq,
                                    .dk = dk,
                                    .dv = dv},
                                   lab.stream());
      Values of_block = lab.get(dq);
      if (!results[2].empty()) {
        std::transform(of_block.begin(), of_block.end(), results[2].begin(), of_block.begin(),
                       std::plus<>());
      }
      results[2] = of_block;
      results.push_back(lab.get(dk));
      results.push_back(lab.get(dv));
    }
    return results;
  });
}

TEST_CASE("attention refuses operands that do not fit together", "[ops][attention]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    const AttentionShape shape{1, 4, 2, 1, 8};
    const Tensor out = lab.unset(DType::kF32, {4, 16});
    const Tensor sums = lab.unset(DType::kF32, {1, 2, 4});
    const AttentionOperands right{.shape = shape,
                                  .reach = {},
                                  .q = lab.unset(DType::kF32, {4, 16}),
                                  .k = lab.unset(DType::kF32, {6, 8}),
                                  .v = lab.unset(DType::kF32, {6, 8})};
    AttentionOperands fewer_values = right;
    fewer_values.v = lab.unset(DType::kF32, {5, 8});
    AttentionOperands other_dtype = right;
    other_dtype.k = lab.unset(DType::kBF16, {6, 8});
    AttentionOperands no_cap = right;
    no_cap.reach.cap = -1.0F;
    AttentionOperands no_scale = right;
    no_scale.reach.scale = -1.0F;
    AttentionOperands a_slope_too_few = right;
    a_slope_too_few.reach.slopes_H = lab.unset(DType::kF32, {1});
    AttentionOperands two_bends = right;
    two_bends.reach.slopes_H = lab.unset(DType::kF32, {2});
    two_bends.reach.cap = 1.0F;
    for (const AttentionOperands& wrong :
         {fewer_values, other_dtype, no_cap, no_scale, a_slope_too_few, two_bends}) {
      CHECK_THROWS_AS(lab.ops().attention_forward({wrong, out, sums}, lab.stream()), InternalError);
    }
  }
}

}  // namespace dstrain::test
