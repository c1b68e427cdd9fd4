// What `dstrain runs` and `dstrain report` find in the folders of runs: whole ones, those of which
// half is gone, and those that other programs have written in.
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "cmd/report/line_chart.h"
#include "cmd/report/report_page.h"
#include "cmd/runs/metrics_columns.h"
#include "cmd/runs/run_overview.h"
#include "engine/config/config_error.h"
#include "engine/train/trace/trace_file.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using checkpoint_test::ScratchFolder;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void write_to(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string line_of(int step, double loss, const std::string& more = "") {
  return fmt::format(R"({{"step":{},"time":"2026-11-27T04:00:{:02}.500Z","loss":{},)"
                     R"("tokens_per_second":100,"memory_bytes":{{"rank":0,"planned":1048576}}{}}})"
                     "\n",
                     step, step, loss, more);
}

/// A run that has finished, after a start that ended without a word.
void write_run(const fs::path& folder, double rate, int ranks) {
  std::string metrics;
  for (int step = 1; step <= 5; ++step) {
    metrics += line_of(step, 6.0 - step, step == 3 ? R"(,"validation_loss":3.5)" : "");
  }
  write_to(folder / "metrics.jsonl", metrics);
  write_to(folder / "config.resolved.json",
           fmt::format(R"({{"optimizer": {{"params": {{"lr": {}}}}}, "training": {{"steps": 5}},
                           "_notes": ["a note"]}})",
                       rate));
  const std::string start = fmt::format(
      R"({{"event":"start","time":"2026-11-27T04:00:00Z","step":0,"ranks":{},"layout":{{"data":{}}},)"
      R"("host":"h<1>","restart":0,"config":{{"optimizer.params.lr":[{},"run.json:3:4"]}}}})"
      "\n",
      ranks, ranks, rate);
  write_to(folder / "history.jsonl",
           start + start +
               R"({"event":"end","time":"2026-11-27T04:00:09Z","how":"finished at step 5"})" +
               "\n");
}

RunOverview look_at(const fs::path& folder) {
  return overview_of(folder, std::chrono::milliseconds(0));
}

std::string page_of(const std::vector<fs::path>& folders) {
  std::vector<ReportedRun> runs;
  for (const fs::path& folder : folders) {
    runs.push_back({folder.filename().string(), look_at(folder), MetricsColumns(folder)});
  }
  return report_page(runs);
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("metrics become columns, and lines that are none are counted", "[runs]") {
  const ScratchFolder folder;
  CHECK(MetricsColumns(folder.path()).size() == 0);
  write_to(folder.path() / "metrics.jsonl",
           line_of(1, 5.0) + "nonsense\n" + line_of(2, 4.0, R"(,"x":{"y":[1,{"z":2}],"w":7})") +
               line_of(2, 9.0) + R"({"loss":1})" + "\n[1]\n" +
               R"({"step":3,"loss":null,"validation_loss":2,"other_version":true})" + "\n" +
               R"({"step":4,"loss":)");
  const MetricsColumns metrics(folder.path());
  CHECK(metrics.steps() == std::vector<std::int64_t>{1, 2, 3});
  CHECK(metrics.bad_lines() == 5);
  const std::vector<float>& loss = metrics.column("loss");
  REQUIRE(loss.size() == 3);
  CHECK(loss[0] == 5.0F);
  CHECK(loss[1] == 4.0F);
  CHECK(std::isnan(loss[2]));
  CHECK(metrics.column("memory_bytes.planned")[1] == 1048576.0F);
  CHECK(metrics.column("x.w")[1] == 7.0F);
  CHECK(std::isnan(metrics.column("x.w")[0]));
  CHECK(metrics.column("x.y").empty());
  CHECK(metrics.column("validation_loss")[2] == 2.0F);
  CHECK(metrics.column("none").empty());
  CHECK(metrics.times()[1] - metrics.times()[0] == 1.0);
  CHECK(std::isnan(metrics.times()[2]));
}

TEST_CASE("a report draws the last step of the newest trace", "[runs]") {
  const ScratchFolder folder;
  const fs::path run = folder.path() / "run";
  write_run(run, 0.1, 2);
  CHECK_THAT(page_of({run}), !Contains("Timeline of a step"));
  const fs::path trace = trace_folder(run, {3, 4});
  write_trace_index(trace, {.steps = {3, 4}, .ranks = {0, 1}, .world_size = 2});
  const auto event = [](TraceKind kind, const char* name, std::int64_t begin, std::int64_t end,
                        std::int64_t number) {
    return TraceEvent{.kind = kind,
                      .name = name,
                      .begin_ns = begin * 1000,
                      .end_ns = end * 1000,
                      .number = number};
  };
  for (const int rank : {0, 1}) {
    write_rank_trace(trace, {.rank = rank,
                             .world_size = 2,
                             .host = "h",
                             .steps = {3, 4},
                             .tracks = {{"compute",
                                         {event(TraceKind::kAction, "forward", 10, 90, 7),
                                          event(TraceKind::kAction, "step", 0, 100, 3),
                                          event(TraceKind::kAction, "forward", 110, 150, 8),
                                          event(TraceKind::kAction, "step", 100, 200, 4),
                                          event(TraceKind::kAction, "report", 200, 205, -1)}},
                                        {"a<b", {event(TraceKind::kWait, "wait", 120, 160, -1)}}}});
  }
  const std::string page = page_of({run});
  CHECK_THAT(page, Contains("Timeline of a step") && Contains("Step 4") &&
                       Contains("rank 0: forward, 40 µs, 8") && Contains("rank 1: wait, 40 µs") &&
                       Contains("105 µs") && Contains("a&lt;b") && !Contains("80 µs, 7"));
  fs::resize_file(trace / rank_file_name(1), 30);
  CHECK_THAT(page_of({run}), Contains("rank-00001.json.gz is damaged") && Contains("</html>"));
}

TEST_CASE("times are those of UTC", "[runs]") {
  CHECK(seconds_of("1970-01-02T00:00:01.250Z") == 86401.25);
  CHECK(seconds_of("2026-11-27T04:00:00Z") == 1795752000.0);
  CHECK(std::isnan(seconds_of("2026-13-27T04:00:00Z")));
  CHECK(std::isnan(seconds_of("yesterday")));
}

TEST_CASE("a folder's runs are found with how they ended", "[runs]") {
  const ScratchFolder folder;
  write_run(folder.path() / "a", 1e-3, 1);
  write_run(folder.path() / "deep" / "er" / "b", 1e-3, 1);
  write_to(folder.path() / "no-run" / "text.txt", "x");
  write_to(folder.path() / "c" / "metrics.jsonl", "");
  const std::vector<fs::path> runs = find_runs(folder.path());
  CHECK(std::set(runs.begin(), runs.end()) ==
        std::set{folder.path() / "a", folder.path() / "deep" / "er" / "b", folder.path() / "c"});
  CHECK(find_runs(folder.path() / "a") == std::vector{folder.path() / "a"});
  const RunOverview run = look_at(folder.path() / "a");
  CHECK(run.step() == 5);
  CHECK(run.total_steps == 5);
  CHECK(run.validation_loss == 3.5);
  CHECK(run_word(run) == "finished");
  CHECK(last_word(run) == "finished at step 5");
  REQUIRE(run.starts.size() == 2);
  CHECK(run.starts[0].end.empty());
  CHECK(run.starts[1].origins.at("optimizer.params.lr") == "run.json:3:4");
}

TEST_CASE("a report shows several runs over each other, and where their configs differ",
          "[runs][report]") {
  const ScratchFolder folder;
  write_run(folder.path() / "slow", 1e-4, 1);
  write_run(folder.path() / "fast", 1e-3, 2);
  const std::string page = page_of({folder.path() / "slow", folder.path() / "fast"});
  CHECK(count_of(page, "<figure class=\"chart\">") == 3);  // of loss, speed and memory
  CHECK_THAT(page, Contains("Validation loss") && Contains("3.5000"));
  CHECK_THAT(page, Contains("<tr class=\"differs\"><td><code>optimizer.params.lr</code></td>"
                            "<td><code>0.0001</code> <span class=\"soft\">run.json:3:4</span></td>"
                            "<td><code>0.001</code>"));
  CHECK_THAT(page, !Contains("a note"));
  CHECK_THAT(page, Contains("killed, or its machine failed") && Contains("2 ranks, 2 data"));
  CHECK_THAT(page, Contains("h&lt;1&gt;") && !Contains("h<1>"));
  CHECK_THAT(page, !Contains("http://") && !Contains("https://") && !Contains("src="));
  CHECK(page_of({folder.path() / "slow"}).find("class=\"differs\"><td>") == std::string::npos);
}

TEST_CASE("a report is made of what is left of a run's folder", "[runs][report]") {
  const ScratchFolder folder;
  const fs::path run = folder.path() / "run";
  write_run(run, 1e-3, 1);
  fs::remove(run / "config.resolved.json");
  CHECK_THAT(page_of({run}),
             Contains("has no config.resolved.json that can be read") && Contains("Loss"));
  fs::remove(run / "metrics.jsonl");
  CHECK_THAT(page_of({run}), Contains("No step has ended yet"));
  write_run(run, 1e-3, 1);
  fs::remove(run / "history.jsonl");
  write_to(run / "ranks.jsonl", R"({"step":1,"memory_bytes":{"planned":[1,"x"]}})"
                                "\n");
  write_to(run / "experts.jsonl", R"({"step":1,"layers":[{"layer":0}]})"
                                  "\n");
  CHECK_THAT(page_of({run}), Contains("Loss") && !Contains("Memory by rank"));
  CHECK_THROWS_WITH(look_at(folder.path() / "none"), Contains("is not a folder"));
  fs::create_directories(folder.path() / "empty");
  CHECK_THROWS_WITH(look_at(folder.path() / "empty"), Contains("holds nothing of a run"));
}

TEST_CASE("curves are drawn in as many pieces as there is room for", "[report]") {
  std::vector<double> x;
  std::vector<double> y;
  for (int i = 1; i <= 1000; ++i) {
    x.push_back(i);
    y.push_back(i % 100 == 0 ? kNan : i);
  }
  const ReducedSeries reduced = in_pieces(x, y, 100);
  REQUIRE(reduced.x.size() == 100);
  CHECK(reduced.x[0] == 5.5);
  CHECK(reduced.mean[0] == 5.5);
  CHECK(reduced.low[0] == 1);
  CHECK(reduced.high[0] == 10);
  CHECK(reduced.high[9] == 99);
  const ReducedSeries few = in_pieces({1, 2, 3}, {kNan, 4, kNan}, 100);
  CHECK(few.x == std::vector<double>{2});
  CHECK(in_pieces({}, {}, 100).x.empty());
  CHECK(smoothed({3, 3, 3}) == std::vector<double>{3, 3, 3});
  CHECK(round_ticks(0, 10) == std::vector<double>{0, 2, 4, 6, 8, 10});
  CHECK(round_ticks(0, 3) == std::vector<double>{0, 0.5, 1, 1.5, 2, 2.5, 3});
  CHECK(short_number(1234567) == "1.235M");
  CHECK(short_number(300) == "300");
  CHECK(short_number(0.0000123) == "1.23e-05");
  LineChart chart{.title = "</script><b>", .series = {{.name = "</script>", .x = {1}, .y = {2}}}};
  CHECK(count_of(chart.html(), "</script>") == 1);
  CHECK_FALSE(LineChart{.series = {{.x = {1}, .y = {kNan}}}}.has_values());
}

}  // namespace dstrain
