// Cross-entropy against fp64, its gradient against finite differences; embedding tables.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "kernels/ignored_target.h"
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
                 lab.ops().cross_entropy_forward_backward(logits_in, ids, vocabulary,
                                                          {static_cast<float>(kScale)}, second,
                                                          lab.stream());
                 return {lab.get(first), lab.get(second), lab.get(logits_in)};
               });
    }
  }
}

// Whole, and in slices of which the second has all of some rows' targets.
TEST_CASE("ignored targets have no loss, no gradient and no part in the count", "[ops][loss]") {
  constexpr std::int64_t kTokens = 5;
  constexpr std::int64_t kVocabulary = 12;
  const std::vector<std::int32_t> all{3, 11, 0, 7, 5};
  std::vector<std::int32_t> some = all;
  some[1] = kIgnoredTarget;
  some[3] = kIgnoredTarget;
  Values logits = random_values(kTokens * kVocabulary, 1, 10.0);
  logits[kVocabulary + 2] = INFINITY;  // of an ignored row
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType dtype : kComputeDtypes) {
      CAPTURE(backend.name, name_of(dtype));
      Lab lab(backend.make(1));
      const auto run = [&](const std::vector<std::int32_t>& targets) -> std::vector<Values> {
        const Tensor whole = lab.put(logits, dtype, {kTokens, kVocabulary});
        const Tensor ids = lab.put_ids(targets);
        const Tensor alone = lab.unset(DType::kF32, {kTokens});
        const Tensor losses = lab.unset(DType::kF32, {kTokens});
        lab.ops().cross_entropy_forward(whole, ids, kVocabulary, alone, lab.stream());
        lab.ops().cross_entropy_forward_backward(whole, ids, kVocabulary, {0.5F}, losses,
                                                 lab.stream());
        return {lab.get(alone), lab.get(losses), lab.get(whole)};
      };
      const std::vector<Values> kept = run(all);
      std::vector<Values> expected = kept;
      for (const std::size_t row : {std::size_t{1}, std::size_t{3}}) {
        expected[0][row] = expected[1][row] = 0.0;
        std::fill_n(expected[2].begin() + static_cast<std::ptrdiff_t>(row * kVocabulary),
                    kVocabulary, 0.0);
      }
      CHECK(run(some) == expected);

      // The same rows over two ranks, each with half of the columns.
      const Tensor ids = lab.put_ids(some);
      const Tensor stats = lab.unset(DType::kF32, {2, kTokens, 3});
      const Tensor logsumexp = lab.unset(DType::kF32, {kTokens});
      const Tensor losses = lab.unset(DType::kF32, {kTokens});
      constexpr std::int64_t kHalf = kVocabulary / 2;
      Tensor halves[2];
      for (std::int64_t rank = 0; rank < 2; ++rank) {
        Values columns;
        for (std::int64_t n = 0; n < kTokens; ++n) {
          const auto first = logits.begin() + n * kVocabulary + rank * kHalf;
          columns.insert(columns.end(), first, first + kHalf);
        }
        halves[rank] = lab.put(columns, dtype, {kTokens, kHalf});
        lab.ops().cross_entropy_partial(halves[rank], ids,
                                        {.first = rank * kHalf, .vocab_size = kVocabulary},
                                        stats.rows(rank, rank + 1), lab.stream());
      }
      lab.ops().cross_entropy_combine(stats, logsumexp, losses, lab.stream());
      const Values of_slices = lab.get(losses);
      for (std::size_t n = 0; n < static_cast<std::size_t>(kTokens); ++n) {
        CHECK(of_slices[n] == Approx(expected[0][n]).margin(1e-5));
      }
      CHECK(of_slices[1] == 0.0);
      for (std::int64_t rank = 0; rank < 2; ++rank) {
        lab.ops().cross_entropy_gradient(halves[rank], ids,
                                         {.first = rank * kHalf, .vocab_size = kVocabulary},
                                         logsumexp, {0.5F}, lab.stream());
        const Values gradient = lab.get(halves[rank]);
        CHECK(std::all_of(gradient.begin() + kHalf, gradient.begin() + 2 * kHalf,
                          [](double slope) { return slope == 0.0; }));
        CHECK(std::any_of(gradient.begin(), gradient.begin() + kHalf,
                          [](double slope) { return slope != 0.0; }));
      }

      const Tensor count = lab.put({10.0}, DType::kF64, {1});
      lab.ops().count_targets(ids, count, Write::kAdd, lab.stream());
      CHECK(lab.get(count) == Values{13.0});
      lab.ops().count_targets(ids, count, Write::kOverwrite, lab.stream());
      CHECK(lab.get(count) == Values{3.0});
    }
  }
}

TEST_CASE("gradients go back through a soft cap, and weigh what their token does", "[ops][loss]") {
  const Values weights = {1.0, -0.5, 0.0, 3.0, 0.125};
  constexpr float kCap = 3.0F;
  constexpr double kScale = 0.25;
  constexpr std::int64_t kTokens = 5;
  constexpr std::int64_t kHalf = 133;
  constexpr std::int64_t kVocabulary = 2 * kHalf;
  const auto cap = static_cast<double>(kCap);
  for (const DType dtype : kComputeDtypes) {
    CAPTURE(name_of(dtype));
    Values logits = random_values(kTokens * kVocabulary, 1, 4.0);
    logits[7] = 95.0;  // all the way up to the cap, and down
    logits[8] = -95.0;
    logits[9] = 0.0;
    logits = rounded_to(dtype, logits);
    Values capped;
    for (const double logit : logits) {
      capped.push_back(cap * std::tanh(logit / cap));
    }
    std::vector<std::int32_t> targets;
    Values losses;
    Values gradient;
    // Loss and gradient are of the capped logits as they are stored.
    const Values stored = rounded_to(dtype, capped);
    for (std::int64_t n = 0; n < kTokens; ++n) {
      const auto target = static_cast<std::size_t>(n * 71 % kVocabulary);
      targets.push_back(static_cast<std::int32_t>(target));
      const Values row(stored.begin() + n * kVocabulary, stored.begin() + (n + 1) * kVocabulary);
      losses.push_back(cross_entropy(row, target));
      for (std::size_t v = 0; v < row.size(); ++v) {
        Values moved = row;
        const auto loss_at = [&](const Values& raw) {
          moved[v] = cap * std::tanh(raw[0] / cap);
          return cross_entropy(moved, target);
        };
        const double ratio = std::clamp(row[v] / cap, -1.0 + 1e-9, 1.0 - 1e-9);
        gradient.push_back(kScale * weights[static_cast<std::size_t>(n)] *
                           finite_difference(loss_at, {cap * std::atanh(ratio)})[0]);
      }
    }
    const auto run = [&](Lab& lab, std::int64_t slices) -> std::vector<Values> {
      const std::int64_t width = kVocabulary / slices;
      const Tensor ids = lab.put_ids(targets);
      const Tensor stats = lab.unset(DType::kF32, {slices, kTokens, 3});
      const Tensor logsumexp = lab.unset(DType::kF32, {kTokens});
      const Tensor losses_out = lab.unset(DType::kF32, {kTokens});
      const Tensor of_tokens = lab.put(weights, DType::kF32, {kTokens});
      const LogitGradient bent{.scale = static_cast<float>(kScale),
                               .cap = kCap,
                               .weights = static_cast<const float*>(of_tokens.data())};
      std::vector<Tensor> parts;
      Values capped_out(logits.size());
      Values gradient_out(logits.size());
      const auto copy = [&](const Values& part, std::int64_t slice, Values& whole) {
        for (std::int64_t n = 0; n < kTokens; ++n) {
          std::copy_n(part.begin() + n * width, width,
                      whole.begin() + n * kVocabulary + slice * width);
        }
      };
      for (std::int64_t slice = 0; slice < slices; ++slice) {
        Values part;
        for (std::int64_t n = 0; n < kTokens; ++n) {
          const auto first = logits.begin() + n * kVocabulary + slice * width;
          part.insert(part.end(), first, first + width);
        }
        parts.push_back(lab.put(part, dtype, {kTokens, width}));
        lab.ops().soft_cap(parts.back(), kCap, lab.stream());
        copy(lab.get(parts.back()), slice, capped_out);
      }
      if (slices == 1) {
        lab.ops().cross_entropy_forward_backward(parts[0], ids, kVocabulary, bent, losses_out,
                                                 lab.stream());
      } else {
        for (std::int64_t slice = 0; slice < slices; ++slice) {
          lab.ops().cross_entropy_partial(parts[static_cast<std::size_t>(slice)], ids,
                                          {.first = slice * width, .vocab_size = kVocabulary},
                                          stats.rows(slice, slice + 1), lab.stream());
        }
        lab.ops().cross_entropy_combine(stats, logsumexp, losses_out, lab.stream());
        for (std::int64_t slice = 0; slice < slices; ++slice) {
          lab.ops().cross_entropy_gradient(parts[static_cast<std::size_t>(slice)], ids,
                                           {.first = slice * width, .vocab_size = kVocabulary},
                                           logsumexp, bent, lab.stream());
        }
      }
      for (std::int64_t slice = 0; slice < slices; ++slice) {
        copy(lab.get(parts[static_cast<std::size_t>(slice)]), slice, gradient_out);
      }
      return {capped_out, lab.get(losses_out), gradient_out};
    };
    // The f32 tanh is right to 2e-7, and the cap three times that.
    const double relative = relative_error_of(dtype);
    for (const std::int64_t slices : {1, 2}) {
      CAPTURE(slices);
      conforms({{"capped", capped, relative, 2e-6},
                {"losses", losses, 1e-5 + relative, 1e-5 + absolute_error_of(dtype)},
                {"gradient", gradient, 1e-5 + 4 * relative, 2e-6 + absolute_error_of(dtype)}},
               [&](Lab& lab) { return run(lab, slices); });
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
                                                                {1.0F}, losses, lab.stream()),
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
      const std::vector<std::int32_t> places{0, 1, 0, 1, 2, 0, 1, 2, 3, 5};  // of documents, say
      const auto count = static_cast<std::int64_t>(tokens.size());
      const auto width_C = static_cast<std::size_t>(width);
      const Values table = rounded_to(dtype, random_values(kVocabulary * width, 1));
      const Values position = rounded_to(dtype, random_values(kPositions * width, 2));
      const Values dx = rounded_to(dtype, random_values(count * width, 3));
      const Values earlier = rounded_to(DType::kF32, random_values(kVocabulary * width, 4));
      Values plain;
      Values placed;
      Values placed_apart;
      Values dtable(table.size(), 0.0);
      Values dposition(position.size(), 0.0);
      for (std::size_t n = 0; n < tokens.size(); ++n) {
        for (std::size_t c = 0; c < width_C; ++c) {
          const std::size_t row = static_cast<std::size_t>(tokens[n]) * width_C + c;
          const std::size_t place = n % kSequence * width_C + c;
          plain.push_back(table[row]);
          placed.push_back(table[row] + position[place]);
          placed_apart.push_back(table[row] +
                                 position[static_cast<std::size_t>(places[n]) * width_C + c]);
          dtable[row] += dx[n * width_C + c];
          dposition[place] += dx[n * width_C + c];
        }
      }
      Values added = earlier;
      std::transform(added.begin(), added.end(), dtable.begin(), added.begin(), std::plus<>());
      // Sums of at most five numbers of order one.
      conforms(
          {{"rows", plain, 0.0, 0.0},
           {"rows and positions", placed, relative_error_of(dtype),
            1e-7 + absolute_error_of(dtype)},
           {"rows and positions of their own", placed_apart, relative_error_of(dtype),
            1e-7 + absolute_error_of(dtype)},
           {"dtable", dtable, 1e-6, 1e-6},
           {"dposition", dposition, 1e-6, 1e-6},
           {"dtable added", added, 1e-6, 1e-6},
           {"rows of chunks", placed, relative_error_of(dtype), 1e-7 + absolute_error_of(dtype)},
           {"dtable of chunks", dtable, 1e-6, 1e-6},
           {"dposition of chunks", dposition, 1e-6, 1e-6}},
          [&](Lab& lab) -> std::vector<Values> {
            const Tensor ids = lab.put_ids(tokens);
            const Tensor places_in = lab.put_ids(places);
            const Tensor table_in = lab.put(table, dtype, {kVocabulary, width});
            const Tensor position_in = lab.put(position, dtype, {kPositions, width});
            const Tensor x = lab.unset(dtype, {count, width});
            lab.ops().embedding_forward(ids, table_in, kWhole, {}, {}, kSequence, x, lab.stream());
            const Values x_plain = lab.get(x);
            lab.ops().embedding_forward(ids, table_in, kWhole, position_in, {}, kSequence, x,
                                        lab.stream());
            const Values x_placed = lab.get(x);
            lab.ops().embedding_forward(ids, table_in, kWhole, position_in, places_in, kSequence, x,
                                        lab.stream());
            const Tensor dx_in = lab.put(dx, dtype, {count, width});
            const Tensor dtable_out = lab.unset(DType::kF32, {kVocabulary, width});
            const Tensor dposition_out = lab.unset(DType::kF32, {kPositions, width});
            const Tensor total = lab.put(earlier, DType::kF32, {kVocabulary, width});
            lab.ops().embedding_backward(ids, dx_in, kWhole, kSequence, dtable_out, dposition_out,
                                         Write::kOverwrite, Write::kOverwrite, lab.stream());
            lab.ops().embedding_backward(ids, dx_in, kWhole, kSequence, total, {}, Write::kAdd,
                                         Write::kAdd, lab.stream());
            // Chunk by chunk, a sequence a batch: rows of the position table from the chunk's
            // first position on.
            const Tensor x_chunks = lab.unset(dtype, {count, width});
            const Tensor dtable_chunks = lab.unset(DType::kF32, {kVocabulary, width});
            const Tensor dposition_chunks = lab.unset(DType::kF32, {kPositions, width});
            lab.ops().zero(dtable_chunks, lab.stream());
            lab.ops().zero(dposition_chunks, lab.stream());
            constexpr std::int64_t kCut = kSequence / 2;
            for (std::int64_t row = 0; row < count; row += kSequence) {
              for (const auto& [begin, end] :
                   {std::pair{std::int64_t{0}, kCut}, std::pair{kCut, kSequence}}) {
                const Tensor of_chunk = ids.rows(row + begin, row + end);
                lab.ops().embedding_forward(of_chunk, table_in, kWhole,
                                            position_in.rows(begin, end), {}, end - begin,
                                            x_chunks.rows(row + begin, row + end), lab.stream());
                lab.ops().embedding_backward(of_chunk, dx_in.rows(row + begin, row + end), kWhole,
                                             end - begin, dtable_chunks,
                                             dposition_chunks.rows(begin, end), Write::kAdd,
                                             Write::kAdd, lab.stream());
              }
            }
            return {x_plain,
                    x_placed,
                    lab.get(x),
                    lab.get(dtable_out),
                    lab.get(dposition_out),
                    lab.get(total),
                    lab.get(x_chunks),
                    lab.get(dtable_chunks),
                    lab.get(dposition_chunks)};
          });
    }
  }
}

}  // namespace dstrain::test
