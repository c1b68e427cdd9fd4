// The files that a run writes for other programs: their bytes, what is left of them after a crash
// or a resume, and whose folder they are in. Those programs read them in scripts/check_records.
#include <fstream>
#include <sstream>
#include <string>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "engine/train/records/csv_files.h"
#include "engine/train/records/curves.h"
#include "engine/train/records/event_file.h"
#include "engine/train/records/monitor_folder.h"
#include "engine/train/records/open_metrics.h"
#include "engine/train/records/run_description.h"
#include "engine/train/records/run_history.h"
#include "engine/train/records/tensorboard.h"
#include "engine/train/records/wandb_log.h"
#include "engine/train/records/wandb_run.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using checkpoint_test::ScratchFolder;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string content_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_to(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

StepMetrics metrics_of(std::int64_t step) {
  return {.step = step, .samples = 8 * step, .loss = 1.0 / static_cast<double>(step)};
}

/// Of a start at that second.
RunDescription run_of(int second) {
  return {
      .name = "a run",
      .config = {{"train_batch_size", 8}, {"optimizer", {{"type", "Adam"}}}},
      .start = std::chrono::system_clock::time_point(std::chrono::seconds(1'800'000'000 + second))};
}

template <typename Read>
std::vector<std::string> records_of(const Read& read, const fs::path& path) {
  std::vector<std::string> found;
  read(path, [&](std::string_view data) {
    found.emplace_back(data);
    return true;
  });
  return found;
}

fs::path only_file(const fs::path& folder, const std::string& part) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().filename().string().find(part) != std::string::npos) {
      found.push_back(entry.path());
    }
  }
  REQUIRE(found.size() == 1);
  return found.front();
}

}  // namespace

TEST_CASE("an event's record has the bytes that TensorBoard's own writer gives it", "[records]") {
  const std::string version = from_hex("09000000000000f03f1a0d627261696e2e4576656e743a32");
  CHECK(event_record(version) ==
        from_hex("1800000000000000a37f4b22") + version + from_hex("86bf577a"));
  const std::string loss = from_hex("09000000000000f03f10072a0d0a0b0a046c6f73731500002040");
  CHECK(event_record(loss) == from_hex("1a00000000000000129bd82d") + loss + from_hex("87ccc43d"));
}

TEST_CASE("of a file that is cut anywhere, or damaged, the whole records before that are read",
          "[records]") {
  const ScratchFolder folder;
  const fs::path path = folder.path() / "file";
  const std::vector<std::string> records = {"one", "", std::string(300, 'x'), "four"};
  const bool events = GENERATE(true, false);
  const auto read = events ? read_events : read_wandb_log;
  std::string bytes = events ? "" : wandb_log_header();
  std::vector<std::size_t> ends;
  for (const std::string& record : records) {
    bytes += events ? event_record(record)
                    : wandb_log_record(static_cast<std::int64_t>(bytes.size()), record);
    ends.push_back(bytes.size());
  }
  const std::size_t begin = events ? 0 : wandb_log_header().size();
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    write_to(path, bytes.substr(0, size));
    std::size_t whole = 0;
    while (whole < ends.size() && ends[whole] <= size)
      ++whole;
    const std::vector<std::string> found = records_of(read, path);
    CHECK(found == std::vector(records.begin(), records.begin() + static_cast<long>(whole)));
    const auto kept = static_cast<std::size_t>(read(path, [](std::string_view) { return true; }));
    CHECK(kept == (whole > 0 ? ends[whole - 1] : size >= begin ? begin : 0));
  }
  std::string damaged = bytes;
  damaged[ends[1] + 20] ^= 1;
  write_to(path, damaged);
  CHECK(records_of(read, path) == std::vector<std::string>{"one", ""});
  CHECK(read(folder.path() / "none", [](std::string_view) { return true; }) == 0);
}

TEST_CASE("records of a log lie across its blocks as LevelDB lays them", "[records]") {
  constexpr std::int64_t kBlock = 32768;
  const ScratchFolder folder;
  const fs::path path = folder.path() / "log";
  std::vector<std::string> records;
  // Those that end a block, leave less than a header of it, or go over one and several blocks.
  for (const std::int64_t size :
       {kBlock - 7 - 7, std::int64_t{1}, kBlock - 7 - 8 - 3, std::int64_t{5}, kBlock,
        3 * kBlock + 100, std::int64_t{0}, std::int64_t{70000}}) {
    records.emplace_back(static_cast<std::size_t>(size), static_cast<char>('a' + records.size()));
  }
  std::string bytes = wandb_log_header();
  for (const std::string& record : records) {
    bytes += wandb_log_record(static_cast<std::int64_t>(bytes.size()), record);
  }
  CHECK(bytes[kBlock - 1] == 'a');
  CHECK(bytes.substr(2 * kBlock - 3, 3) == std::string(3, '\0'));
  write_to(path, bytes);
  CHECK(records_of(read_wandb_log, path) == records);
}

TEST_CASE("a run that resumes drops what was written of later steps", "[records]") {
  const ScratchFolder folder;
  int starts = 0;
  const auto train = [&](const RunPosition& from, std::int64_t to) {
    const RunDescription run = run_of(starts++);
    CsvFiles csv(folder.path(), from);
    TensorBoard tensorboard(folder.path(), from, run);
    WandbRun wandb(folder.path(), from, run, {});
    for (std::int64_t step = from.step + 1; step <= to; ++step) {
      csv.write(metrics_of(step), step == to);
      tensorboard.write(metrics_of(step), step == to);
      wandb.write(metrics_of(step), step == to);
    }
  };
  train({}, 6);
  const fs::path events = only_file(folder.path(), "tfevents");
  const fs::path log = only_file(folder.path(), ".wandb");
  const std::size_t all_events = records_of(read_events, events).size();
  const std::vector<std::string> all_records = records_of(read_wandb_log, log);
  CHECK(all_events == 3 + 6 * 2 + 1);          // the last one: the end of the session
  CHECK(all_records.size() == 2 + 6 * 2 + 1);  // likewise

  train({.step = 4, .samples = 32}, 5);
  CHECK(records_of(read_events, events).size() == 3 + 4 * 2);
  const std::vector<std::string> resumed = records_of(read_wandb_log, log);
  CHECK(resumed.size() == 2 + 5 * 2 + 1);
  CHECK(std::equal(resumed.begin(), resumed.begin() + 10, all_records.begin()));
  CHECK(content_of(folder.path() / "Train_Samples_train_loss.csv") ==
        "step,train_loss\n8,1\n16,0.5\n24,0.3333333333333333\n32,0.25\n40,0.2\n");
  std::ifstream table(folder.path() / "metrics.csv");
  std::string line;
  for (const std::string begin : {"step,time,train/loss", "1,", "2,", "3,", "4,", "5,"}) {
    REQUIRE(std::getline(table, line));
    CHECK(line.starts_with(begin));
    CHECK(std::count(line.begin(), line.end(), ',') ==
          static_cast<std::ptrdiff_t>(1 + curves().size()));
  }
  CHECK_FALSE(std::getline(table, line));

  train({}, 1);  // anew: W&B's earlier run was another run, and stays
  CHECK(records_of(read_events, only_file(folder.path(), "tfevents")).size() == 3 + 2 + 1);
  CHECK(records_of(read_wandb_log, log) == resumed);
  CHECK(content_of(folder.path() / "Train_Samples_train_loss.csv") == "step,train_loss\n8,1\n");
}

TEST_CASE("a start has a line of its own behind half a line that a power cut left", "[records]") {
  const ScratchFolder folder;
  const fs::path path = folder.path() / RunHistory::kFile;
  write_to(path, "{\"event\":\"start\",\"st");
  RunHistory history(folder.path());
  history.end("failed: before it began");  // leaves nothing
  CHECK(content_of(path) == "{\"event\":\"start\",\"st");
  history.start(3, {}, Mesh({.data_inside = 3}), "cpu", {"h0", "h1", "h1"}, {});
  history.end("finished at step 4");
  std::istringstream lines(content_of(path));
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  CHECK_THAT(line, Contains("\"step\":3") && Contains("\"hosts\":[[\"h0\",1],[\"h1\",2]]"));
  std::getline(lines, line);
  CHECK_THAT(line, Contains("\"how\":\"finished at step 4\""));
  CHECK_FALSE(std::getline(lines, line));
}

TEST_CASE("a table of another version, and half a row, are not continued", "[records]") {
  const ScratchFolder folder;
  const fs::path path = folder.path() / "Train_Samples_lr.csv";
  const auto resumed = [&](const std::string& before) {
    write_to(path, before);
    CsvFiles csv(folder.path(), {.step = 2, .samples = 16});
    csv.write(metrics_of(3), true);
    return content_of(path);
  };
  CHECK(resumed("step,lr\n8,0.5\n16,0.25\n24,") == "step,lr\n8,0.5\n16,0.25\n24,0\n");
  CHECK(resumed("step,lr\n8,0.5\n16,0.25") == "step,lr\n8,0.5\n24,0\n");
  CHECK(resumed("step,lr\n8,0.5\nnonsense\n16,1\n") == "step,lr\n8,0.5\n24,0\n");
  CHECK(resumed("time,lr\n8,0.5\n") == "step,lr\n24,0\n");
}

TEST_CASE("a monitor's folder belongs to one run", "[records]") {
  const ScratchFolder scratch;
  const fs::path run = scratch.path() / "runs" / "a";
  const MonitorFolder inside{.enabled = true};
  CHECK(own_monitor_folder(inside, "csv_monitor", run, "csv") == run / "csv");
  CHECK(own_monitor_folder({.enabled = true, .job_name = "job"}, "csv_monitor", run, "csv") ==
        run / "csv" / "job");
  const MonitorFolder outside{.enabled = true, .output_path = (scratch.path() / "logs").string()};
  const fs::path folder = own_monitor_folder(outside, "csv_monitor", run, "csv");
  CHECK(folder == scratch.path() / "logs" / "a");
  CHECK(own_monitor_folder(outside, "csv_monitor", run.string() + "/", "csv") == folder);
  CHECK_THROWS_WITH(
      own_monitor_folder(outside, "csv_monitor", scratch.path() / "other" / "a", "csv"),
      Contains("csv_monitor: " + folder.string() + " has files of the run in " + run.string()) &&
          Contains("give csv_monitor.job_name another name"));
  fs::create_directories(scratch.path() / "logs" / "theirs");
  write_to(scratch.path() / "logs" / "theirs" / "x.csv", "x");
  MonitorFolder theirs = outside;
  theirs.job_name = "theirs";
  CHECK_THROWS_WITH(own_monitor_folder(theirs, "tensorboard", run, "tensorboard"),
                    Contains("has files of another program"));
}

TEST_CASE("Prometheus is told in the format that it asks for", "[records]") {
  CHECK(accepted_text("application/openmetrics-text;version=1.0.0,text/plain;q=0.5") ==
        MetricsText::kOpenMetrics);
  CHECK(accepted_text("text/plain") == MetricsText::kPrometheus);
  CHECK(accepted_text("") == MetricsText::kPrometheus);
  MetricsSnapshot now{.run = "a \"run\"\\\n", .phase = RunPhase::kSaving, .step = 3, .tokens = 96};
  const std::string before = to_text(now, MetricsText::kPrometheus);
  CHECK_THAT(before, Contains("# TYPE dstrain_steps_total counter\n"
                              "dstrain_steps_total{run=\"a \\\"run\\\"\\\\\\n\"} 3\n") &&
                         Contains(",phase=\"saving\"} 1\n") &&
                         Contains(",phase=\"training\"} 0\n") && !Contains("dstrain_train_loss"));
  now.run = "r";
  now.values.resize(curves().size());
  now.values[0] = std::nan("");
  const std::string text = to_text(now, MetricsText::kOpenMetrics);
  CHECK_THAT(text,
             Contains("# TYPE dstrain_tokens counter\ndstrain_tokens_total{run=\"r\"} 96\n") &&
                 Contains("# TYPE dstrain_train_loss gauge\n"
                          "dstrain_train_loss{run=\"r\"} NaN\n") &&
                 Catch::EndsWith("# EOF\n"));
}

}  // namespace dstrain
