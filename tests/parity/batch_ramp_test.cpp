// A batch that grows: the steps are those of runs with one batch after the other, in every layout,
// and a resumed run grows on from where it stopped.
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/resumable_run.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

constexpr int kSteps = 8;

/// 4 sequences for samples 0 … 13, 8 until 26, 12 until 40, then 16.
const std::vector<std::int64_t> kBatches{4, 4, 4, 4, 8, 8, 12, 16};

json ramped() {
  return {{"train_batch_size", 16},
          {"train_micro_batch_size_per_gpu", 2},
          {"gradient_accumulation_steps", "auto"},
          {"rampup_batch_size", {4, 4, 40}},
          {"model", {{"num_hidden_layers", 4}}},
          {"data", {{"validation", nullptr}}},
          {"checkpoint", {{"interval", 3}}}};
}

json with(json all, const json& changes) {
  all.merge_patch(changes);
  return all;
}

template <typename T>
std::vector<T> column(const RunFolder& folder, const std::string& output, const char* key) {
  std::vector<T> values;
  for (const json& line : metrics_of(folder, output)) {
    values.push_back(line.at(key).get<T>());
  }
  return values;
}

TEST_CASE("a growing batch is one run after the other, each with a larger one", "[parity][ramp]") {
  const RunFolder folder;
  const LoadedConfig straight = config_of(folder, "ramp", kSteps, 1, ramped());
  CHECK(run(straight, 1).step == kSteps);
  CHECK(column<std::int64_t>(folder, "ramp", "batch_size") == kBatches);
  const auto tokens = column<std::int64_t>(folder, "ramp", "tokens");
  CHECK(tokens.front() == 4 * 19);
  CHECK(tokens.back() == 60 * 19);

  for (const auto& [batch, last_step] : {std::pair{4, 4}, {8, 6}, {12, 7}, {16, 8}}) {
    const json changes =
        with(ramped(), {{"rampup_batch_size", nullptr}, {"train_batch_size", batch}});
    CHECK(run(config_of(folder, "by hand", last_step, 1, changes), 1).step == last_step);
  }
  CHECK(metrics_of(folder, "by hand") == metrics_of(folder, "ramp"));
  CHECK(state_of(folder, "by hand", straight) == state_of(folder, "ramp", straight));
}

TEST_CASE("a batch grows on after a resume", "[parity][ramp][resume]") {
  const RunFolder folder;
  const LoadedConfig straight = config_of(folder, "straight", kSteps, 1, ramped());
  CHECK(run(straight, 1).step == kSteps);
  for (const int stop : {2, 5, 6}) {
    const std::string output = "parts" + std::to_string(stop);
    CHECK(run(config_of(folder, output, stop, 1, ramped()), 1).step == stop);
    CHECK(run(config_of(folder, output, kSteps, 1, ramped()), 1).step == kSteps);
    CHECK(metrics_of(folder, output) == metrics_of(folder, "straight"));
    CHECK(state_of(folder, output, straight) == state_of(folder, "straight", straight));
  }
}

TEST_CASE("a growing batch gives one rank's losses in every layout", "[parity][ramp]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "one", kSteps, 1, ramped()), 1).step == kSteps);
  const auto losses = column<double>(folder, "one", "loss");
  const auto norms = column<double>(folder, "one", "grad_norm");
  struct Layout {
    const char* name;
    int ranks;
    json changes;
  };
  const Layout layouts[] = {
      {"micro-batches of 4", 1, {{"train_micro_batch_size_per_gpu", 4}}},
      {"dp 2, zero 1", 2, {{"zero_optimization", {{"stage", 1}}}}},
      {"dp 2, zero 2", 2, {{"zero_optimization", {{"stage", 2}}}}},
      {"dp 4, zero 3",
       4,
       {{"train_micro_batch_size_per_gpu", 1}, {"zero_optimization", {{"stage", 3}}}}},
      {"tp 2, sequence parallel",
       2,
       {{"tensor_parallel", {{"size", 2}, {"sequence_parallel", true}}}}},
      {"pp 2", 2, {{"pipeline", {{"stages", 2}}}}},
      {"pp 4, more stages than micro-batches", 4, {{"pipeline", {{"stages", 4}}}}},
      {"pp 2, gpipe", 2, {{"pipeline", {{"stages", 2}, {"schedule", "gpipe"}}}}},
      {"pp 2, interleaved",
       2,
       {{"pipeline", {{"stages", 2}, {"schedule", "interleaved"}, {"virtual_stages", 2}}}}},
      {"pp 2, dp 2, zero 3",
       4,
       {{"train_micro_batch_size_per_gpu", 1},
        {"pipeline", {{"stages", 2}}},
        {"zero_optimization", {{"stage", 3}}}}},
  };
  for (const Layout& layout : layouts) {
    CAPTURE(layout.name);
    const LoadedConfig config =
        config_of(folder, layout.name, kSteps, layout.ranks, with(ramped(), layout.changes));
    CHECK(run(config, layout.ranks).step == kSteps);
    CHECK(column<std::int64_t>(folder, layout.name, "batch_size") == kBatches);
    CHECK(worst_relative(column<double>(folder, layout.name, "loss"), losses) < 1e-5);
    CHECK(worst_relative(column<double>(folder, layout.name, "grad_norm"), norms) < 1e-4);
  }
}

}  // namespace
}  // namespace dstrain::test
