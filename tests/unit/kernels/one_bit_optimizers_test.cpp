// Whole runs of 1-bit Adam, 0/1 Adam and 1-bit LAMB by the CPU's operations, compared with fp64
// figures (tests/golden/onebit.json, scripts/make_onebit_golden.py). Ranks are rows of a table
// here, and what they exchange is coded in plain loops.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/backend.h"
#include "kernels/math/running_mean.h"
#include "kernels/optimizers.h"

namespace dstrain {
namespace {

using nlohmann::json;
using Row = std::vector<float>;

json golden() {
  return json::parse(std::ifstream("tests/golden/onebit.json"));
}

Tensor tensor_of(Row& row, std::size_t first, std::size_t count) {
  return {row.data() + first, DType::kF32, Shape{static_cast<std::int64_t>(count)}};
}
Tensor tensor_of(Row& row) {
  return tensor_of(row, 0, row.size());
}
template <std::size_t kCount>
Tensor tensor_of(double (&numbers)[kCount]) {
  return {numbers, DType::kF64, Shape{static_cast<std::int64_t>(kCount)}};
}

Row mean_of(const std::vector<Row>& rows) {
  Row mean(rows[0].size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    double sum = 0.0;
    for (const Row& row : rows) {
      sum += row[i];
    }
    mean[i] = static_cast<float>(sum / static_cast<double>(rows.size()));
  }
  return mean;
}

/// beta · m + (1 - beta) · g.
Row advanced(double beta, const Row& m, const Row& gradient) {
  Row result(m.size());
  for (std::size_t i = 0; i < m.size(); ++i) {
    result[i] = running_mean(mean_weights(beta), m[i], gradient[i]);
  }
  return result;
}

/// What ranks exchange of one tensor, with each rank's errors.
class Exchange {
 public:
  Exchange(std::size_t elements, std::size_t ranks)
      : chunk_((elements + 8 * ranks - 1) / (8 * ranks) * 8),
        worker_error_(ranks, Row(elements)),
        server_error_(elements) {}

  /// The mean of all ranks' rows as everyone receives it.
  Row mean(const std::vector<Row>& rows) {
    if (rows.size() == 1) {
      return rows[0];
    }
    std::vector<Row> sent = rows;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      code(sent[r], worker_error_[r], 0, sent[r].size());
    }
    Row received = mean_of(sent);
    for (std::size_t begin = 0; begin < received.size(); begin += chunk_) {
      code(received, server_error_, begin, std::min(begin + chunk_, received.size()));
    }
    return received;
  }

  void forget() { *this = Exchange(server_error_.size(), worker_error_.size()); }

  [[nodiscard]] const std::vector<Row>& worker_error() const { return worker_error_; }
  [[nodiscard]] const Row& server_error() const { return server_error_; }

 private:
  /// Replaces values [begin, end) by signs and a scale; `error` becomes what they leave out.
  static void code(Row& values, Row& error, std::size_t begin, std::size_t end) {
    double squares = 0.0;
    for (std::size_t i = begin; i < end; ++i) {
      values[i] += error[i];
      squares += static_cast<double>(values[i]) * values[i];
    }
    const auto scale = static_cast<float>(std::sqrt(squares / static_cast<double>(end - begin)));
    for (std::size_t i = begin; i < end; ++i) {
      const float coded = values[i] < 0.0F ? -scale : scale;
      error[i] = values[i] - coded;
      values[i] = coded;
    }
  }

  std::size_t chunk_;
  std::vector<Row> worker_error_;
  Row server_error_;
};

/// One rank's states.
struct Rank {
  Row master, parameters, m, v, third;

  explicit Rank(const json& start)
      : master(start.get<Row>()),
        parameters(master),
        m(master.size()),
        v(master.size()),
        third(master.size()) {}

  /// Elements [first, first + count) of all.
  OptimizerTensors tensors(Row& gradient, std::size_t first, std::size_t count) {
    return {.gradient = tensor_of(gradient),
            .master = tensor_of(master, first, count),
            .first_moment = tensor_of(m, first, count),
            .second_moment = tensor_of(v, first, count),
            .third_moment = tensor_of(third, first, count),
            .parameters = tensor_of(parameters, first, count)};
  }
  OptimizerTensors tensors(Row& gradient) { return tensors(gradient, 0, master.size()); }
  OptimizerTensors tensors_without_third(Row& gradient) {
    OptimizerTensors all = tensors(gradient);
    all.third_moment = {};
    return all;
  }
};

struct Cpu {
  Backend backend = make_cpu_backend(1);

  void update(const ElementwiseStep& step, const OptimizerTensors& tensors) {
    backend.ops->update(step, tensors, stream());
    stream().synchronize();
  }
  Stream& stream() { return backend.device->compute_stream(); }
};

/// The largest difference, relative to the largest number of `expected`.
double worst_difference(const Row& row, const json& expected) {
  double worst = 0.0;
  double largest = 1e-30;
  REQUIRE(expected.size() == row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto x = expected[i].get<double>();
    worst = std::max(worst, std::abs(static_cast<double>(row[i]) - x));
    largest = std::max(largest, std::abs(x));
  }
  return worst / largest;
}

/// Checks each rank's row, of `expected` one for each rank, or one for all of them.
template <typename RowOf>
void check_rows(std::vector<Rank>& ranks, const RowOf& row_of, const json& expected) {
  REQUIRE((expected.size() == 1 || expected.size() == ranks.size()));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    CHECK(worst_difference(row_of(ranks[r]), expected[expected.size() == 1 ? 0 : r]) < 1e-6);
  }
}

/// Errors are differences of like numbers, so their last digits are less certain.
void check_errors(const std::vector<Row>& worker, const Row& server, const json& expected) {
  for (std::size_t r = 0; r < worker.size(); ++r) {
    CHECK(worst_difference(worker[r], expected.at("worker_error")[r]) < 1e-5);
  }
  CHECK(worst_difference(server, expected.at("server_error")) < 1e-5);
}

}  // namespace

TEST_CASE("1-bit Adam follows the figures, before its variance is frozen and after",
          "[kernels][math][golden]") {
  const json file = golden();
  const double beta1 = file.at("betas")[0];
  Cpu cpu;
  REQUIRE(file.at("adam").at("runs").size() == 6);
  for (const json& expected : file.at("adam").at("runs")) {
    const double decay = expected.at("weight_decay");
    std::vector<Rank> ranks(expected.at("ranks"), Rank(expected.at("start")));
    Exchange exchange(expected.at("elements"), ranks.size());
    const auto updates = file.at("adam").at("updates").get<std::size_t>();
    for (std::size_t update = 1; update <= updates; ++update) {
      CAPTURE(expected.at("elements").get<int>(), ranks.size(), decay, update);
      const auto gradients = expected.at("gradients")[update - 1].get<std::vector<Row>>();
      const bool compressed = update > file.at("adam").at("freeze_step").get<std::size_t>();
      Row received;
      if (compressed) {
        std::vector<Row> own;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          own.push_back(advanced(beta1, ranks[r].m, gradients[r]));
        }
        received = exchange.mean(own);
      } else {
        received = mean_of(gradients);
      }
      for (Rank& rank : ranks) {
        if (compressed) {
          cpu.update(
              OneBitAdamStep{
                  .learning_rate = file.at("lr"), .epsilon = file.at("eps"), .weight_decay = decay},
              rank.tensors_without_third(received));
        } else {
          cpu.update(AdamwStep{.learning_rate = file.at("lr"),
                               .beta1 = beta1,
                               .beta2 = file.at("betas")[1],
                               .epsilon = file.at("eps"),
                               .weight_decay = decay},
                     rank.tensors_without_third(received));
        }
      }
      check_rows(
          ranks, [](const Rank& rank) { return rank.parameters; },
          json::array({expected.at("parameters")[update - 1]}));
    }
    check_rows(
        ranks, [](const Rank& rank) { return rank.m; }, json::array({expected.at("momentum")}));
    check_errors(exchange.worker_error(), exchange.server_error(), expected);
  }
}

TEST_CASE("0/1 Adam follows the figures, through both of its growing intervals",
          "[kernels][math][golden]") {
  const json file = golden();
  const double epsilon = file.at("eps");
  Cpu cpu;
  REQUIRE(file.at("zero_one_adam").at("runs").size() == 7);
  for (const json& expected : file.at("zero_one_adam").at("runs")) {
    const double decay = expected.at("weight_decay");
    const auto setting = [&](const char* name) { return expected.at(name).get<std::size_t>(); };
    std::vector<Rank> ranks(expected.at("ranks"), Rank(expected.at("start")));
    Exchange exchange(expected.at("elements"), ranks.size());
    std::size_t interval = 1;
    std::size_t updates_with_it = 0;
    const auto lengthen = [&](std::size_t after, std::size_t most) {
      if (++updates_with_it == after) {
        updates_with_it = 0;
        interval = std::min(most, 2 * interval);
      }
    };
    double rates = 0.0;
    for (std::size_t update = 1; update <= expected.at("gradients").size(); ++update) {
      CAPTURE(expected.at("elements").get<int>(), ranks.size(), decay, update);
      auto gradients = expected.at("gradients")[update - 1].get<std::vector<Row>>();
      const double rate = expected.at("rates")[update - 1];
      const bool local = update > setting("var_freeze_step");
      if (update == setting("var_freeze_step") + 1) {
        CHECK(interval >= 4);
        interval = 1;
        updates_with_it = 0;
        exchange.forget();
      }
      const bool meets = update % interval == 0;
      if (!local) {
        Row mean = meets ? mean_of(gradients) : exchange.mean(gradients);
        for (Rank& rank : ranks) {
          // A beta of 1 leaves the variance as it is.
          cpu.update(AdamwStep{.learning_rate = rate,
                               .beta1 = file.at("betas")[0],
                               .beta2 = meets ? file.at("betas")[1].get<double>() : 1.0,
                               .epsilon = epsilon,
                               .weight_decay = decay},
                     rank.tensors_without_third(mean));
        }
        if (meets) {
          lengthen(setting("var_update_scaler"), std::size_t{1} << 30);
        }
      } else {
        rates += rate;
        std::vector<Row> sums;
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          cpu.update(LocalStep{.learning_rate = rate,
                               .beta1 = file.at("betas")[0],
                               .epsilon = epsilon,
                               .weight_decay = decay},
                     ranks[r].tensors(gradients[r]));
          sums.push_back(ranks[r].third);
        }
        if (meets) {
          Row mean = exchange.mean(sums);
          for (Rank& rank : ranks) {
            cpu.update(SyncStep{.epsilon = epsilon, .rates = rates}, rank.tensors(mean));
          }
          rates = 0.0;
        }
        lengthen(setting("local_step_scaler"), setting("local_step_clipper"));
      }
      check_rows(
          ranks, [](const Rank& rank) { return rank.parameters; },
          expected.at("parameters")[update - 1]);
    }
    CHECK(interval == setting("local_step_clipper"));
    check_rows(
        ranks, [](const Rank& rank) { return rank.m; }, expected.at("momentum"));
    check_rows(
        ranks, [](const Rank& rank) { return rank.third; }, expected.at("third_moment"));
    check_errors(exchange.worker_error(), exchange.server_error(), expected);
  }
}

TEST_CASE("1-bit LAMB follows the figures, tensor by tensor", "[kernels][math][golden]") {
  const json file = golden();
  const json& settings = file.at("lamb");
  const double beta1 = file.at("betas")[0];
  Cpu cpu;
  Ops& ops = *cpu.backend.ops;
  REQUIRE(settings.at("runs").size() == 7);
  for (const json& expected : settings.at("runs")) {
    // Ranks agree on all but errors here.
    std::vector<Rank> one(1, Rank(expected.at("start")));
    Rank& all = one[0];
    struct OfTensor {
      std::size_t first, count;
      Exchange exchange;
      double coefficients[2] = {0.0, 1.0};
      double sums[3] = {};
    };
    std::vector<OfTensor> tensors;
    std::size_t elements = 0;
    for (const json& size : expected.at("sizes")) {
      tensors.push_back({elements, size, Exchange(size, expected.at("ranks"))});
      elements += size.get<std::size_t>();
    }
    const LambStep warm_up{.learning_rate = file.at("lr"),
                           .beta1 = beta1,
                           .beta2 = file.at("betas")[1],
                           .epsilon = file.at("eps"),
                           .weight_decay = expected.at("weight_decay"),
                           .max_coeff = settings.at("max_coeff"),
                           .min_coeff = settings.at("min_coeff")};
    const OneBitLambStep frozen{.learning_rate = warm_up.learning_rate,
                                .beta1 = warm_up.beta1,
                                .beta2 = warm_up.beta2,
                                .epsilon = warm_up.epsilon,
                                .weight_decay = warm_up.weight_decay,
                                .factor_max = settings.at("factor_max"),
                                .factor_min = settings.at("factor_min"),
                                .factor_threshold = settings.at("factor_threshold")};
    const auto freeze_step = settings.at("freeze_step").get<std::size_t>();
    for (std::size_t update = 1; update <= settings.at("updates").get<std::size_t>(); ++update) {
      CAPTURE(expected.at("sizes").dump(), expected.at("ranks").get<int>(), update);
      const auto gradients = expected.at("gradients")[update - 1].get<std::vector<Row>>();
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        OfTensor& tensor = tensors[t];
        const auto part_of = [&](const Row& row) {
          const auto begin = row.begin() + static_cast<std::ptrdiff_t>(tensor.first);
          return Row(begin, begin + static_cast<std::ptrdiff_t>(tensor.count));
        };
        std::vector<Row> own;
        for (const Row& row : gradients) {
          own.push_back(update <= freeze_step ? part_of(row)
                                              : advanced(beta1, part_of(all.m), part_of(row)));
        }
        Row received = update <= freeze_step ? mean_of(own) : tensor.exchange.mean(own);
        OptimizerTensors states = all.tensors(received, tensor.first, tensor.count);
        const Tensor coefficients = tensor_of(tensor.coefficients);
        if (update <= freeze_step) {
          double squares[2];
          OptimizerTensors without_third = states;
          without_third.third_moment = {};
          ops.lamb_moments(warm_up, without_third, tensor_of(squares), cpu.stream());
          ops.lamb_apply(warm_up, without_third, tensor_of(squares), cpu.stream());
          ops.remember_trust_ratio(warm_up, settings.at("coeff_beta"), tensor_of(squares),
                                   coefficients, cpu.stream());
          cpu.stream().synchronize();
        } else {
          ops.one_bit_lamb_moments(frozen, states, tensor_of(tensor.sums), cpu.stream());
          ops.one_bit_lamb_apply(frozen, states, tensor_of(tensor.sums), coefficients,
                                 cpu.stream());
          cpu.stream().synchronize();
        }
        const auto factor = expected.at("factors")[update - 1][t].get<double>();
        CHECK(std::abs(tensor.coefficients[1] / factor - 1.0) < 1e-6);
      }
      if (update == freeze_step) {
        all.third = all.v;
      }
      CHECK(worst_difference(all.parameters, expected.at("parameters")[update - 1]) < 1e-6);
    }
    std::vector<Row> worker(expected.at("ranks").get<std::size_t>());
    Row server;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const auto coefficient = expected.at("coefficients")[t].get<double>();
      CHECK(std::abs(tensors[t].coefficients[0] / coefficient - 1.0) < 1e-6);
      for (std::size_t r = 0; r < worker.size(); ++r) {
        const Row& error = tensors[t].exchange.worker_error()[r];
        worker[r].insert(worker[r].end(), error.begin(), error.end());
      }
      const Row& error = tensors[t].exchange.server_error();
      server.insert(server.end(), error.begin(), error.end());
    }
    CHECK(worst_difference(all.m, expected.at("momentum")) < 1e-6);
    CHECK(worst_difference(all.third, expected.at("fresh_variance")) < 1e-6);
    check_errors(worker, server, expected);
  }
}

}  // namespace dstrain
