#include "engine/config/trace_config.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("spans of numbers are read as they are written", "[config]") {
  using Spans = std::vector<NumberSpan>;
  CHECK(parse_spans("3") == Spans{{3, 3}});
  CHECK(parse_spans("0,4-7,9") == Spans{{0, 0}, {4, 7}, {9, 9}});
  CHECK(to_text(Spans{{0, 0}, {4, 7}, {9, 9}}) == "0,4-7,9");
  CHECK(has_number(Spans{{0, 0}, {4, 7}}, 5));
  CHECK_FALSE(has_number(Spans{{0, 0}, {4, 7}}, 8));
  for (const char* const bad : {"", "-3", "3-", "7-4", "1,1", "4-7,7", "1,", ",1", "1 - 2", "a",
                                "1-2-3", "99999999999999999999"}) {
    INFO(bad);
    CHECK_FALSE(parse_spans(bad));
  }
}

TEST_CASE("the steps and ranks of a trace", "[config]") {
  CHECK(load_tiny({}).config.training.trace == TraceConfig());
  const TraceConfig trace =
      load_tiny({R"(training.trace={"steps": "20-24,1000", "ranks": "0,2-3"})"})
          .config.training.trace;
  CHECK(trace.steps == std::vector<NumberSpan>{{20, 24}, {1000, 1000}});
  CHECK(trace.ranks == std::vector<NumberSpan>{{0, 0}, {2, 3}});
  CHECK(load_tiny({R"(training.trace={"steps": 20, "ranks": "all"})"}).config.training.trace ==
        TraceConfig{.steps = {{20, 20}}, .ranks = {}});
  CHECK_THAT(error_of_tiny({R"(training.trace.steps="24-20")"}),
             Contains("training.trace.steps: must be numbers of steps such as \"20-24\"") &&
                 Contains("found the string \"24-20\""));
  CHECK_THAT(error_of_tiny({R"(training.trace.steps="0-3")"}), Contains("the first step is 1"));
  CHECK_THAT(error_of_tiny({R"(training.trace.steps="1-500")"}),
             Contains("500 steps in a row, and a trace has at most 100"));
  CHECK_THAT(error_of_tiny({R"(training.trace={"steps": 3, "ranks": "first"})"}),
             Contains("must be \"all\", or numbers of ranks"));

  const auto warnings = [](const std::vector<std::string>& sets) {
    LoadedConfig loaded = load_tiny(sets);
    resolve_config(loaded, 2, {});
    return loaded.warnings.empty() ? std::string() : loaded.warnings.back();
  };
  CHECK(warnings({R"(training.trace={"steps": 3, "ranks": "0-1"})"}).empty());
  CHECK_THAT(warnings({R"(training.trace={"steps": 3, "ranks": "0-2"})"}),
             Contains("the 2 ranks are numbered from 0"));
  CHECK_THAT(warnings({R"(training.trace.ranks="0")"}), Contains("training.trace.steps says no"));
}

}  // namespace
}  // namespace dstrain
