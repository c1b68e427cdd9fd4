#include "cmd/runs/run_status.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "cmd/runs/run_files.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/step_folders.h"
#include "engine/config/config_error.h"
#include "engine/train/records/run_history.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using std::chrono::system_clock;

double seconds_since(const timespec& time) {
  const std::chrono::duration<double> now = system_clock::now().time_since_epoch();
  return now.count() - static_cast<double>(time.tv_sec) - static_cast<double>(time.tv_nsec) * 1e-9;
}

/// A heartbeat that arrives during this watch decides.
void watch_beat(RunStatus& status,
                const fs::path& path,
                timespec before,
                std::chrono::milliseconds patience) {
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = begin + patience;
  while (std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(
        std::min<std::chrono::milliseconds>(std::chrono::milliseconds{200}, patience));
    const auto now = open_owner_file(path);
    if (now && (now->beat.tv_sec != before.tv_sec || now->beat.tv_nsec != before.tv_nsec)) {
      status.judgement = {OwnerState::kAlive, "its heartbeat arrived during this check"};
      status.beat_age_s = 0.0;
      return;
    }
  }
  status.judgement.because += fmt::format(", and no heartbeat came for {:g} s",
                                          std::chrono::duration<double>(patience).count());
}

void look_at_owner(RunStatus& status, std::chrono::milliseconds patience) {
  const fs::path path = status.folder / kOwnerFile;
  const auto file = open_owner_file(path);
  if (!file) {
    if (const auto last = open_owner_file(status.folder / kLastRunFile))
      status.owner = last->record;
    return;
  }
  status.has_owner_file = true;
  status.owner = file->record;
  status.judgement = judge_owner(*file, own_identity());
  status.beat_age_s = std::max(0.0, seconds_since(file->beat));
  if (status.judgement.state == OwnerState::kUnknown) {
    watch_beat(status, path, file->beat, patience);
  }
}

void look_at_checkpoints(RunStatus& status) {
  const fs::path folder = status.folder / "checkpoints";
  try {
    const auto newest = CheckpointStore(folder).latest(CheckpointStore::Look::kSilently);
    if (!newest) return;
    status.checkpoint = *newest;
  } catch (const CheckpointError& error) {
    status.checkpoint_fault = error.what();
    return;
  }
  for (const StepFolder& entry : list_step_folders(folder)) {
    if (entry.path == status.checkpoint) status.checkpoint_step = entry.step;
  }
  struct stat manifest {};
  if (::stat((status.checkpoint / "manifest.json").c_str(), &manifest) == 0) {
    status.checkpoint_age_s = std::max(0.0, seconds_since(manifest.st_mtim));
  }
}

/// The step of the last whole line; a torn one can only come after it.
void look_at_metrics(RunStatus& status) {
  const auto line = last_step_line(status.folder / "metrics.jsonl");
  if (line.is_null()) return;
  status.metrics_step = line["step"].get<std::int64_t>();
  if (line.contains("time") && line["time"].is_string()) {
    status.metrics_time = line["time"].get<std::string>();
  }
}

/// "12 s", "5 min", "3 h", "2 days".
std::string age_text(double seconds) {
  constexpr double kMinute = 60.0;
  constexpr double kHour = 60.0 * kMinute;
  constexpr double kDay = 24.0 * kHour;
  if (seconds < 2.0 * kMinute) return fmt::format("{:.0f} s", std::floor(seconds));
  if (seconds < 2.0 * kHour) return fmt::format("{:.0f} min", std::floor(seconds / kMinute));
  if (seconds < 2.0 * kDay) return fmt::format("{:.0f} h", std::floor(seconds / kHour));
  return fmt::format("{:.0f} days", std::floor(seconds / kDay));
}

std::string end_of(const RunStatus& status) {
  if (status.owner && status.owner->end) {
    return fmt::format("{}, at {}", status.owner->end->how, status.owner->end->time);
  }
  if (status.has_owner_file && status.judgement.state == OwnerState::kDead) {
    return "without a word: it was killed, or its machine failed";
  }
  return {};
}

void add_line(std::string& text, std::string_view name, const std::string& value) {
  text += fmt::format("{:<12}{}\n", name, value);
}

}  // namespace

RunStatus look_at_run(const fs::path& folder, std::chrono::milliseconds patience) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw ConfigError(
        fmt::format("{} is not a folder: expected a run's training.output_dir", folder.string()));
  }
  RunStatus status{.folder = folder, .owner = {}};
  look_at_owner(status, patience);
  look_at_checkpoints(status);
  look_at_metrics(status);
  const bool is_empty = !status.has_owner_file && !status.owner && status.checkpoint.empty() &&
                        status.checkpoint_fault.empty() && !status.metrics_step &&
                        !fs::exists(folder / RunHistory::kFile, error);
  if (is_empty) {
    throw ConfigError(fmt::format(
        "{} holds nothing of a run (no {}, no checkpoints, no metrics.jsonl): expected a run's "
        "training.output_dir",
        folder.string(), kOwnerFile));
  }
  return status;
}

std::string state_word(const RunStatus& status) {
  if (!status.has_owner_file || status.judgement.state == OwnerState::kDead) return "not running";
  return status.judgement.state == OwnerState::kUnknown ? "unknown" : "running";
}

std::string to_text(const RunStatus& status) {
  std::string text;
  const std::string because =
      status.has_owner_file ? status.judgement.because : fmt::format("there is no {}", kOwnerFile);
  add_line(text, "state", fmt::format("{}: {}", state_word(status), because));
  if (status.owner) {
    const OwnerRecord& owner = *status.owner;
    add_line(text, "run",
             fmt::format(
                 "pid {} on host {}, user {}, {}{}", owner.process.pid, owner.process.host,
                 owner.process.user, owner.role == OwnerRole::kLauncher ? "launcher" : "rank 0",
                 owner.restart == 0 ? std::string() : fmt::format(", restart {}", owner.restart)));
    add_line(text, "since", owner.since);
  }
  if (status.beat_age_s) {
    add_line(text, "heartbeat", fmt::format("{} ago", age_text(*status.beat_age_s)));
  }
  if (const std::string end = end_of(status); !end.empty()) add_line(text, "ended", end);
  add_line(text, "checkpoint",
           !status.checkpoint_fault.empty() ? status.checkpoint_fault
           : status.checkpoint.empty()
               ? std::string("none yet")
               : fmt::format("step {}, {} ago, {}", status.checkpoint_step,
                             age_text(status.checkpoint_age_s), status.checkpoint.string()));
  add_line(text, "metrics",
           status.metrics_step
               ? fmt::format(
                     "step {}{}", *status.metrics_step,
                     status.metrics_time.empty() ? std::string() : ", ended " + status.metrics_time)
               : std::string("none yet"));
  return text;
}

std::string to_json_text(const RunStatus& status) {
  using Json = nlohmann::ordered_json;
  Json json = {{"folder", status.folder.string()}, {"state", state_word(status)}};
  json["because"] = status.has_owner_file ? Json(status.judgement.because) : Json(nullptr);
  json["run"] = status.owner ? to_json(*status.owner) : Json(nullptr);
  json["heartbeat_age_seconds"] = status.beat_age_s ? Json(*status.beat_age_s) : Json(nullptr);
  const std::string end = end_of(status);
  json["ended"] = end.empty() ? Json(nullptr) : Json(end);
  json["checkpoint"] = nullptr;
  if (!status.checkpoint.empty()) {
    json["checkpoint"] = {{"path", status.checkpoint.string()},
                          {"step", status.checkpoint_step},
                          {"age_seconds", status.checkpoint_age_s}};
  }
  json["checkpoint_fault"] =
      status.checkpoint_fault.empty() ? Json(nullptr) : Json(status.checkpoint_fault);
  json["metrics"] = nullptr;
  if (status.metrics_step) {
    json["metrics"] = {{"step", *status.metrics_step}, {"time", status.metrics_time}};
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace dstrain
