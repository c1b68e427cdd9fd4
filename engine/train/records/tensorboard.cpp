#include "engine/train/records/tensorboard.h"

#include <chrono>
#include <vector>

#include <fmt/format.h>
#include <protozero/pbf_builder.hpp>
#include <protozero/pbf_message.hpp>
#include <unistd.h>

#include "engine/checkpoint/durable_files.h"
#include "engine/train/host_name.h"
#include "engine/train/records/curves.h"
#include "engine/train/records/event_file.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::system_clock;

// The numbers of fields, and of values of enumerations, in TensorFlow's and TensorBoard's messages.
enum class Event : protozero::pbf_tag_type {
  kWallTime = 1,  // double, seconds since 1970
  kStep = 2,
  kFileVersion = 3,
  kSummary = 5
};
enum class Summary : protozero::pbf_tag_type { kValue = 1 };
enum class Value : protozero::pbf_tag_type {
  kTag = 1,
  kSimpleValue = 2,
  kTensor = 8,
  kMetadata = 9
};
enum class TextTensor : protozero::pbf_tag_type { kDtype = 1, kShape = 2, kStrings = 8 };
enum class Metadata : protozero::pbf_tag_type { kPluginData = 1, kDescription = 3, kDataClass = 4 };
enum class Plugin : protozero::pbf_tag_type { kName = 1, kContent = 2 };
enum class Hparams : protozero::pbf_tag_type { kSessionStart = 3, kSessionEnd = 4 };
enum class SessionStart : protozero::pbf_tag_type { kHparams = 1, kGroupName = 4, kStartTime = 5 };
enum class SessionEnd : protozero::pbf_tag_type { kStatus = 1, kEndTime = 2 };
enum class MapEntry : protozero::pbf_tag_type { kKey = 1, kValue = 2 };
enum class JsonValue : protozero::pbf_tag_type { kNull = 1, kNumber = 2, kString = 3, kBool = 4 };
constexpr std::int32_t kStringDtype = 7;
constexpr std::int32_t kTensorClass = 2;
constexpr std::int32_t kSucceeded = 1;

constexpr const char* kFilePrefix = "events.out.tfevents.";
constexpr std::string_view kOverSamples = "Train/Samples/";

template <typename Tag>
using Builder = protozero::pbf_builder<Tag>;

double seconds(Clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

std::string event_of(double time, std::int64_t step, const std::string& summary) {
  std::string event;
  Builder<Event> builder(event);
  builder.add_double(Event::kWallTime, time);
  builder.add_int64(Event::kStep, step);
  builder.add_message(Event::kSummary, summary);
  return event_record(event);
}

std::string scalars(const std::vector<Curve>& curves, const StepMetrics& metrics) {
  std::string summary;
  Builder<Summary> builder(summary);
  for (const Curve& curve : curves) {
    const auto value = curve.value(metrics);
    if (!value) continue;
    Builder<Value> item(builder, Summary::kValue);
    item.add_string(Value::kTag, curve.name.data(), curve.name.size());
    item.add_float(Value::kSimpleValue, static_cast<float>(*value));
  }
  return summary;
}

/// A value for a plugin, with a text or without.
std::string plugin_value(const std::string& tag,
                         const std::string& plugin,
                         const std::string& content,
                         const std::string& text) {
  std::string data;
  Builder<Plugin> plugin_data(data);
  plugin_data.add_string(Plugin::kName, plugin);
  plugin_data.add_bytes(Plugin::kContent, content);

  std::string metadata;
  Builder<Metadata> about(metadata);
  about.add_message(Metadata::kPluginData, data);
  if (!text.empty()) about.add_enum(Metadata::kDataClass, kTensorClass);

  std::string value;
  Builder<Value> item(value);
  item.add_string(Value::kTag, tag);
  if (!text.empty()) {
    Builder<TextTensor> tensor(item, Value::kTensor);
    tensor.add_enum(TextTensor::kDtype, kStringDtype);
    tensor.add_message(TextTensor::kShape, std::string());  // of no dimensions
    tensor.add_bytes(TextTensor::kStrings, text);
  }
  item.add_message(Value::kMetadata, metadata);

  std::string summary;
  Builder<Summary>(summary).add_message(Summary::kValue, value);
  return summary;
}

std::string json_value(const nlohmann::ordered_json& json) {
  std::string value;
  Builder<JsonValue> builder(value);
  if (json.is_boolean()) {
    builder.add_bool(JsonValue::kBool, json.get<bool>());
  } else if (json.is_number()) {
    builder.add_double(JsonValue::kNumber, json.get<double>());
  } else {
    builder.add_string(JsonValue::kString,
                       json.is_string() ? json.get<std::string>() : json.dump());
  }
  return value;
}

std::string session_start(const RunDescription& run) {
  std::string message;
  Builder<SessionStart> start(message);
  for (const auto& [name, value] : hyperparameters(run.config)) {
    Builder<MapEntry> entry(start, SessionStart::kHparams);
    entry.add_string(MapEntry::kKey, name);
    entry.add_message(MapEntry::kValue, json_value(value));
  }
  start.add_string(SessionStart::kGroupName, run.name);
  start.add_double(SessionStart::kStartTime, seconds(run.start));
  std::string plugin;
  Builder<Hparams>(plugin).add_message(Hparams::kSessionStart, message);
  return plugin;
}

std::string session_end(double time) {
  std::string message;
  Builder<SessionEnd> end(message);
  end.add_enum(SessionEnd::kStatus, kSucceeded);
  end.add_double(SessionEnd::kEndTime, time);
  std::string plugin;
  Builder<Hparams>(plugin).add_message(Hparams::kSessionEnd, message);
  return plugin;
}

/// What a file begins with: its version, the config as a page of text, the hyperparameters.
std::string beginning(const RunDescription& run, std::int64_t step) {
  const double time = seconds(run.start);
  std::string version;
  Builder<Event> builder(version);
  builder.add_double(Event::kWallTime, time);
  builder.add_string(Event::kFileVersion, "brain.Event:2");
  const std::string page = fmt::format("```json\n{}\n```", run.config.dump(2));
  return event_record(version) +
         event_of(time, step, plugin_value("config/text_summary", "text", "", page)) +
         event_of(time, step,
                  plugin_value("_hparams_/session_start_info", "hparams", session_start(run), ""));
}

/// Whether an event is of a step, or samples, up to `resumed`.
bool is_kept(std::string_view data, const RunPosition& resumed) {
  std::int64_t at = 0;
  bool over_samples = false;
  protozero::pbf_message<Event> event(data.data(), data.size());
  while (event.next()) {
    if (event.tag() == Event::kStep) {
      at = event.get_int64();
    } else if (event.tag() == Event::kSummary) {
      protozero::pbf_message<Summary> summary(event.get_message());
      if (!summary.next(Summary::kValue)) continue;
      protozero::pbf_message<Value> value(summary.get_message());
      if (value.next(Value::kTag)) over_samples = value.get_string().starts_with(kOverSamples);
    } else {
      event.skip();
    }
  }
  return at <= (over_samples ? resumed.samples : resumed.step);
}

void cut_earlier_files(const fs::path& folder, const RunPosition& resumed) {
  std::vector<fs::path> earlier;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(kFilePrefix)) earlier.push_back(entry.path());
  }
  for (const fs::path& path : earlier) {
    if (resumed.step == 0) {
      DurableFiles().remove_tree(path);
      continue;
    }
    const auto keep = [&](std::string_view data) { return is_kept(data, resumed); };
    AppendedFile(path, read_events(path, keep));
  }
}

AppendedFile begin_file(const fs::path& folder,
                        const RunPosition& resumed,
                        const RunDescription& run) {
  cut_earlier_files(folder, resumed);
  const auto now = std::chrono::duration_cast<std::chrono::seconds>(run.start.time_since_epoch());
  AppendedFile file(
      folder / fmt::format("{}{:010}.{}.{}.0", kFilePrefix, now.count(), host_name(), ::getpid()),
      0);
  file.add(resumed.step, beginning(run, resumed.step));
  return file;
}

}  // namespace

TensorBoard::TensorBoard(const fs::path& folder,
                         const RunPosition& resumed,
                         const RunDescription& run)
    : file_(begin_file(folder, resumed, run)) {}

void TensorBoard::write(const StepMetrics& metrics, bool is_last) {
  const double now = seconds(Clock::now());
  file_.add(metrics.step, event_of(now, metrics.step, scalars(curves(), metrics)) +
                              event_of(now, metrics.samples, scalars(deepspeed_curves(), metrics)));
  if (is_last) {
    file_.add(metrics.step, event_of(now, metrics.step,
                                     plugin_value("_hparams_/session_end_info", "hparams",
                                                  session_end(now), "")));
  }
  file_.flush();
}

}  // namespace dstrain
