// A vocabulary cut into slices, one per rank, with padding at its end: what the slices give
// together is what the whole vocabulary gives, by fp64.
//
// N tokens, C width, V vocabulary, S entries of a slice, R slices
#include <algorithm>
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/ignored_target.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

struct Cut {
  std::int64_t vocab_size;  // V
  std::int64_t entries;     // S
  std::int64_t slices;      // R

  [[nodiscard]] std::int64_t padded() const { return entries * slices; }
  [[nodiscard]] VocabSlice slice(std::int64_t r) const {
    return {.first = r * entries, .vocab_size = vocab_size};
  }
};

/// 72 entries for 67 tokens; then a slice, and two, of nothing but padding; then slices longer than
/// the pieces of a row that are summed up at a time.
constexpr Cut kCuts[] = {{67, 72, 1}, {67, 36, 2}, {67, 24, 3},    {67, 18, 4},
                         {67, 24, 4}, {5, 3, 4},   {9000, 4600, 2}};

/// The first, the last and a middle entry of every slice that has any.
std::vector<std::int32_t> tokens_of_every_slice(const Cut& cut) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t r = 0; r < cut.slices; ++r) {
    const std::int64_t first = cut.slice(r).first;
    const std::int64_t last = std::min(first + cut.entries, cut.vocab_size) - 1;
    if (first <= last) {
      for (const std::int64_t token : {first, last, (first + last) / 2}) {
        tokens.push_back(static_cast<std::int32_t>(token));
      }
    }
  }
  return tokens;
}

/// Columns [begin, end) of a matrix.
Values columns(const Values& matrix, std::int64_t width, std::int64_t begin, std::int64_t end) {
  Values part;
  for (auto row = matrix.begin(); row != matrix.end(); row += width) {
    part.insert(part.end(), row + begin, row + end);
  }
  return part;
}

/// [N, V] with rows beyond what exp holds in f32, above and below.
Values logits_for(const Cut& cut, std::int64_t tokens, DType dtype) {
  Values logits = random_values(tokens * cut.vocab_size, 1, 10.0);
  const auto row = [&](std::int64_t n) { return logits.begin() + n * cut.vocab_size; };
  logits[3] = 95.0;
  std::transform(row(1), row(2), row(1), [](double logit) { return logit - 1000.0; });
  logits[static_cast<std::size_t>(2 * cut.vocab_size - 1)] = 1000.0;
  std::transform(row(2), row(3), row(2), [](double logit) { return logit - 100.0; });
  return rounded_to(dtype, logits);
}

/// [N, V] → [N, R·S]; the padding must not be read.
Values padded(const Values& logits, const Cut& cut) {
  Values wide;
  for (auto row = logits.begin(); row != logits.end(); row += cut.vocab_size) {
    wide.insert(wide.end(), row, row + cut.vocab_size);
    wide.resize(wide.size() + static_cast<std::size_t>(cut.padded() - cut.vocab_size), NAN);
  }
  return wide;
}

struct Result {
  Values logsumexp;
  Values losses;
  Values gradient;  // [N, R·S]
};

/// The three steps, as R ranks take them.
Result by_slices(Lab& lab,
                 const Cut& cut,
                 const Values& padded_logits,
                 const std::vector<std::int32_t>& targets,
                 DType dtype,
                 float gradient_scale) {
  const auto tokens = static_cast<std::int64_t>(targets.size());
  const Tensor ids = lab.put_ids(targets);
  const Tensor stats = lab.unset(DType::kF32, {cut.slices, tokens, 3});
  const Tensor logsumexp = lab.unset(DType::kF32, {tokens});
  const Tensor losses = lab.unset(DType::kF32, {tokens});
  std::vector<Tensor> logits;
  for (std::int64_t r = 0; r < cut.slices; ++r) {
    const Values part =
        columns(padded_logits, cut.padded(), r * cut.entries, (r + 1) * cut.entries);
    logits.push_back(lab.put(part, dtype, {tokens, cut.entries}));
    lab.ops().cross_entropy_partial(logits.back(), ids, cut.slice(r), stats.rows(r, r + 1),
                                    lab.stream());
  }
  lab.ops().cross_entropy_combine(stats, logsumexp, losses, lab.stream());
  Values gradient(padded_logits.size());
  for (std::int64_t r = 0; r < cut.slices; ++r) {
    const Tensor slice = logits[static_cast<std::size_t>(r)];
    lab.ops().cross_entropy_gradient(slice, ids, cut.slice(r), logsumexp, {gradient_scale},
                                     lab.stream());
    const Values part = lab.get(slice);
    for (std::int64_t n = 0; n < tokens; ++n) {
      std::copy_n(part.begin() + n * cut.entries, cut.entries,
                  gradient.begin() + n * cut.padded() + r * cut.entries);
    }
  }
  return {lab.get(logsumexp), lab.get(losses), gradient};
}

}  // namespace

TEST_CASE("targets that no other logit exceeds are found, whichever slices have them",
          "[ops][loss][vocabulary]") {
  constexpr std::int64_t kTokens = 40;
  constexpr std::int64_t kColumns = 8;
  constexpr int kSlices = 3;
  for (const DType dtype : kComputeDtypes) {
    CAPTURE(name_of(dtype));
    const Values logits = rounded_to(dtype, random_values(kTokens * kColumns * kSlices, 12, 3.0));
    std::vector<std::int32_t> targets;
    Values hits;
    for (std::int64_t n = 0; n < kTokens; ++n) {
      const auto begin = logits.begin() + n * kColumns * kSlices;
      const auto best = std::max_element(begin, begin + kColumns * kSlices) - begin;
      const bool ignored = n % 5 == 4;
      targets.push_back(ignored ? kIgnoredTarget
                        : n % 2 == 0
                            ? static_cast<std::int32_t>(best)
                            : static_cast<std::int32_t>((best + 1) % (kColumns * kSlices)));
      hits.push_back(!ignored && begin[targets.back()] >= begin[best] ? 1.0 : 0.0);
    }
    conforms({{"hits", hits, 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
      const Tensor ids = lab.put_ids(targets);
      const Tensor stats = lab.unset(DType::kF32, {kSlices, kTokens, 3});
      for (int r = 0; r < kSlices; ++r) {
        const Tensor part =
            lab.put(columns(logits, kColumns * kSlices, r * kColumns, (r + 1) * kColumns), dtype,
                    {kTokens, kColumns});
        lab.ops().cross_entropy_partial(part, ids,
                                        {.first = r * kColumns, .vocab_size = kColumns * kSlices},
                                        stats.rows(r, r + 1), lab.stream());
      }
      const Tensor found = lab.unset(DType::kF32, {kTokens});
      lab.ops().find_hits(stats, ids, found, lab.stream());
      return {lab.get(found)};
    });
  }
}

TEST_CASE("cross-entropy of a vocabulary in slices, and its gradient, follow fp64",
          "[ops][loss][vocabulary]") {
  constexpr float kScale = 1.0F / 16.0F;
  for (const DType dtype : kComputeDtypes) {
    for (const Cut& cut : kCuts) {
      CAPTURE(name_of(dtype), cut.vocab_size, cut.entries, cut.slices);
      const std::vector<std::int32_t> targets = tokens_of_every_slice(cut);
      const auto tokens = static_cast<std::int64_t>(targets.size());
      const Values logits = logits_for(cut, tokens, dtype);
      Values logsumexp;
      Values losses;
      Values gradient;
      for (std::int64_t n = 0; n < tokens; ++n) {
        const auto begin = logits.begin() + n * cut.vocab_size;
        const auto end = begin + cut.vocab_size;
        const double largest = *std::max_element(begin, end);
        double total = 0.0;
        std::for_each(begin, end, [&](double logit) { total += std::exp(logit - largest); });
        const double log_total = largest + std::log(total);
        const std::int64_t target = targets[static_cast<std::size_t>(n)];
        logsumexp.push_back(log_total);
        losses.push_back(log_total - begin[target]);
        for (std::int64_t v = 0; v < cut.vocab_size; ++v) {
          // Moving one logit changes its own term: no need to sum 9000 others.
          const auto moved_loss = [&](const Values& logit) {
            const double moved =
                1.0 - std::exp(begin[v] - log_total) + std::exp(logit[0] - log_total);
            return log_total + std::log(moved) - (v == target ? logit[0] : begin[target]);
          };
          gradient.push_back(kScale * finite_difference(moved_loss, {begin[v]})[0]);
        }
      }
      // f32 knows the logsumexp of logits of order 100 to 1e-5, so p to 1e-5 relative; p - 1 near
      // zero keeps an error of 1e-6.
      const double relative = 2e-5 + relative_error_of(dtype);
      const double absolute = 1e-6 * kScale + absolute_error_of(dtype);
      const Values zeros(static_cast<std::size_t>(tokens * (cut.padded() - cut.vocab_size)), 0.0);
      conforms({{"logsumexp", logsumexp, 1e-6, 1e-5},
                {"losses", losses, 1e-6, 1e-5},
                {"gradient", gradient, relative, absolute},
                {"gradient of padding", zeros, 0.0, 0.0},
                {"losses, unsliced", losses, 1e-6, 1e-5},
                {"losses beside the gradient, unsliced", losses, 1e-6, 1e-5},
                {"gradient, unsliced", gradient, relative, absolute},
                {"gradient of padding, unsliced", zeros, 0.0, 0.0}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Values wide = padded(logits, cut);
                 const Result sliced = by_slices(lab, cut, wide, targets, dtype, kScale);
                 const Tensor whole = lab.put(wide, dtype, {tokens, cut.padded()});
                 const Tensor ids = lab.put_ids(targets);
                 const Tensor first = lab.unset(DType::kF32, {tokens});
                 const Tensor second = lab.unset(DType::kF32, {tokens});
                 lab.ops().cross_entropy_forward(whole, ids, cut.vocab_size, first, lab.stream());
                 lab.ops().cross_entropy_forward_backward(whole, ids, cut.vocab_size, {kScale},
                                                          second, lab.stream());
                 const Values unsliced = lab.get(whole);
                 const auto real = [&](const Values& matrix) {
                   return columns(matrix, cut.padded(), 0, cut.vocab_size);
                 };
                 const auto padding = [&](const Values& matrix) {
                   return columns(matrix, cut.padded(), cut.vocab_size, cut.padded());
                 };
                 return {sliced.logsumexp,         sliced.losses,    real(sliced.gradient),
                         padding(sliced.gradient), lab.get(first),   lab.get(second),
                         real(unsliced),           padding(unsliced)};
               });
    }
  }
}

TEST_CASE("cross-entropy in one slice has the bits of the unsliced one",
          "[ops][loss][vocabulary]") {
  constexpr float kScale = 0.37F;
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType dtype : kComputeDtypes) {
      for (const Cut& cut : {Cut{67, 67, 1}, Cut{67, 72, 1}, Cut{9001, 9001, 1}}) {
        INFO(backend.name << ", " << name_of(dtype) << ", " << cut.entries << " columns");
        Lab lab(backend.make(2));
        const std::vector<std::int32_t> targets = tokens_of_every_slice(cut);
        const auto tokens = static_cast<std::int64_t>(targets.size());
        const Values wide = padded(logits_for(cut, tokens, dtype), cut);
        const Result sliced = by_slices(lab, cut, wide, targets, dtype, kScale);
        const Tensor whole = lab.put(wide, dtype, {tokens, cut.padded()});
        const Tensor losses = lab.unset(DType::kF32, {tokens});
        lab.ops().cross_entropy_forward_backward(whole, lab.put_ids(targets), cut.vocab_size,
                                                 {kScale}, losses, lab.stream());
        CHECK((sliced.losses == lab.get(losses)));
        CHECK((sliced.gradient == lab.get(whole)));
      }
    }
  }
}

TEST_CASE("stats of a slice are its largest logit, its sum, and the target's logit if it has it",
          "[ops][loss][vocabulary]") {
  constexpr Cut kCut{67, 24, 4};
  const std::vector<std::int32_t> targets = tokens_of_every_slice(kCut);
  const auto tokens = static_cast<std::int64_t>(targets.size());
  for (const BackendUnderTest& backend : backends_under_test()) {
    for (const DType dtype : kComputeDtypes) {
      Lab lab(backend.make(1));
      const Values logits = logits_for(kCut, tokens, dtype);
      const Values wide = padded(logits, kCut);
      for (std::int64_t r = 0; r < kCut.slices; ++r) {
        const std::int64_t begin = r * kCut.entries;
        const Tensor slice = lab.put(columns(wide, kCut.padded(), begin, begin + kCut.entries),
                                     dtype, {tokens, kCut.entries});
        const Tensor stats_N3 = lab.unset(DType::kF32, {tokens, 3});
        lab.ops().cross_entropy_partial(slice, lab.put_ids(targets), kCut.slice(r), stats_N3,
                                        lab.stream());
        const Values stats = lab.get(stats_N3);
        for (std::int64_t n = 0; n < tokens; ++n) {
          INFO(backend.name << ", " << name_of(dtype) << ", slice " << r << ", row " << n);
          double largest = -std::numeric_limits<double>::infinity();
          double total = 0.0;
          double target_logit = 0.0;
          const auto row = logits.begin() + n * kCut.vocab_size;
          const std::int64_t end = std::min(begin + kCut.entries, kCut.vocab_size);
          for (std::int64_t v = begin; v < end; ++v) {
            largest = std::max(largest, row[v]);
            target_logit = v == targets[static_cast<std::size_t>(n)] ? row[v] : target_logit;
          }
          for (std::int64_t v = begin; v < end; ++v) {
            total += std::exp(row[v] - largest);
          }
          const auto at = static_cast<std::size_t>(3 * n);
          CHECK(stats[at] == largest);
          CHECK(stats[at + 1] == Approx(total).epsilon(1e-6));
          CHECK(stats[at + 2] == target_logit);
        }
      }
    }
  }
}

// Exactly, since one rank's row is added to zeros, and the gradients are added in one order.
TEST_CASE("embedding rows summed over slices, and gradients of slices, are those of the whole",
          "[ops][embedding][vocabulary]") {
  constexpr std::int64_t kWidth = 37;
  constexpr std::int64_t kSequence = 7;
  constexpr std::int64_t kPositions = 9;
  for (const DType dtype : kComputeDtypes) {
    for (const Cut& cut : kCuts) {
      CAPTURE(name_of(dtype), cut.vocab_size, cut.entries, cut.slices);
      std::vector<std::int32_t> tokens = tokens_of_every_slice(cut);
      tokens.insert(tokens.end(), tokens.rbegin(), tokens.rend());
      const auto count = static_cast<std::int64_t>(tokens.size());
      const Values table = rounded_to(dtype, random_values(cut.padded() * kWidth, 1));
      const Values position = rounded_to(dtype, random_values(kPositions * kWidth, 2));
      const Values dx = rounded_to(dtype, random_values(count * kWidth, 3));
      Values plain;
      Values placed;
      Values dtable(table.size(), 0.0);
      Values dposition(position.size(), 0.0);
      const auto add = [](double& sum, double term) { sum = static_cast<float>(sum + term); };
      for (std::size_t pass = 0; pass < 2; ++pass) {
        for (std::size_t n = 0; n < tokens.size(); ++n) {
          for (std::size_t c = 0; c < kWidth; ++c) {
            const std::size_t row = static_cast<std::size_t>(tokens[n]) * kWidth + c;
            const std::size_t place = n % kSequence * kWidth + c;
            if (pass == 0) {
              plain.push_back(table[row]);
              placed.push_back(table[row] + position[place]);
            }
            add(dtable[row], dx[n * kWidth + c]);
            add(dposition[place], dx[n * kWidth + c]);
          }
        }
      }
      Values dposition_of_all;
      for (std::int64_t r = 0; r < cut.slices; ++r) {
        dposition_of_all.insert(dposition_of_all.end(), dposition.begin(), dposition.end());
      }
      conforms({{"rows", plain, 0.0, 0.0},
                {"rows and positions", rounded_to(dtype, placed), 0.0, 0.0},
                {"dtable", dtable, 0.0, 0.0},
                {"dposition of every rank", dposition_of_all, 0.0, 0.0}},
               [&](Lab& lab) -> std::vector<Values> {
                 Ops& ops = lab.ops();
                 const Tensor ids = lab.put_ids(tokens);
                 const Tensor whole = lab.put(table, dtype, {cut.padded(), kWidth});
                 const Tensor positions = lab.put(position, dtype, {kPositions, kWidth});
                 const Tensor dx_in = lab.put(dx, dtype, {count, kWidth});
                 const Values zeros(static_cast<std::size_t>(count * kWidth), 0.0);
                 const Tensor x_plain = lab.put(zeros, dtype, {count, kWidth});
                 const Tensor x_placed = lab.put(zeros, dtype, {count, kWidth});
                 const Tensor dwhole = lab.unset(DType::kF32, {cut.padded(), kWidth});
                 Values dpositions;
                 for (std::int64_t r = 0; r < cut.slices; ++r) {
                   const VocabSlice slice = cut.slice(r);
                   const Tensor rows = whole.rows(slice.first, slice.first + cut.entries);
                   const Tensor drows = dwhole.rows(slice.first, slice.first + cut.entries);
                   const Tensor x = lab.unset(dtype, {count, kWidth});
                   ops.embedding_forward(ids, rows, slice, {}, {}, kSequence, x, lab.stream());
                   ops.add(x_plain, x, x_plain, lab.stream());
                   ops.embedding_forward(ids, rows, slice, positions, {}, kSequence, x,
                                         lab.stream());
                   ops.add(x_placed, x, x_placed, lab.stream());
                   const Tensor dpos = lab.unset(DType::kF32, {kPositions, kWidth});
                   for (const Write write : {Write::kOverwrite, Write::kAdd}) {
                     ops.embedding_backward(ids, dx_in, slice, kSequence, drows, dpos, write, write,
                                            lab.stream());
                   }
                   const Values of_rank = lab.get(dpos);
                   dpositions.insert(dpositions.end(), of_rank.begin(), of_rank.end());
                 }
                 return {lab.get(x_plain), lab.get(x_placed), lab.get(dwhole), dpositions};
               });
    }
  }
}

TEST_CASE("tokens and targets that name padding are refused by every slice",
          "[ops][embedding][loss][vocabulary]") {
  constexpr Cut kCut{67, 36, 2};
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    Ops& ops = lab.ops();
    const Tensor ids = lab.put_ids({3, 67});
    const auto refusal = Catch::Contains("outside the vocabulary [0, 67)");
    for (std::int64_t r = 0; r < kCut.slices; ++r) {
      const VocabSlice slice = kCut.slice(r);
      const Tensor table = lab.unset(DType::kF32, {kCut.entries, 4});
      const Tensor x = lab.unset(DType::kF32, {2, 4});
      const Tensor logits = lab.unset(DType::kF32, {2, kCut.entries});
      const Tensor stats = lab.unset(DType::kF32, {2, 3});
      const Tensor logsumexp = lab.unset(DType::kF32, {2});
      const auto refuses = [&](const std::function<void()>& run) {
        CHECK_THROWS_WITH((run(), lab.stream().synchronize()),
                          refusal);  // a GPU tells when waited for
      };
      refuses([&] { ops.embedding_forward(ids, table, slice, {}, {}, 2, x, lab.stream()); });
      refuses([&] {
        ops.embedding_backward(ids, x, slice, 2, table, {}, Write::kOverwrite, Write::kOverwrite,
                               lab.stream());
      });
      refuses([&] { ops.cross_entropy_partial(logits, ids, slice, stats, lab.stream()); });
      refuses(
          [&] { ops.cross_entropy_gradient(logits, ids, slice, logsumexp, {1.0F}, lab.stream()); });
    }
  }
}

}  // namespace dstrain::test
