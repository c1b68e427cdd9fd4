// Prints the parity matrix: every combination of parallelisms against the single-rank run of the
// same global batch. Ends with 1 if one of them is not as it must be.
//   parity_matrix [--json] [--filter TEXT]...
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/parity/measure.h"

namespace dstrain::test {
namespace {

struct Row {
  Combination combination;
  Measurement measured;
  double seconds = 0.0;
  [[nodiscard]] bool good() const { return measured.good(combination.bound); }
};

nlohmann::json to_json(const Row& row) {
  return {{"combination", row.combination.name()},
          {"ranks", row.combination.ranks()},
          {"global_batch", row.combination.global_batch()},
          {"steps", row.combination.options.steps},
          {"loss_difference", row.measured.loss_difference},
          {"loss_bound", row.combination.bound.loss},
          {"norm_difference", row.measured.norm_difference},
          {"norm_bound", row.combination.bound.norm},
          {"bound_because", row.combination.bound.because},
          {"learns", row.measured.learns},
          {"faults", row.measured.faults},
          {"good", row.good()},
          {"seconds", row.seconds}};
}

void print_header() {
  fmt::print("{:<58} {:>5} {:>9} {:>7} {:>9} {:>7}  {:<6} {:>6}\n", "combination", "ranks", "loss",
             "bound", "norm", "bound", "exact", "s");
}

void print(const Row& row) {
  fmt::print("{:<58} {:>5} {:>9.1e} {:>7.0e} {:>9.1e} {:>7.0e}  {:<6} {:>6.2f}{}\n",
             row.combination.name(), row.combination.ranks(), row.measured.loss_difference,
             row.combination.bound.loss, row.measured.norm_difference, row.combination.bound.norm,
             row.measured.faults.empty() ? "yes" : "NO", row.seconds,
             row.good() ? "" : "  <- WRONG");
  for (const std::string& fault : row.measured.faults) {
    fmt::print("    {}\n", fault);
  }
  std::fflush(stdout);
}

Row measured(const Combination& combination, ReferenceRuns& references) {
  references.of(combination);
  const auto start = std::chrono::steady_clock::now();
  Row row{combination, measure(combination, references)};
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return row;
}

int run(bool json, const std::vector<std::string>& filters) {
  ReferenceRuns references;
  nlohmann::json rows = nlohmann::json::array();
  int wrong = 0;
  int all = 0;
  if (!json) print_header();
  for (const Combination& combination : all_combinations()) {
    const std::string name = combination.name();
    const bool wanted = std::all_of(filters.begin(), filters.end(), [&](const std::string& text) {
      return name.find(text) != std::string::npos;
    });
    if (!wanted) continue;
    const Row row = measured(combination, references);
    all += 1;
    wrong += row.good() ? 0 : 1;
    if (json) {
      rows.push_back(to_json(row));
    } else {
      print(row);
    }
  }
  if (json) {
    fmt::print("{}\n", rows.dump(2));
  } else {
    fmt::print(
        "{} of {} combinations as they must be. loss, norm: worst relative difference to one rank\n"
        "with the same global batch, over 20 steps. exact: traffic, memory, copies.\n",
        all - wrong, all);
  }
  return wrong == 0 && all > 0 ? 0 : 1;
}

}  // namespace
}  // namespace dstrain::test

int main(int argc, char** argv) {
  CLI::App app("Every combination of parallelisms against the single-rank run.");
  bool json = false;
  std::vector<std::string> filters;
  app.add_flag("--json", json, "One JSON array instead of a table");
  app.add_option("--filter", filters, "Only combinations whose name has all these texts");
  CLI11_PARSE(app, argc, argv);
  return dstrain::test::run(json, filters);
}
