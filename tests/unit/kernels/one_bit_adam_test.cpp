// 1-bit Adam's formulas (kernels/math/one_bit_adam.h), compared with fp64 figures by DeepSpeed's
// (tests/golden/onebit.json, scripts/make_onebit_golden.py). Ranks are rows of a table here.
#include "kernels/math/one_bit_adam.h"

#include <cmath>
#include <fstream>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/math/adamw.h"

namespace dstrain {
namespace {

using nlohmann::json;
using Row = std::vector<float>;

struct Packed {
  std::vector<std::uint8_t> signs;
  float scale = 0.0F;
};

/// Codes row + error; `error` becomes what the code leaves out.
Packed encode(Row row, Row& error) {
  double squares = 0.0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    row[i] += error[i];
    squares += static_cast<double>(row[i]) * row[i];
  }
  Packed packed;
  packed.scale = static_cast<float>(std::sqrt(squares / static_cast<double>(row.size())));
  for (std::size_t i = 0; i < row.size(); i += 8)
    packed.signs.push_back(pack_signs(&row[i]));
  for (std::size_t i = 0; i < row.size(); ++i) {
    error[i] = row[i] - one_bit_value(one_bit_sign(row[i]), packed.scale);
  }
  return packed;
}

float decoded(const Packed& packed, std::size_t element) {
  const bool sign = packed_sign(packed.signs[element / 8], static_cast<int>(element % 8));
  return one_bit_value(sign, packed.scale);
}

/// A run on all ranks at once.
struct Run {
  std::size_t ranks;
  std::size_t chunk;  ///< elements of one server
  Row master, m, v;
  std::vector<Row> worker_error, server_error;

  explicit Run(const json& golden)
      : ranks(golden.at("ranks")),
        chunk(golden.at("padded").get<std::size_t>() / ranks),
        master(golden.at("start").get<Row>()),
        m(master.size()),
        v(master.size()),
        worker_error(ranks, Row(chunk * ranks)),
        server_error(ranks, Row(chunk)) {}

  void warm_up_step(const std::vector<Row>& gradients, const AdamwFactors& step) {
    for (std::size_t i = 0; i < master.size(); ++i) {
      double sum = 0.0;
      for (const Row& row : gradients)
        sum += row[i];
      const auto mean = static_cast<float>(sum / static_cast<double>(ranks));
      update_element(step, mean, master[i], m[i], v[i]);
    }
  }

  void compressed_step(const std::vector<Row>& gradients, const AdamwFactors& step) {
    std::vector<Row> own(ranks, m);
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < m.size(); ++i) {
        own[r][i] = running_mean(step.first, m[i], gradients[r][i]);
      }
    }
    m = ranks > 1 ? exchange(own) : own[0];
    for (std::size_t i = 0; i < master.size(); ++i) {
      one_bit_update(step.step_size, step.decay, step.epsilon, m[i], v[i], master[i]);
    }
  }

  Row exchange(const std::vector<Row>& own) {
    std::vector<Packed> sent;
    for (std::size_t r = 0; r < ranks; ++r) {
      Row padded = own[r];
      padded.resize(chunk * ranks);
      sent.push_back(encode(padded, worker_error[r]));
    }
    Row received;
    for (std::size_t r = 0; r < ranks; ++r) {
      Row mean(chunk);
      for (std::size_t i = 0; i < chunk; ++i) {
        for (const Packed& from : sent)
          mean[i] += decoded(from, r * chunk + i);
        mean[i] /= static_cast<float>(ranks);
      }
      const Packed packed = encode(mean, server_error[r]);
      for (std::size_t i = 0; i < chunk; ++i)
        received.push_back(decoded(packed, i));
    }
    received.resize(m.size());
    return received;
  }
};

/// The largest difference, relative to the largest number of `expected`.
double worst_difference(const Row& row, const auto& expected) {
  double worst = 0.0;
  double largest = 1e-30;
  REQUIRE(expected.size() == row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto x = static_cast<double>(expected[i]);
    worst = std::max(worst, std::abs(static_cast<double>(row[i]) - x));
    largest = std::max(largest, std::abs(x));
  }
  return worst / largest;
}

/// The rows of all ranks, one after another.
Row joined(const std::vector<Row>& rows) {
  Row all;
  for (const Row& row : rows)
    all.insert(all.end(), row.begin(), row.end());
  return all;
}

}  // namespace

TEST_CASE("1-bit Adam takes DeepSpeed's steps, before its variance is frozen and after",
          "[kernels][math][golden]") {
  const json golden = json::parse(std::ifstream("tests/golden/onebit.json"));
  REQUIRE(golden.at("adam").size() == 6);
  const AdamwFactors step = factors_of(AdamwStep{.learning_rate = golden.at("lr"),
                                                 .beta1 = golden.at("betas")[0],
                                                 .beta2 = golden.at("betas")[1],
                                                 .epsilon = golden.at("eps"),
                                                 .weight_decay = golden.at("weight_decay")});
  for (const json& expected : golden.at("adam")) {
    Run run(expected);
    CHECK(one_bit_padded(expected.at("elements"), expected.at("ranks")) == expected.at("padded"));
    REQUIRE(expected.at("steps").size() == 12);
    for (std::size_t k = 0; k < expected.at("steps").size(); ++k) {
      INFO(run.ranks << " ranks, step " << k + 1);
      const auto gradients = expected.at("gradients")[k].get<std::vector<Row>>();
      if (k < golden.at("freeze_step").get<std::size_t>()) {
        run.warm_up_step(gradients, step);
      } else {
        run.compressed_step(gradients, step);
      }
      CHECK(worst_difference(run.master, expected.at("steps")[k].at("parameters")) < 1e-6);
      CHECK(worst_difference(run.m, expected.at("steps")[k].at("momentum")) < 1e-6);
    }
    // Errors are differences of like numbers, so their last digits are less certain; those of a
    // chunk of padding alone are 0 but for rounding. All ranks' together give the measure.
    CHECK(worst_difference(joined(run.worker_error),
                           joined(expected.at("worker_error").get<std::vector<Row>>())) < 1e-5);
    CHECK(worst_difference(joined(run.server_error),
                           joined(expected.at("server_error").get<std::vector<Row>>())) < 1e-5);
  }
}

TEST_CASE("signs are packed as numpy.packbits packs them, and zero is positive",
          "[kernels][math]") {
  const float x_8[8] = {1.0F, -1.0F, 0.0F, -0.0F, -2.0F, -3.0F, 4.0F, -5.0F};
  CHECK(pack_signs(x_8) == 0b10110010);
  for (int byte = 0; byte < 256; ++byte) {
    Row row;
    for (int i = 0; i < 8; ++i) {
      row.push_back(one_bit_value(packed_sign(static_cast<std::uint8_t>(byte), i), 0.5F));
    }
    CHECK(pack_signs(row.data()) == byte);
  }
}

}  // namespace dstrain
