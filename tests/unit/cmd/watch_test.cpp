// What `dstrain watch` shows of runs, as text.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "cmd/watch/watch_page.h"
#include "cmd/watch/watched_run.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using checkpoint_test::ScratchFolder;

void append(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

std::string step_line(int step, double loss) {
  return fmt::format(R"({{"step":{},"time":"2026-11-27T04:00:{:02}.000Z","loss":{},"lr":0.001,)"
                     R"("grad_norm":1.5,"loss_scale":1,"skipped":0,"step_seconds":0.9,)"
                     R"("tokens_per_second":80028.4,"time_split":{{"compute":0.6,"data":0.1,)"
                     R"("communication":{{"data":0.2}},"pipeline":0,"straggler":0,"rest":0}},)"
                     R"("memory_bytes":{{"rank":0,"planned":1048576,"overhead":2097152,)"
                     R"("peak":3145728}}}})"
                     "\n",
                     step, step % 60, loss);
}

/// A run of 40 steps, of which 20 are done, by `ranks` ranks on two hosts.
void write_run(const fs::path& folder, int ranks, const std::string& host = "w0") {
  std::string lines;
  for (int step = 1; step <= 20; ++step) {
    lines += step_line(step, 5.0 - 0.1 * step);
  }
  append(folder / "metrics.jsonl", lines);
  append(folder / "config.resolved.json", R"({"training":{"steps":40}})");
  append(folder / "history.jsonl",
         fmt::format(R"({{"event":"start","step":0,"ranks":{},"layout":{{"data":{},"tensor":1,)"
                     R"("zero_stage":2}},"device":"cpu","hosts":[["{}",{}],["w1",{}]]}})"
                     "\n",
                     ranks, ranks, host, ranks / 2, ranks - ranks / 2));
  std::string computing;
  std::string none;
  for (int rank = 0; rank < ranks; ++rank) {
    computing += fmt::format("{}{}", rank == 0 ? "" : ",", rank == 1 ? 0.9 : 0.6);
    none += rank == 0 ? "0" : ",0";
  }
  append(folder / "ranks.recent.json",
         fmt::format(R"({{"step":20,"seconds":{{"computing":[{}],"data":[{}]}},)"
                     R"("memory_bytes":{{"peak":[{}]}}}})"
                     "\n",
                     computing, none, none));
}

std::string text_of(const PageLine& line) {
  std::string text;
  for (const StyledText& part : line)
    text += part.text;
  return text;
}

std::string page_text(const WatchedRun& run, int columns, int rows, const Signs& signs = kUnicode) {
  const std::vector<PageLine> page = watch_page(run, columns, rows, signs);
  CHECK(static_cast<int>(page.size()) <= rows);
  std::string text;
  for (const PageLine& line : page) {
    CHECK(columns_taken(text_of(line)) <= columns);
    text += text_of(line) + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("a curve has a column for each share of its values, and fits", "[watch]") {
  CHECK(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8, kUnicode) == "▁▂▃▄▅▆▇█");
  CHECK(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 4, kAscii) == "_-+#");
  CHECK(sparkline({2, 2, 2}, 10, kAscii) == "___");
  CHECK(sparkline({1, std::nan(""), 2}, 3, kAscii) == "_!#");
  CHECK(sparkline({}, 10, kAscii).empty());
  CHECK(sparkline({1, 2}, -3, kAscii).empty());
}

TEST_CASE("the page has what the files say", "[watch]") {
  const ScratchFolder folder;
  write_run(folder.path(), 4);
  RunWatcher watcher(folder.path());
  const std::string page = page_text(watcher.run(), 120, 40);
  CHECK_THAT(page, Contains("4 ranks, 4 data; ZeRO stage 2; cpu") && Contains("20 of 40") &&
                       Contains("50.0 %") && Contains("3.0000") && Contains("4.9000 to 3.0000") &&
                       Contains("rate 0.001   gradient norm 1.5") &&
                       Contains("80,028 tokens/s   1.00 s a step") && Contains("computing 60 %") &&
                       Contains("communicating 20 %") && Contains("3.0 MiB at most on a rank") &&
                       Contains("none yet"));
  CHECK_THAT(page, Contains(" 1     w0") && Contains(" 3     w1") && Contains("900.0 ms"));

  // What comes later is seen, and a run that begins anew begins a new curve.
  append(folder.path() / "metrics.jsonl", step_line(21, 2.5) + R"({"step":22,"lo)");
  watcher.look();
  CHECK(watcher.run().losses.size() == 21);
  CHECK_THAT(page_text(watcher.run(), 120, 40), Contains("21 of 40") && Contains("2.5000"));
  fs::resize_file(folder.path() / "metrics.jsonl", 0);
  append(folder.path() / "metrics.jsonl", step_line(1, 9.0));
  watcher.look();
  CHECK(watcher.run().losses == std::vector<double>{9.0});
}

TEST_CASE("a page fits any terminal", "[watch]") {
  const ScratchFolder folder;
  write_run(folder.path(), 300, "ein-host-mit-einem-langen-namen.example.org");
  const RunWatcher watcher(folder.path());
  for (const int columns : {1, 20, 60, 80, 200}) {
    for (const int rows : {0, 1, 5, 12, 24, 60}) {
      CAPTURE(columns, rows);
      (void)page_text(watcher.run(), columns, rows, kAscii);
    }
  }
  // Where ranks do not fit there is a line for each host.
  const std::string page = page_text(watcher.run(), 120, 24);
  CHECK_THAT(page, Contains("RANKS") && Contains(" 150   ein-host") && Contains(" 150   w1"));
  CHECK(page.find("\n 299") == std::string::npos);
}

TEST_CASE("a host's name commands no terminal, and plain lines say the same", "[watch]") {
  const ScratchFolder folder;
  write_run(folder.path(), 2, R"(w\u001b[2J0)");
  const RunWatcher watcher(folder.path());
  const std::string page = page_text(watcher.run(), 120, 40);
  CHECK(page.find('\x1b') == std::string::npos);
  CHECK_THAT(watch_line(watcher.run()),
             Contains("step 20/40  loss 3.0000  80,028 tokens/s  0:20 left"));
}

}  // namespace dstrain
