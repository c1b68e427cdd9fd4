// A learned score of each head that joins the softmax and takes no value, against fp64, whose
// gradient of it is held against finite differences.
//
// B batch, T queries, H query heads, K key/value heads, D head dim
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/attention.h"
#include "tests/ops/attention_reference.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// The largest sink outweighs all scores, the smallest counts for nothing.
const AttentionProblem kSinkProblems[] = {
    {{2, 33, 4, 2, 32}, 33, {}, {}, {}, {1.0, -2.0, 12.0, -30.0}},
    {{1, 70, 3, 1, 64}, 70, {.window = 9}, {}, {}, {2.0, 0.5, 7.0}},
    {{2, 19, 2, 2, 12}, 19, {.scale = 0.3F}, {{7, 12}, {19}}, {}, {3.0, -1.0}},
    {{1, 1500, 2, 1, 8}, 1500, {.window = 20}, {}, {}, {1.0, 2.5}},  // several parts of a sum
};

AttentionReach sink_reach(const AttentionProblem& problem, Lab& lab) {
  AttentionReach reach = problem.reach;
  if (!problem.documents.empty()) {
    reach.document_positions = lab.put_ids(problem.document_positions());
  }
  return reach;
}

}  // namespace

TEST_CASE("the reference's gradient of sinks is that of finite differences", "[ops][attention]") {
  const AttentionProblem problem{{2, 7, 2, 1, 4}, 7, {.window = 5}, {}, {}, {0.7, -0.4}};
  const AttentionInputs in(problem, DType::kF32);
  const auto loss = [&](const Values& sinks) {
    AttentionProblem moved = problem;
    moved.sinks = sinks;
    const AttentionReference reference(moved, in.q, in.k, in.v);
    double sum = 0.0;
    for (std::size_t i = 0; i < in.dout.size(); ++i) {
      sum += in.dout[i] * reference.out[i];
    }
    return sum;
  };
  const Values expected = finite_difference(loss, problem.sinks);
  const Values actual = AttentionReference(problem, in.q, in.k, in.v).backward(in.dout).d_sinks;
  for (std::size_t h = 0; h < actual.size(); ++h) {
    CHECK(actual[h] == Approx(expected[h]).epsilon(1e-7));
  }
}

TEST_CASE("attention with sinks and its gradients follow fp64", "[ops][attention]") {
  for (const DType dtype : kComputeDtypes) {
    for (const AttentionProblem& rough : kSinkProblems) {
      AttentionProblem problem = rough;
      problem.sinks = rounded_to(dtype, rough.sinks);
      const AttentionShape& shape = problem.shape;
      CAPTURE(name_of(dtype), shape.sequence, shape.head_dim);
      const AttentionInputs in(problem, dtype);
      const AttentionReference reference(problem, in.q, in.k, in.v);
      const AttentionGradients expected = reference.backward(in.dout);
      const std::int64_t tokens = shape.batch * shape.sequence;
      // Out is rounded twice, by attention and by the sinks, and tensor cores multiply rounded
      // probabilities with values of up to 2; gradients read it.
      const double once = relative_error_of(dtype);
      const double error = dtype == DType::kF32 ? 1e-5 : 6 * once;
      conforms({{"out", reference.out, 2 * once, dtype == DType::kF32 ? 1e-5 : 2 * once},
                {"logsumexp", reference.logsumexp, 1e-6, 1e-5},
                {"dq", expected.dq, error, error * largest(expected.dq)},
                {"dk", expected.dk, error, error * largest(expected.dk)},
                {"dv", expected.dv, error, error * largest(expected.dv)},
                {"d_sinks", expected.d_sinks, error, error * largest(expected.d_sinks)},
                {"d_sinks, added twice",
                 [&] {
                   Values twice = expected.d_sinks;
                   for (double& d : twice)
                     d *= 2.0;
                   return twice;
                 }(),
                 error, 2 * error * largest(expected.d_sinks)}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor qkv = lab.put(
                     packed_rows(shape, in.q, in.k, in.v), dtype,
                     {tokens, (shape.query_heads + 2 * shape.key_value_heads) * shape.head_dim});
                 const Tensor sinks = lab.put(problem.sinks, dtype, {shape.query_heads});
                 const Tensor out = lab.unset(dtype, {tokens, shape.query_heads * shape.head_dim});
                 const Tensor dout = lab.put(in.dout, dtype, out.shape());
                 const Shape sums{shape.batch, shape.query_heads, shape.sequence};
                 const Tensor logsumexp = lab.unset(DType::kF32, sums);
                 const Tensor dqkv = lab.unset(dtype, qkv.shape());
                 const Tensor d_sinks = lab.unset(DType::kF32, {shape.query_heads});
                 const AttentionReach reach = sink_reach(problem, lab);
                 Ops& ops = lab.ops();
                 ops.attention_forward({packed_attention(shape, qkv, reach), out, logsumexp},
                                       lab.stream());
                 ops.add_sinks(shape, sinks, out, logsumexp, lab.stream());
                 ops.sinks_backward(shape, sinks, out, logsumexp, dout, d_sinks, Write::kOverwrite,
                                    lab.stream());
                 const Values once_added = lab.get(d_sinks);
                 ops.sinks_backward(shape, sinks, out, logsumexp, dout, d_sinks, Write::kAdd,
                                    lab.stream());
                 ops.attention_backward(
                     packed_attention_backward(shape, qkv, out, logsumexp, dout,
                                               lab.unset(DType::kF32, sums), dqkv, reach),
                     lab.stream());
                 const Values gradients = lab.get(dqkv);
                 std::vector<Values> results{lab.get(out), lab.get(logsumexp), {}, {}, {},
                                             once_added,   lab.get(d_sinks)};
                 const std::int64_t width = qkv.dim(1);
                 const std::int64_t query_width = shape.query_heads * shape.head_dim;
                 const std::int64_t key_width = shape.key_value_heads * shape.head_dim;
                 for (std::int64_t token = 0; token < tokens; ++token) {
                   auto at = gradients.begin() + token * width;
                   for (const auto& [result, columns] : {std::pair{&results[2], query_width},
                                                         {&results[3], key_width},
                                                         {&results[4], key_width}}) {
                     result->insert(result->end(), at, at + columns);
                     at += columns;
                   }
                 }
                 return results;
               });
    }
  }
}

// As where ranks share sequences, whose parts are merged in f32.
TEST_CASE("sinks of a narrow dtype join results in f32", "[ops][attention]") {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    AttentionProblem problem = kSinkProblems[0];
    problem.sinks = rounded_to(dtype, problem.sinks);
    const AttentionShape& shape = problem.shape;
    const AttentionInputs in(problem, DType::kF32);
    const AttentionReference with(problem, in.q, in.k, in.v);
    problem.sinks = {};
    const AttentionReference without(problem, in.q, in.k, in.v);
    problem.sinks = rounded_to(dtype, kSinkProblems[0].sinks);
    const Values d_sinks = with.backward(in.dout).d_sinks;
    conforms({{"out", with.out, 2e-6, 1e-6},
              {"logsumexp", with.logsumexp, 1e-6, 1e-6},
              {"d_sinks", d_sinks, 1e-5, 1e-5 * largest(d_sinks)}},
             [&](Lab& lab) -> std::vector<Values> {
               const Shape rows{shape.batch * shape.sequence, shape.query_heads * shape.head_dim};
               const Tensor out = lab.put(without.out, DType::kF32, rows);
               const Tensor logsumexp = lab.put(without.logsumexp, DType::kF32,
                                                {shape.batch, shape.query_heads, shape.sequence});
               const Tensor sinks = lab.put(problem.sinks, dtype, {shape.query_heads});
               const Tensor d_sinks_out = lab.unset(DType::kF32, {shape.query_heads});
               lab.ops().add_sinks(shape, sinks, out, logsumexp, lab.stream());
               lab.ops().sinks_backward(shape, sinks, out, logsumexp,
                                        lab.put(in.dout, DType::kF32, rows), d_sinks_out,
                                        Write::kOverwrite, lab.stream());
               return {lab.get(out), lab.get(logsumexp), lab.get(d_sinks_out)};
             });
  }
}

TEST_CASE("attention over a cache takes sinks", "[ops][attention]") {
  const AttentionProblem problem{{1, 41, 4, 2, 16},    41, {.window = 11}, {}, {},
                                 {0.5, 4.0, -1.0, 9.0}};
  const AttentionShape& shape = problem.shape;
  const AttentionInputs in(problem, DType::kF32);
  const AttentionReference reference(problem, in.q, in.k, in.v);
  conforms({{"out", reference.out, 2e-6, 1e-5}}, [&](Lab& lab) -> std::vector<Values> {
    const std::int64_t cached = 2 * shape.key_value_heads * shape.head_dim;
    const std::int64_t width = shape.query_heads * shape.head_dim;
    const Tensor qkv = lab.put(packed_rows(shape, in.q, in.k, in.v), DType::kF32,
                               {shape.sequence, width + cached});
    const Tensor sinks = lab.put(problem.sinks, DType::kF32, {shape.query_heads});
    const Tensor cache = lab.unset(DType::kF32, {shape.sequence, cached});
    const Tensor out = lab.unset(DType::kF32, {shape.sequence, width});
    const Tensor logsumexp = lab.unset(DType::kF32, {shape.query_heads, shape.sequence});
    std::int64_t begin = 0;
    for (const std::int64_t part : {17, 1, 23}) {
      AttentionShape of_part = shape;
      of_part.sequence = part;
      const Tensor sums = logsumexp.flat(0, shape.query_heads * part);
      lab.ops().attention_cached(of_part, begin, problem.reach, qkv.rows(begin, begin + part),
                                 cache, out.rows(begin, begin + part), sums, lab.stream());
      lab.ops().add_sinks(of_part, sinks, out.rows(begin, begin + part), sums, lab.stream());
      begin += part;
    }
    return {lab.get(out)};
  });
}

TEST_CASE("sinks that do not fit the heads are refused", "[ops][attention]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    const AttentionShape shape{1, 4, 2, 1, 8};
    const Tensor out = lab.unset(DType::kBF16, {4, 16});
    const Tensor sums = lab.unset(DType::kF32, {1, 2, 4});
    const auto add = [&](const Tensor& sinks) {
      lab.ops().add_sinks(shape, sinks, out, sums, lab.stream());
    };
    CHECK_NOTHROW(add(lab.unset(DType::kBF16, {2})));
    CHECK_THROWS_AS(add(lab.unset(DType::kBF16, {1})), InternalError);
    CHECK_THROWS_AS(add(lab.unset(DType::kF32, {2})), InternalError);
  }
}

}  // namespace dstrain::test
