#include "cmd/memory/memory_svg.h"

#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cmd/memory/timeline_columns.h"
#include "engine/base/amount_text.h"
#include "engine/config/config_json.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/memory_timeline.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

MemoryTimeline timeline_of(const std::vector<std::string>& overrides, int world) {
  LoadedConfig loaded = load_config("configs/gpt2-124m.json", {.overrides = overrides});
  resolve_config(loaded, world);
  return memory_timeline(make_run_plan(loaded.config, world, 0));
}

/// Why a text is not one balanced tree of elements; "" if it is.
std::string fault_of_xml(const std::string& text) {
  std::vector<std::string> open;
  std::size_t roots = 0;
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    const std::size_t end = text.find('>', at);
    if (end == std::string::npos) return "a tag without end";
    const std::string tag = text.substr(at + 1, end - at - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "quotes in " + tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /\n", 1));
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "unexpected " + tag;
      open.pop_back();
    } else if (!tag.starts_with('?') && !tag.starts_with('!') && !tag.ends_with('/')) {
      roots += open.empty() ? 1 : 0;
      open.push_back(name);
    }
    at = end;
  }
  return !open.empty() ? "open: " + open.back() : roots != 1 ? "not one root" : "";
}

TEST_CASE("the picture is a tree with every component's bytes at the peak", "[cmd][estimate]") {
  const int zero = GENERATE(0, 3);
  const MemoryTimeline timeline =
      timeline_of({"zero_optimization.stage=" + std::to_string(zero), "train_batch_size=64"}, 4);
  const std::string svg = memory_svg(timeline, {.title = "a <config> & \"more\"",
                                                .subtitle = "4 ranks",
                                                .peak = "backward of micro-batch 0, head",
                                                .overhead_bytes = 100 << 20,
                                                .limit_bytes = std::int64_t{8} << 30});
  CHECK(fault_of_xml(svg).empty());
  CHECK_THAT(svg,
             Contains("a &lt;config&gt; &amp; ") && Contains("backward of micro-batch 0, head"));
  CHECK(svg.find("<script") == std::string::npos);
  for (const MemoryComponent component : kMemoryComponents) {
    CAPTURE(name_of(component));
    const bool shown = svg.find(std::string(name_of(component))) != std::string::npos;
    CHECK(shown == (timeline.held[component] > 0));
    if (shown) CHECK_THAT(svg, Contains(size_text(timeline.highest().in_use[component])));
  }
  CHECK_THAT(svg, Contains(size_text(timeline.held.total())));
}

TEST_CASE("a long step is drawn in columns that keep its peak, in less than 500 KB",
          "[cmd][estimate]") {
  const MemoryTimeline timeline =
      timeline_of({"train_batch_size=16000", "train_micro_batch_size_per_gpu=4"}, 1);
  REQUIRE(timeline.moments.size() > 100'000);
  const std::vector<std::size_t> columns = highest_of_columns(timeline, 1500);
  REQUIRE(columns.size() == 1500);
  std::int64_t most = 0;
  for (const std::size_t moment : columns) {
    most = std::max(most, timeline.moments[moment].in_use.total());
  }
  CHECK(most == timeline.highest().in_use.total());
  const std::string svg = memory_svg(timeline, {.title = "t", .subtitle = "s", .peak = "p"});
  CHECK(fault_of_xml(svg).empty());
  CHECK(svg.size() < 500'000);
  double end = 0.0;
  for (const PhaseBand& band : phase_bands(timeline, 0.004)) {
    CHECK(band.begin == Approx(end).margin(1e-12));
    end = band.end;
  }
  CHECK(end == Approx(1.0));
}

}  // namespace
}  // namespace dstrain
