// Attention in fp64, score by score, with all that hides scores or bends them: positions of queries
// and keys, a window, documents, a cap, slopes; and with sinks.
//
// B batch, T queries, S keys, H query heads, K key/value heads, D head dim
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "tests/ops/lab.h"

namespace dstrain::test {

struct AttentionProblem {
  AttentionShape shape;
  std::int64_t keys;
  AttentionReach reach;
  std::vector<std::vector<std::int64_t>> documents{};  ///< of each sequence, their lengths
  Values slopes{};                                     ///< of the query heads
  Values sinks{};                                      ///< likewise
  std::int64_t begun = 0;  ///< tokens of each first document that are before the first query

  [[nodiscard]] std::int64_t queries_numel() const {
    return shape.batch * shape.sequence * shape.query_heads * shape.head_dim;
  }
  [[nodiscard]] std::int64_t keys_numel() const {
    return shape.batch * keys * shape.key_value_heads * shape.head_dim;
  }
  /// How many tokens of its document stand before each query.
  [[nodiscard]] std::vector<std::int32_t> document_positions() const {
    std::vector<std::int32_t> positions;
    for (const std::vector<std::int64_t>& lengths : documents) {
      std::int64_t before = begun;
      for (const std::int64_t length : lengths) {
        for (std::int64_t i = 0; i < length; ++i) {
          positions.push_back(static_cast<std::int32_t>(before + i));
        }
        before = 0;
      }
    }
    return positions;
  }
  [[nodiscard]] bool sees(std::int64_t b, std::int64_t query, std::int64_t key) const {
    const std::int64_t before = reach.first_query + query - (reach.first_key + key);
    const bool in_window = before >= 0 && (reach.window == 0 || before < reach.window);
    if (documents.empty()) {
      return in_window;
    }
    std::int64_t begin = 0;
    for (const std::int64_t length : documents[static_cast<std::size_t>(b)]) {
      if (query < begin + length) {
        const std::int64_t first = reach.first_query + (begin == 0 ? -begun : begin);
        return in_window && reach.first_key + key >= first;
      }
      begin += length;
    }
    return false;
  }
};

struct AttentionGradients {
  Values dq;
  Values dk;
  Values dv;
  Values d_sinks{};
};

/// Loops over all scores in fp64. q: [B][T][H][D]; k and v: [B][S][K][D].
class AttentionReference {
 public:
  AttentionReference(const AttentionProblem& problem,
                     const Values& q,
                     const Values& k,
                     const Values& v)
      : p_(problem), q_(q), k_(k), v_(v) {
    out.assign(q.size(), 0.0);
    logsumexp.assign(
        static_cast<std::size_t>(p_.shape.batch * p_.shape.query_heads * p_.shape.sequence),
        -INFINITY);
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t t) {
      double total = p_.sinks.empty() ? 0.0 : std::exp(p_.sinks[at(h)]);
      for_each_seen(b, t, [&](std::int64_t u) { total += std::exp(score(b, h, t, u).value); });
      if (total > 0.0) {
        logsumexp[sum_at(b, h, t)] = std::log(total);
      }
      for_each_seen(b, t, [&](std::int64_t u) {
        const double weight = std::exp(score(b, h, t, u).value) / total;
        for (std::int64_t d = 0; d < p_.shape.head_dim; ++d) {
          out[q_at(b, t, h) + at(d)] += weight * v_[k_at(b, u, h) + at(d)];
        }
      });
    });
  }

  [[nodiscard]] AttentionGradients backward(const Values& dout) const {
    AttentionGradients g{Values(q_.size(), 0.0), Values(k_.size(), 0.0), Values(v_.size(), 0.0),
                         Values(p_.sinks.size(), 0.0)};
    for_each_query([&](std::int64_t b, std::int64_t h, std::int64_t t) {
      const std::size_t row = q_at(b, t, h);
      const double delta = dot(dout, row, out, row);
      if (!p_.sinks.empty()) {
        g.d_sinks[at(h)] -= std::exp(p_.sinks[at(h)] - logsumexp[sum_at(b, h, t)]) * delta;
      }
      for_each_seen(b, t, [&](std::int64_t u) {
        const std::size_t key = k_at(b, u, h);
        const Score s = score(b, h, t, u);
        const double weight = std::exp(s.value - logsumexp[sum_at(b, h, t)]);
        const double ds = weight * (dot(dout, row, v_, key) - delta) * s.slope;
        for (std::int64_t d = 0; d < p_.shape.head_dim; ++d) {
          g.dq[row + at(d)] += ds * k_[key + at(d)];
          g.dk[key + at(d)] += ds * q_[row + at(d)];
          g.dv[key + at(d)] += weight * dout[row + at(d)];
        }
      });
    });
    return g;
  }

  Values out;
  Values logsumexp;

 private:
  struct Score {
    double value;
    double slope;  ///< by q · k
  };

  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  template <typename F>
  void for_each_query(F&& f) const {
    for (std::int64_t b = 0; b < p_.shape.batch; ++b) {
      for (std::int64_t h = 0; h < p_.shape.query_heads; ++h) {
        for (std::int64_t t = 0; t < p_.shape.sequence; ++t) {
          f(b, h, t);
        }
      }
    }
  }
  template <typename F>
  void for_each_seen(std::int64_t b, std::int64_t query, F&& f) const {
    for (std::int64_t u = 0; u < p_.keys; ++u) {
      if (p_.sees(b, query, u)) {
        f(u);
      }
    }
  }
  [[nodiscard]] double dot(const Values& a, std::size_t i, const Values& b, std::size_t j) const {
    double total = 0.0;
    for (std::int64_t d = 0; d < p_.shape.head_dim; ++d) {
      total += a[i + at(d)] * b[j + at(d)];
    }
    return total;
  }
  [[nodiscard]] Score score(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t u) const {
    const double scale = p_.reach.scale > 0.0F
                             ? static_cast<double>(p_.reach.scale)
                             : 1.0 / std::sqrt(static_cast<double>(p_.shape.head_dim));
    double plain = dot(q_, q_at(b, t, h), k_, k_at(b, u, h)) * scale;
    if (!p_.slopes.empty()) {
      const std::int64_t distance = p_.reach.first_query + t - p_.reach.first_key - u;
      plain -= p_.slopes[at(h)] * static_cast<double>(distance);
    }
    const double cap = static_cast<double>(p_.reach.cap);
    if (cap == 0.0) {
      return {plain, scale};
    }
    const double bent = std::tanh(plain / cap);
    return {cap * bent, scale * (1.0 - bent * bent)};
  }
  [[nodiscard]] std::size_t q_at(std::int64_t b, std::int64_t t, std::int64_t h) const {
    return at(((b * p_.shape.sequence + t) * p_.shape.query_heads + h) * p_.shape.head_dim);
  }
  [[nodiscard]] std::size_t k_at(std::int64_t b, std::int64_t u, std::int64_t h) const {
    const std::int64_t kv = h / (p_.shape.query_heads / p_.shape.key_value_heads);
    return at(((b * p_.keys + u) * p_.shape.key_value_heads + kv) * p_.shape.head_dim);
  }
  [[nodiscard]] std::size_t sum_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return at((b * p_.shape.query_heads + h) * p_.shape.sequence + t);
  }

  AttentionProblem p_;
  const Values& q_;
  const Values& k_;
  const Values& v_;
};

/// Inputs of a problem, in the values that a dtype holds. Scores reach about ±8, so that some
/// probabilities are near one and others tiny.
struct AttentionInputs {
  Values q;
  Values k;
  Values v;
  Values dout;

  AttentionInputs(const AttentionProblem& problem, DType dtype)
      : q(rounded_to(dtype, random_values(problem.queries_numel(), 1, 2.0))),
        k(rounded_to(dtype, random_values(problem.keys_numel(), 2, 2.0))),
        v(rounded_to(dtype, random_values(problem.keys_numel(), 3, 2.0))),
        dout(rounded_to(dtype, random_values(problem.queries_numel(), 4))) {}
};

/// In rows q‖k‖v, as training has them.
inline Values packed_rows(const AttentionShape& shape,
                          const Values& q,
                          const Values& k,
                          const Values& v) {
  Values rows;
  for (std::int64_t token = 0; token < shape.batch * shape.sequence; ++token) {
    for (const auto& [of, heads] : {std::pair{&q, shape.query_heads},
                                    {&k, shape.key_value_heads},
                                    {&v, shape.key_value_heads}}) {
      const auto first = of->begin() + token * heads * shape.head_dim;
      rows.insert(rows.end(), first, first + heads * shape.head_dim);
    }
  }
  return rows;
}

inline double largest(const Values& values) {
  double most = 0.0;
  for (const double value : values) {
    most = std::max(most, std::abs(value));
  }
  return most;
}

}  // namespace dstrain::test
