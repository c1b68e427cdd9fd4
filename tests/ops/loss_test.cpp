// Cross-entropy against fp64, its gradient against finite differences; embedding tables.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

double cross_entropy(const Values& logits, std::size_t target) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (const double logit : logits) {
    total += std::exp(logit - largest);
  }
  return std::log(total) + largest - logits[target];
}

}  // namespace

TEST_CASE("cross-entropy and its gradient follow fp64", "[ops][loss]") {
  constexpr double kScale = 1.0 / 16.0;
  for (const DType dtype : kComputeDtypes) {
    for (const auto& [tokens, vocabulary] :
         {std::pair<std::int64_t, std::int64_t>{1, 7}, {33, 7}, {3, 257}, {2, 5000}}) {
      CAPTURE(name_of(dtype), tokens, vocabulary);
      const Shape shape{tokens, vocabulary};
      Values logits = random_values(shape.numel(), 1, 10.0);
      logits[3] = 95.0;  // beyond what exp in f32 can hold
      logits = rounded_to(dtype, logits);
      std::vector<std::int32_t> targets;
      Values losses;
      Values gradient;
      for (std::int64_t n = 0; n < tokens; ++n) {
        const auto target = static_cast<std::int32_t>(n == 0 ? vocabulary - 1 : n * 5 % vocabulary);
        targets.push_back(target);
        const Values row(logits.begin() + n * vocabulary, logits.begin() + (n + 1) * vocabulary);
        const auto index = static_cast<std::size_t>(target);
        losses.push_back(cross_entropy(row, index));
        // The difference of one logit only changes its own term: no need to sum 5000 others.
        const double log_total = cross_entropy(row, index) + row[index];
        for (std::size_t v = 0; v < row.size(); ++v) {
          const auto moved_loss = [&](const Values& logit) {
            const double total =
                1.0 - std::exp(row[v] - log_total) + std::exp(logit[0] - log_total);
            return log_total + std::log(total) - (v == index ? logit[0] : row[index]);
          };
          gradient.push_back(kScale * finite_difference(moved_loss, {row[v]})[0]);
        }
      }
      // f32: the logsumexp of logits of order 100 is known to 1e-5, so is log p, so p to 1e-5
      // relative; where the target's p is near one, p - 1 keeps an error of 1e-6.
      const double relative = 2e-5 + relative_error_of(dtype);
      conforms({{"losses", losses, 1e-6, 1e-5},
                {"losses beside the gradient", losses, 1e-6, 1e-5},
                {"gradient", gradient, relative, 1e-6 * kScale + absolute_error_of(dtype)}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor logits_in = lab.put(logits, dtype, shape);
                 const Tensor ids = lab.put_ids(targets);
                 const Tensor first = lab.unset(DType::kF32, {tokens});
                 const Tensor second = lab.unset(DType::kF32, {tokens});
                 lab.ops().cross_entropy_forward(logits_in, ids, vocabulary, first, lab.stream());
                 lab.ops().cross_entropy_forward_backward(
                     logits_in, ids, vocabulary, static_cast<float>(kScale), second, lab.stream());
                 return {lab.get(first), lab.get(second), lab.get(logits_in)};
               });
    }
  }
}

TEST_CASE("a target outside the vocabulary is refused before any row is touched", "[ops][loss]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    const Tensor logits = lab.put(Values(14, 0.5), DType::kF32, {2, 7});
    const Tensor losses = lab.unset(DType::kF32, {2});
    // A GPU tells when the host waits for it.
    CHECK_THROWS_WITH((lab.ops().cross_entropy_forward_backward(logits, lab.put_ids({3, 7}), 7,
                                                                1.0F, losses, lab.stream()),
                       lab.stream().synchronize()),
                      Catch::Contains("outside the vocabulary [0, 7)"));
    CHECK(lab.get(logits) == Values(14, 0.5));
  }
}

TEST_CASE("embedding rows are gathered, and their gradients added in token order",
          "[ops][embedding]") {
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t width : {7, 100, 256}) {
      CAPTURE(name_of(dtype), width);
      constexpr std::int64_t kVocabulary = 9;
      constexpr VocabSlice kWhole{.first = 0, .vocab_size = kVocabulary};
      constexpr std::int64_t kPositions = 6;
      constexpr std::int64_t kSequence = 5;
      const std::vector<std::int32_t> tokens{8, 0, 3, 3, 3, 0, 1, 8, 3, 3};
      const auto count = static_cast<std::int64_t>(tokens.size());
      const auto width_C = static_cast<std::size_t>(width);
      const Values table = rounded_to(dtype, random_values(kVocabulary * width, 1));
      const Values position = rounded_to(dtype, random_values(kPositions * width, 2));
      const Values dx = rounded_to(dtype, random_values(count * width, 3));
      const Values earlier = rounded_to(DType::kF32, random_values(kVocabulary * width, 4));
      Values plain;
      Values placed;
      Values dtable(table.size(), 0.0);
      Values dposition(position.size(), 0.0);
      for (std::size_t n = 0; n < tokens.size(); ++n) {
        for (std::size_t c = 0; c < width_C; ++c) {
          const std::size_t row = static_cast<std::size_t>(tokens[n]) * width_C + c;
          const std::size_t place = n % kSequence * width_C + c;
          plain.push_back(table[row]);
          placed.push_back(table[row] + position[place]);
          dtable[row] += dx[n * width_C + c];
          dposition[place] += dx[n * width_C + c];
        }
      }
      Values added = earlier;
      std::transform(added.begin(), added.end(), dtable.begin(), added.begin(), std::plus<>());
      // Sums of at most five numbers of order one.
      conforms({{"rows", plain, 0.0, 0.0},
                {"rows and positions", placed, relative_error_of(dtype),
                 1e-7 + absolute_error_of(dtype)},
                {"dtable", dtable, 1e-6, 1e-6},
                {"dposition", dposition, 1e-6, 1e-6},
                {"dtable added", added, 1e-6, 1e-6}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor ids = lab.put_ids(tokens);
                 const Tensor table_in = lab.put(table, dtype, {kVocabulary, width});
                 const Tensor position_in = lab.put(position, dtype, {kPositions, width});
                 const Tensor x = lab.unset(dtype, {count, width});
                 lab.ops().embedding_forward(ids, table_in, kWhole, {}, kSequence, x, lab.stream());
                 const Values x_plain = lab.get(x);
                 lab.ops().embedding_forward(ids, table_in, kWhole, position_in, kSequence, x,
                                             lab.stream());
                 const Tensor dx_in = lab.put(dx, dtype, {count, width});
                 const Tensor dtable_out = lab.unset(DType::kF32, {kVocabulary, width});
                 const Tensor dposition_out = lab.unset(DType::kF32, {kPositions, width});
                 const Tensor total = lab.put(earlier, DType::kF32, {kVocabulary, width});
                 lab.ops().embedding_backward(ids, dx_in, kWhole, kSequence, dtable_out,
                                              dposition_out, Write::kOverwrite, Write::kOverwrite,
                                              lab.stream());
                 lab.ops().embedding_backward(ids, dx_in, kWhole, kSequence, total, {}, Write::kAdd,
                                              Write::kAdd, lab.stream());
                 return {x_plain, lab.get(x), lab.get(dtable_out), lab.get(dposition_out),
                         lab.get(total)};
               });
    }
  }
}

}  // namespace dstrain::test
