#include "engine/train/records/metrics_files.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kRanksLines = 100;  // of a run, beside the first and the last

Json or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json(nullptr);
}

/// "2026-11-22T16:30:00.123Z": which log readers recognise as a time.
std::string text_of(std::chrono::system_clock::time_point now) {
  using std::chrono::milliseconds;
  const auto since = std::chrono::duration_cast<milliseconds>(now.time_since_epoch());
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)), since.count() % 1000);
}

void add_phases(Json& line, const PhaseSeconds& phases) {
  line["data_seconds"] = phases.data;
  line["forward_seconds"] = phases.forward;
  line["backward_seconds"] = phases.backward;
  line["optimizer_seconds"] = phases.optimizer;
  line["communication_seconds"] = or_null(phases.communication);
}

/// Where the step's time went; only those communications that the run has.
Json split_of(const TimeSplit& split) {
  Json time{{"compute", split.compute}, {"data", split.data}};
  for (const WaitFor whom :
       {WaitFor::kData, WaitFor::kContext, WaitFor::kTensor, WaitFor::kExperts, WaitFor::kAll}) {
    const double seconds = split.communication[static_cast<std::size_t>(whom)];
    if (seconds > 0.0) time["communication"][name_of(whom)] = seconds;
  }
  time["pipeline"] = split.pipeline;
  time["straggler"] = split.straggler;
  time["rest"] = split.rest;
  time["slowest_rank"] = split.slowest_rank;
  time["slower_by"] = split.slower_by;
  return time;
}

/// How evenly experts are chosen: of a step, or of one of its layers.
void add_preferences(Json& of, const std::string& prefix, const PreferenceMetrics& metrics) {
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) of[prefix + name] = *value;
  };
  add("chosen_reward", metrics.chosen_reward);
  add("rejected_reward", metrics.rejected_reward);
  add("preference_accuracy", metrics.accuracy);
  add("divergence", metrics.divergence);
}

void add_routing(Json& of,
                 const std::optional<double>& balance_loss,
                 const std::optional<double>& z_loss,
                 double busiest) {
  if (balance_loss) of["balance_loss"] = *balance_loss;
  if (z_loss) of["z_loss"] = *z_loss;
  of["busiest_expert"] = busiest;
}

/// The memory of the rank that holds the most.
Json memory_summary(const std::vector<RankMemory>& by_rank) {
  const std::size_t rank = fullest_rank(by_rank);
  const RankMemory& memory = by_rank[rank];
  return {{"rank", rank},
          {"planned", memory.planned_bytes},
          {"overhead", memory.overhead_bytes},
          {"measured", memory.measured_bytes},
          {"peak", memory.peak_bytes},
          {"resident_peak", memory.resident_peak_bytes}};
}

Json slowed_by(const Slowdown& slowdown) {
  Json reasons = Json::array();
  if (slowdown.power) reasons.push_back("power");
  if (slowdown.temperature) reasons.push_back("temperature");
  if (slowdown.hardware) reasons.push_back("hardware");
  return reasons;
}

Json device_summary(const std::vector<DeviceReadings>& by_rank) {
  const DeviceSummary summary = summarize(by_rank);
  return {{"slowest_rank", summary.lowest_compute_mhz ? Json(summary.slowest_rank) : Json(nullptr)},
          {"lowest_compute_mhz", or_null(summary.lowest_compute_mhz)},
          {"total_watts", or_null(summary.total_watts)},
          {"highest_celsius", or_null(summary.highest_celsius)},
          {"slowed_ranks", summary.slowed_ranks},
          {"slowed_by", slowed_by(summary.slowed_by)}};
}

/// One member of every rank's item, as a list.
template <typename Item, typename Member>
Json column(const std::vector<Item>& by_rank, const Member& member) {
  Json values = Json::array();
  for (const Item& item : by_rank)
    values.push_back(member(item));
  return values;
}

Json memory_columns(const std::vector<RankMemory>& by_rank) {
  const auto bytes = [&](std::int64_t RankMemory::*member) {
    return column(by_rank, [&](const RankMemory& memory) { return memory.*member; });
  };
  return {{"planned", bytes(&RankMemory::planned_bytes)},
          {"overhead", bytes(&RankMemory::overhead_bytes)},
          {"measured", bytes(&RankMemory::measured_bytes)},
          {"peak", bytes(&RankMemory::peak_bytes)},
          {"resident_peak", bytes(&RankMemory::resident_peak_bytes)}};
}

Json device_columns(const std::vector<DeviceReadings>& by_rank) {
  const auto reading = [&](std::optional<double> DeviceReadings::*member) {
    return column(by_rank, [&](const DeviceReadings& device) { return or_null(device.*member); });
  };
  return {{"compute_mhz", reading(&DeviceReadings::compute_mhz)},
          {"memory_mhz", reading(&DeviceReadings::memory_mhz)},
          {"watts", reading(&DeviceReadings::watts)},
          {"celsius", reading(&DeviceReadings::celsius)},
          {"utilization", reading(&DeviceReadings::utilization)},
          {"slowed_by", column(by_rank, [](const DeviceReadings& device) {
             return slowed_by(device.slowdown);
           })}};
}

/// To the microsecond: more digits would only make the lines of many ranks longer.
double micros(double seconds) {
  return std::round(seconds * 1e6) / 1e6;
}

/// `rows` are steps of the same ranks, one at least.
Json time_columns(std::span<const std::vector<RankTime>> rows) {
  const std::size_t ranks = rows.front().size();
  const auto means = [&](const auto& seconds_of) {
    std::vector<double> sums(ranks);
    for (const std::vector<RankTime>& row : rows) {
      for (std::size_t rank = 0; rank < ranks; ++rank)
        sums[rank] += seconds_of(row[rank]);
    }
    Json column = Json::array();
    for (const double sum : sums)
      column.push_back(micros(sum / static_cast<double>(rows.size())));
    return column;
  };
  const auto add_any = [](Json& to, std::string_view name, Json column) {
    const bool any = std::any_of(column.begin(), column.end(),
                                 [](const Json& seconds) { return seconds.get<double>() > 0.0; });
    if (any) to[name] = std::move(column);
  };
  Json columns{{"computing", means([](const RankTime& time) { return time.computing(); })},
               {"data", means([](const RankTime& time) { return time.data; })}};
  Json waits = Json::object();
  for (std::size_t whom = 0; whom < kWaitsFor; ++whom) {
    add_any(waits, name_of(static_cast<WaitFor>(whom)),
            means([whom](const RankTime& time) { return time.waits[whom]; }));
  }
  if (!waits.empty()) columns["waiting_for"] = std::move(waits);
  std::vector<double> blamed(ranks);
  for (const std::vector<RankTime>& row : rows) {
    for (const RankTime& time : row) {
      const auto peer = static_cast<std::size_t>(time.slow_peer);
      if (time.slow_peer >= 0 && peer < ranks) blamed[peer] += time.slow_peer_seconds;
    }
  }
  Json bytes = Json::array();
  for (const double seconds : blamed)
    bytes.push_back(micros(seconds / static_cast<double>(rows.size())));
  add_any(columns, "bytes_waited_for", std::move(bytes));
  return columns;
}

}  // namespace

std::string metrics_line(const StepMetrics& metrics, std::chrono::system_clock::time_point now) {
  Json line;
  line["step"] = metrics.step;
  line["time"] = text_of(now);
  line["batch_size"] = metrics.batch_size;
  line["sequence_length"] = metrics.sequence_length;
  line["tokens"] = metrics.tokens;
  line["loss"] = metrics.loss;
  if (metrics.preferences) add_preferences(line, "", *metrics.preferences);
  if (metrics.policy) {
    line["reward"] = metrics.policy->reward;
    line["reward_std"] = metrics.policy->reward_deviation;
    line["completion_tokens"] = metrics.policy->completion_tokens;
    line["truncated"] = metrics.policy->truncated;
    if (metrics.policy->divergence) line["divergence"] = *metrics.policy->divergence;
    if (metrics.policy->clipped) line["clipped"] = *metrics.policy->clipped;
    if (metrics.policy->value_loss) line["value_loss"] = *metrics.policy->value_loss;
    line["sampling_seconds"] = metrics.policy->sampling_seconds;
    line["reward_seconds"] = metrics.policy->reward_seconds;
  }
  if (metrics.validation_loss) {
    line["validation_loss"] = *metrics.validation_loss;
  }
  if (metrics.validation_token_accuracy) {
    line["validation_token_accuracy"] = *metrics.validation_token_accuracy;
  }
  if (metrics.validation_preferences) {
    add_preferences(line, "validation_", *metrics.validation_preferences);
  }
  line["lr"] = metrics.learning_rate;
  line["grad_norm"] = metrics.grad_norm;
  line["loss_scale"] = metrics.loss_scale;
  if (!metrics.routing.empty()) {
    add_routing(line, mean_balance_loss(metrics.routing), mean_z_loss(metrics.routing),
                busiest_of(metrics.routing));
    if (const auto dropped = dropped_choices(metrics.routing)) {
      line["dropped_choices"] = dropped->count;
    }
  }
  line["skipped"] = metrics.skipped ? 1 : 0;
  line["step_seconds"] = metrics.step_seconds;
  add_phases(line, metrics.phases);
  if (metrics.split) line["time_split"] = split_of(*metrics.split);
  if (metrics.validation_loss || !metrics.texts.empty()) {
    line["evaluation_seconds"] = metrics.evaluation_seconds;
  }
  line["checkpoint_seconds"] = metrics.checkpoint_seconds;
  line["saving"] = metrics.saving ? 1 : 0;
  if (metrics.offload) {
    line["offload"] = {{"seconds", metrics.offload->seconds},
                       {"disk_bytes_read", metrics.offload->disk_bytes_read},
                       {"disk_bytes_written", metrics.offload->disk_bytes_written}};
  }
  line["tokens_per_second"] = metrics.tokens_per_second;
  line["model_flops_per_second"] = metrics.model_flops_per_second;
  // A CPU has no nominal peak to take a share of; scripts/bench_step measures one.
  line["model_flops_utilization"] = or_null(metrics.model_flops_utilization);
  if (!metrics.memory.empty()) {
    line["memory_bytes"] = memory_summary(metrics.memory);
  }
  if (!metrics.devices.empty()) {
    line["devices"] = device_summary(metrics.devices);
  }
  return line.dump();
}

std::string ranks_line(const StepMetrics& metrics, std::chrono::system_clock::time_point now) {
  return ranks_line(metrics, {&metrics.times, metrics.times.empty() ? 0U : 1U}, now);
}

std::string ranks_line(const StepMetrics& metrics,
                       std::span<const std::vector<RankTime>> rows,
                       std::chrono::system_clock::time_point now) {
  Json line;
  line["step"] = metrics.step;
  line["time"] = text_of(now);
  line["memory_bytes"] = memory_columns(metrics.memory);
  if (!rows.empty()) line["seconds"] = time_columns(rows);
  if (!metrics.devices.empty()) {
    line["devices"] = device_columns(metrics.devices);
  }
  return line.dump();
}

std::string experts_line(const StepMetrics& metrics, std::chrono::system_clock::time_point now) {
  Json line;
  line["step"] = metrics.step;
  line["time"] = text_of(now);
  Json layers = Json::array();
  for (const LayerRouting& routing : metrics.routing) {
    Json layer{{"layer", routing.layer}};
    add_routing(layer, routing.balance_loss, routing.z_loss, routing.busiest());
    layer["tokens"] = routing.tokens;
    layer["chosen"] = routing.chosen;
    if (routing.dropped) layer["dropped_choices"] = *routing.dropped;
    layers.push_back(std::move(layer));
  }
  line["layers"] = std::move(layers);
  return line.dump();
}

MetricsFiles::MetricsFiles(const std::filesystem::path& folder,
                           std::int64_t resumed_step,
                           std::int64_t last_step,
                           bool has_experts)
    : steps_(folder / "metrics.jsonl", resumed_step),
      ranks_(folder / "ranks.jsonl", resumed_step),
      first_step_(resumed_step + 1),
      ranks_interval_(std::max<std::int64_t>(1, (last_step + kRanksLines - 1) / kRanksLines)) {
  if (has_experts) experts_.emplace(folder / "experts.jsonl", resumed_step);
}

void MetricsFiles::write(const StepMetrics& metrics, bool is_last) {
  const auto now = std::chrono::system_clock::now();
  if (metrics.step == first_step_ || metrics.step % ranks_interval_ == 0 || is_last) {
    ranks_.add(metrics.step, ranks_line(metrics, now));
    if (experts_) experts_->add(metrics.step, experts_line(metrics, now));
  }
  steps_.add(metrics.step, metrics_line(metrics, now));
  steps_.flush();
  ranks_.flush();
  if (experts_) experts_->flush();
}

}  // namespace dstrain
