// A checkpoint belongs to no layout: stopped on one set of ranks, resumed on another.
#include <catch2/catch.hpp>

#include "tests/harness/resumable_run.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

struct Layout {
  const char* name;
  int ranks;
  json changes;
};

json layout(int stage, int tensor, bool sequence, int pipeline) {
  return {{"zero_optimization", {{"stage", stage}, {"stage3_param_persistence_threshold", 0}}},
          {"tensor_parallel", {{"size", tensor}, {"sequence_parallel", sequence && tensor > 1}}},
          {"pipeline", {{"stages", pipeline}}},
          {"gradient_accumulation_steps", 4},
          {"model", {{"tie_word_embeddings", true}}},
          {"data", {{"sequence_length", 20}}}};
}

std::vector<Layout> layouts() {
  return {{"one rank", 1, layout(0, 1, false, 1)},
          {"dp 2, ZeRO 3", 2, layout(3, 1, false, 1)},
          {"tp 2, sequence parallel", 2, layout(0, 2, true, 1)},
          {"tp 4, shared heads", 4, layout(1, 4, false, 1)},
          {"pp 2", 2, layout(0, 1, false, 2)},
          {"dp 2, tp 2, pp 2, ZeRO 2", 8, layout(2, 2, true, 2)}};
}

TEST_CASE("any layout resumes what any other saved", "[parity][resume]") {
  const RunFolder folder;
  CHECK(run(config_of(folder, "straight", 8, 1, layouts().front().changes), 1).step == 8);
  const auto straight = metrics_of(folder, "straight");
  REQUIRE(straight.size() == 8);
  int number = 0;
  for (const Layout& from : layouts()) {
    for (const Layout& to : layouts()) {
      CAPTURE(from.name, to.name);
      const std::string name = "run" + std::to_string(number++);
      CHECK(run(config_of(folder, name, 4, from.ranks, from.changes), from.ranks).step == 4);
      CHECK(run(config_of(folder, name, 8, to.ranks, to.changes), to.ranks).step == 8);
      const auto lines = metrics_of(folder, name);
      REQUIRE(lines.size() == 8);
      for (std::size_t step = 0; step < 8; ++step) {
        CHECK(lines[step]["loss"].get<double>() ==
              Approx(straight[step]["loss"].get<double>()).epsilon(1e-5));
        CHECK(lines[step]["grad_norm"].get<double>() ==
              Approx(straight[step]["grad_norm"].get<double>()).epsilon(1e-4));
      }
    }
  }
}

TEST_CASE("stopping and resuming in one layout changes no bit", "[parity][resume]") {
  for (const Layout& place : layouts()) {
    CAPTURE(place.name);
    const RunFolder folder;
    const LoadedConfig whole = config_of(folder, "whole", 8, place.ranks, place.changes);
    CHECK(run(whole, place.ranks).step == 8);
    CHECK(run(config_of(folder, "parts", 4, place.ranks, place.changes), place.ranks).step == 4);
    CHECK(run(config_of(folder, "parts", 8, place.ranks, place.changes), place.ranks).step == 8);
    CHECK(metrics_of(folder, "parts") == metrics_of(folder, "whole"));
    CHECK(state_of(folder, "parts", whole) == state_of(folder, "whole", whole));
  }
}

}  // namespace
}  // namespace dstrain::test
