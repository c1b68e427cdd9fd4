#include "engine/train/records/wandb_run.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <protozero/pbf_builder.hpp>
#include <protozero/pbf_message.hpp>
#include <unistd.h>
#include <xxhash.h>

#include "engine/checkpoint/durable_files.h"
#include "engine/train/host_name.h"
#include "engine/train/records/curves.h"
#include "engine/train/records/wandb_log.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::system_clock;
using std::chrono::nanoseconds;

// The numbers of fields in wandb_internal.proto.
enum class Record : protozero::pbf_tag_type {
  kNumber = 1,
  kHistory = 2,
  kSummary = 3,
  kRun = 17,
  kExit = 18,
  kHeader = 21
};
enum class Header : protozero::pbf_tag_type { kVersion = 1 };
enum class Version : protozero::pbf_tag_type { kProducer = 1, kLeastReader = 2 };
enum class Run : protozero::pbf_tag_type {
  kId = 1,
  kEntity = 2,
  kProject = 3,
  kConfig = 4,
  kGroup = 6,
  kName = 8,
  kHost = 13,
  kStart = 17
};
enum class Time : protozero::pbf_tag_type { kSeconds = 1, kNanos = 2 };
enum class Items : protozero::pbf_tag_type { kItem = 1, kStep = 2 };  // config, history, summary
enum class Item : protozero::pbf_tag_type { kKey = 1, kNestedKey = 2, kJson = 16 };
enum class Step : protozero::pbf_tag_type { kNumber = 1 };
enum class Exit : protozero::pbf_tag_type { kCode = 1, kRuntime = 2 };

/// The oldest W&B that reads these messages, as its own files say.
constexpr const char* kLeastReader = "0.70.0";

template <typename Tag>
using Builder = protozero::pbf_builder<Tag>;

void add_item(Builder<Items>& items, Item kind, std::string_view key, const std::string& json) {
  Builder<Item> item(items, Items::kItem);
  item.add_string(kind, key.data(), key.size());
  item.add_string(Item::kJson, json);
}

/// W&B's JSON has the numbers that JSON has no words for.
std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

double seconds(Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

/// Eight letters and digits, as W&B's own are.
std::string new_id(const fs::path& folder, Clock::time_point start) {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  const std::string from = fmt::format("{} {} {} {}", fs::absolute(folder).string(), host_name(),
                                       ::getpid(), start.time_since_epoch().count());
  std::uint64_t hash = XXH3_64bits(from.data(), from.size());
  std::string id;
  for (int i = 0; i < 8; ++i, hash /= kLetters.size()) {
    id += kLetters[hash % kLetters.size()];
  }
  return id;
}

std::string header_record() {
  std::string version;
  Builder<Version> builder(version);
  builder.add_string(Version::kProducer, "dstrain");
  builder.add_string(Version::kLeastReader, kLeastReader);
  std::string header;
  Builder<Header>(header).add_message(Header::kVersion, version);
  std::string record;
  Builder<Record>(record).add_message(Record::kHeader, header);
  return record;
}

std::string time_of(Clock::time_point time) {
  const auto since = std::chrono::duration_cast<nanoseconds>(time.time_since_epoch()).count();
  std::string message;
  Builder<Time> builder(message);
  builder.add_int64(Time::kSeconds, since / nanoseconds(std::chrono::seconds(1)).count());
  builder.add_int32(Time::kNanos, static_cast<std::int32_t>(since % 1'000'000'000));
  return message;
}

std::string run_record(const std::string& id, const RunDescription& run, const WandbConfig& wandb) {
  std::string config;
  Builder<Items> values(config);
  for (const auto& [key, value] : run.config.items()) {
    add_item(values, Item::kKey, key, value.dump());
  }
  std::string message;
  Builder<Run> builder(message);
  builder.add_string(Run::kId, id);
  if (!wandb.team.empty()) builder.add_string(Run::kEntity, wandb.team);
  builder.add_string(Run::kProject, wandb.project);
  builder.add_message(Run::kConfig, config);
  if (!wandb.group.empty()) builder.add_string(Run::kGroup, wandb.group);
  builder.add_string(Run::kName, run.name);
  builder.add_string(Run::kHost, host_name());
  builder.add_message(Run::kStart, time_of(run.start));
  std::string record;
  Builder<Record>(record).add_message(Record::kRun, message);
  return record;
}

/// The values of a step, as a line of history and as the newest ones.
std::string step_items(const StepMetrics& metrics, Clock::time_point now, Clock::duration since) {
  std::string message;
  Builder<Items> items(message);
  for (const Curve& curve : curves()) {
    if (const auto value = curve.value(metrics)) {
      add_item(items, Item::kNestedKey, curve.name, json_number(*value));
    }
  }
  add_item(items, Item::kNestedKey, "_step", fmt::format("{}", metrics.step));
  add_item(items, Item::kNestedKey, "_timestamp", json_number(seconds(now.time_since_epoch())));
  add_item(items, Item::kNestedKey, "_runtime", json_number(seconds(since)));
  return message;
}

/// Reads a record of an earlier start: whether it is of a step up to `last`, and when the run
/// began.
bool is_kept(std::string_view data, std::int64_t last, Clock::time_point& start) {
  bool kept = true;
  protozero::pbf_message<Record> record(data.data(), data.size());
  while (record.next()) {
    if (record.tag() == Record::kExit) {
      return false;
    }
    if (record.tag() == Record::kHistory) {
      protozero::pbf_message<Items> history(record.get_message());
      if (!history.next(Items::kStep)) continue;
      protozero::pbf_message<Step> step(history.get_message());
      kept = !step.next(Step::kNumber) || step.get_int64() <= last;
    } else if (record.tag() == Record::kRun) {
      protozero::pbf_message<Run> run(record.get_message());
      if (!run.next(Run::kStart)) continue;
      protozero::pbf_message<Time> time(run.get_message());
      nanoseconds since{0};
      while (time.next()) {
        if (time.tag() == Time::kSeconds) {
          since += std::chrono::seconds(time.get_int64());
        } else {
          since += nanoseconds(time.get_int32());
        }
      }
      start = Clock::time_point(since);
    } else {
      record.skip();
    }
  }
  return kept;
}

/// The newest run's file; empty: there is none.
fs::path newest_run(const fs::path& folder) {
  std::vector<fs::path> runs;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("offline-run-")) continue;
    const fs::path file =
        entry.path() / fmt::format("run-{}.wandb", name.substr(name.rfind('-') + 1));
    if (fs::exists(file)) runs.push_back(file);
  }
  return runs.empty() ? fs::path() : *std::max_element(runs.begin(), runs.end());
}

}  // namespace

WandbRun::WandbRun(const fs::path& folder,
                   const RunPosition& resumed,
                   const RunDescription& run,
                   const WandbConfig& config)
    : start_(run.start) {
  const fs::path earlier = resumed.step > 0 ? newest_run(folder) : fs::path();
  if (!earlier.empty()) {
    const std::int64_t bytes = read_wandb_log(earlier, [&](std::string_view data) {
      const bool kept = is_kept(data, resumed.step, start_);
      records_ += kept ? 1 : 0;
      return kept;
    });
    if (bytes > 0) {
      folder_ = earlier.parent_path();
      file_.emplace(earlier, bytes);
      return;
    }
  }
  const std::string id = new_id(folder, run.start);
  folder_ = folder / fmt::format("offline-run-{:%Y%m%d_%H%M%S}-{}",
                                 fmt::localtime(Clock::to_time_t(run.start)), id);
  DurableFiles().make_folder(folder_);
  file_.emplace(folder_ / fmt::format("run-{}.wandb", id), 0);
  file_->add(resumed.step, wandb_log_header());
  add(resumed.step, header_record());
  add(resumed.step, run_record(id, run, config));
}

void WandbRun::add(std::int64_t step, const std::string& record) {
  std::string numbered = record;
  Builder<Record>(numbered).add_int64(Record::kNumber, ++records_);
  file_->add(step, wandb_log_record(file_->end_byte(), numbered));
}

void WandbRun::write(const StepMetrics& metrics, bool is_last) {
  const auto now = Clock::now();
  const std::string items = step_items(metrics, now, now - start_);
  std::string step;
  Builder<Step>(step).add_int64(Step::kNumber, metrics.step);
  std::string history = items;
  Builder<Items>(history).add_message(Items::kStep, step);
  std::string record;
  Builder<Record>(record).add_message(Record::kHistory, history);
  add(metrics.step, record);
  std::string summary;
  Builder<Record>(summary).add_message(Record::kSummary, items);
  add(metrics.step, summary);
  if (is_last) {
    std::string exit;
    Builder<Exit> builder(exit);
    builder.add_int32(Exit::kCode, 0);
    builder.add_int32(Exit::kRuntime, static_cast<std::int32_t>(seconds(now - start_)));
    std::string ended;
    Builder<Record>(ended).add_message(Record::kExit, exit);
    add(metrics.step, ended);
  }
  file_->flush();
}

}  // namespace dstrain
