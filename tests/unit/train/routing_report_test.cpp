// What is written and told of a step's experts, and when a router counts as collapsed.
#include "engine/train/routing_report.h"

#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/train/observers/routing_watch.h"
#include "engine/train/records/metrics_files.h"
#include "tests/harness/captured_log.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

using Chosen = std::vector<std::int64_t>;

LayerRouting routing_of(const Chosen& chosen, std::int64_t tokens) {
  return {.layer = 3, .tokens = tokens, .chosen = chosen};
}

TEST_CASE("a router is collapsed where an expert idles or has most tokens", "[metrics][experts]") {
  // 8 experts, 2 for each of 1000 tokens: 250 choices an expert.
  CHECK(collapse_text(routing_of({250, 250, 250, 250, 250, 250, 250, 250}, 1000)) == "");
  CHECK(collapse_text(routing_of({500, 1, 250, 250, 250, 250, 250, 249}, 1000)) == "");
  CHECK(collapse_text(routing_of({500, 0, 250, 250, 250, 250, 250, 250}, 1000)) ==
        "1 of 8 experts (1) was chosen by none of 1,000 tokens");
  CHECK(collapse_text(routing_of({501, 249, 250, 250, 250, 250, 125, 125}, 1000)) ==
        "expert 0 was chosen by 50 % of 1,000 tokens, 2.0 times the mean");
  CHECK(collapse_text(routing_of({0, 0, 1000, 1000, 0, 0, 0, 0}, 1000)) ==
        "6 of 8 experts (0, 1, 4, 5, 6, 7) were chosen by none of 1,000 tokens, and expert 2 was "
        "chosen by 100 % of 1,000 tokens, 4.0 times the mean");
  // So few tokens that an expert may idle by chance.
  CHECK(collapse_text(routing_of({0, 113, 113, 113, 113, 113, 113, 112}, 400)) == "");
  // Of 4 experts two for each token: more than half of the tokens is not much.
  CHECK(collapse_text(routing_of({600, 400, 500, 500}, 1000)) == "");
  CHECK(collapse_text(routing_of(Chosen(8, 0), 0)) == "");
}

TEST_CASE("a collapsed layer is told once, after a hundred steps", "[metrics][experts]") {
  RoutingWatch watch;
  StepMetrics metrics;
  metrics.routing = {{.layer = 0, .tokens = 100, .chosen = {50, 50}},
                     {.layer = 2, .tokens = 100, .chosen = {100, 0}}};
  const testing::CapturedLog log;
  for (metrics.step = 1; metrics.step < 100; ++metrics.step) {
    watch.on_step(metrics, false);
  }
  CHECK(log.text() == "");
  watch.on_step(metrics, false);
  CHECK_THAT(log.text(), Catch::Contains("layer 2, steps 1 to 100: 1 of 2 experts (1) was chosen "
                                         "by none of 10,000 tokens"));
  CHECK_THAT(log.text(), !Catch::Contains("layer 0"));
  const std::string once = log.text();
  for (metrics.step = 101; metrics.step <= 300; ++metrics.step) {
    watch.on_step(metrics, false);
  }
  CHECK(log.text() == once);
  metrics.routing[0].chosen = {0, 100};
  for (metrics.step = 301; metrics.step <= 400; ++metrics.step) {
    watch.on_step(metrics, false);
  }
  CHECK_THAT(log.text(), Catch::Contains("layer 0, steps 301 to 400"));
}

TEST_CASE("an expert that idles for less than a hundred steps is not told", "[metrics][experts]") {
  RoutingWatch watch;
  StepMetrics metrics;
  const testing::CapturedLog log;
  for (metrics.step = 1; metrics.step <= 1000; ++metrics.step) {
    const bool once = metrics.step % 100 == 50;
    metrics.routing = {
        {.layer = 0, .tokens = 150, .chosen = once ? Chosen{1, 74, 75} : Chosen{0, 75, 75}}};
    watch.on_step(metrics, false);
  }
  CHECK(log.text() == "");
}

nlohmann::json last_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    last = line;
  }
  return nlohmann::json::parse(last);
}

TEST_CASE("metrics.jsonl has a step's means, experts.jsonl each layer's experts",
          "[metrics][experts]") {
  const checkpoint_test::ScratchFolder folder;
  StepMetrics metrics{.step = 1};
  metrics.routing = {{.layer = 0,
                      .balance_loss = 2.0,
                      .z_loss = 1.0,
                      .tokens = 10,
                      .chosen = {5, 5, 5, 5},
                      .dropped = 1},
                     {.layer = 2,
                      .balance_loss = 3.0,
                      .z_loss = 4.0,
                      .tokens = 10,
                      .chosen = {10, 0, 8, 2},
                      .dropped = 5}};
  MetricsFiles files(folder.path(), 0, 1, true);
  files.write(metrics, true);
  const nlohmann::json line = last_line(folder.path() / "metrics.jsonl");
  CHECK(line.at("balance_loss") == 2.5);
  CHECK(line.at("z_loss") == 2.5);
  CHECK(line.at("busiest_expert") == 2.0);
  CHECK(line.at("dropped_choices") == 6);
  CHECK(dropped_choices(metrics.routing)->share == Approx(6.0 / 40.0));
  const nlohmann::json layers = last_line(folder.path() / "experts.jsonl").at("layers");
  REQUIRE(layers.size() == 2);
  CHECK(layers[1] == nlohmann::json{{"layer", 2},
                                    {"balance_loss", 3.0},
                                    {"z_loss", 4.0},
                                    {"busiest_expert", 2.0},
                                    {"tokens", 10},
                                    {"chosen", {10, 0, 8, 2}},
                                    {"dropped_choices", 5}});
  const checkpoint_test::ScratchFolder dense;
  MetricsFiles(dense.path(), 0, 1).write({.step = 1}, true);
  CHECK_FALSE(std::filesystem::exists(dense.path() / "experts.jsonl"));
  CHECK_FALSE(last_line(dense.path() / "metrics.jsonl").contains("busiest_expert"));
}

}  // namespace
}  // namespace dstrain
