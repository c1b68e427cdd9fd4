// The whole program: `dstrain launch` with eight processes that share a model along all three axes,
// against one process.
#include <catch2/catch.hpp>

#include "tests/harness/program.h"
#include "tests/harness/resumable_run.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

std::vector<json> metrics_of_launch(const RunFolder& folder,
                                    const std::string& output,
                                    int processes,
                                    const json& changes) {
  config_of(folder, output, 8, processes, changes);  // writes the file
  testing::Program program({testing::dstrain_binary(), "launch", "--num_gpus",
                            std::to_string(processes), (folder.path() / (output + ".json"))});
  const auto status = program.wait(std::chrono::seconds{100});
  CAPTURE(program.err());
  REQUIRE(status == 0);
  return metrics_of(folder, output);
}

void check_same_course(const std::vector<json>& one, const std::vector<json>& several) {
  REQUIRE(one.size() == 8);
  REQUIRE(several.size() == 8);
  for (std::size_t step = 0; step < one.size(); ++step) {
    CAPTURE(step);
    // Sums in another order, as in the parity matrix.
    CHECK(several[step]["loss"].get<double>() ==
          Approx(one[step]["loss"].get<double>()).epsilon(1e-5));
    CHECK(several[step]["grad_norm"].get<double>() ==
          Approx(one[step]["grad_norm"].get<double>()).epsilon(1e-4));
  }
}

TEST_CASE("eight processes, two along each axis, follow one process", "[parity][launch]") {
  const RunFolder folder;
  const json model{{"model", {{"tie_word_embeddings", true}}}, {"data", {{"sequence_length", 20}}}};
  json cube = model;
  cube.merge_patch(
      {{"zero_optimization", {{"stage", 3}, {"stage3_param_persistence_threshold", 0}}},
       {"tensor_parallel", {{"size", 2}, {"sequence_parallel", true}}},
       {"pipeline", {{"stages", 2}}}});
  const std::vector<json> one = metrics_of_launch(folder, "one", 1, model);
  const std::vector<json> eight = metrics_of_launch(folder, "eight", 8, cube);
  check_same_course(one, eight);
}

TEST_CASE("sixty-four processes, four along each axis and interleaved, follow one process",
          "[parity][launch][slow]") {
  const RunFolder folder;
  const json model{{"train_batch_size", 16},
                   {"gradient_accumulation_steps", 4},
                   {"model", {{"num_hidden_layers", 8}}},
                   {"data", {{"sequence_length", 20}}}};
  json cube = model;
  cube.merge_patch(
      {{"zero_optimization", {{"stage", 3}, {"stage3_param_persistence_threshold", 0}}},
       {"tensor_parallel", {{"size", 4}, {"sequence_parallel", true}}},
       {"pipeline", {{"stages", 4}, {"schedule", "interleaved"}, {"virtual_stages", 2}}}});
  const std::vector<json> one = metrics_of_launch(folder, "one", 1, model);
  const std::vector<json> all = metrics_of_launch(folder, "all", 64, cube);
  check_same_course(one, all);
}

}  // namespace
}  // namespace dstrain::test
