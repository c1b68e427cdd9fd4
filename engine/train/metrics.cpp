#include "engine/train/metrics.h"

#include <string>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_store.h"

namespace dstrain {
namespace {

/// Lines of earlier steps; a torn last line is dropped.
std::string lines_up_to(const std::filesystem::path& path, std::int64_t last_step) {
  std::string kept;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.value("step", std::int64_t{-1}) <= last_step &&
        json.contains("step")) {
      kept += line + "\n";
    }
  }
  return kept;
}

nlohmann::ordered_json or_null(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json to_json(const DeviceReadings& device) {
  auto slowed_by = nlohmann::ordered_json::array();
  if (device.slowdown.power) slowed_by.push_back("power");
  if (device.slowdown.temperature) slowed_by.push_back("temperature");
  if (device.slowdown.hardware) slowed_by.push_back("hardware");
  return {{"compute_mhz", or_null(device.compute_mhz)},
          {"memory_mhz", or_null(device.memory_mhz)},
          {"watts", or_null(device.watts)},
          {"celsius", or_null(device.celsius)},
          {"utilization", or_null(device.utilization)},
          {"slowed_by", slowed_by}};
}

}  // namespace

MetricsFile::MetricsFile(std::filesystem::path path, std::int64_t resumed_step)
    : path_(std::move(path)) {
  const std::string kept = resumed_step > 0 ? lines_up_to(path_, resumed_step) : std::string();
  const std::filesystem::path temporary = path_.string() + ".tmp";
  {
    std::ofstream rewrite(temporary, std::ios::trunc);
    rewrite << kept;
    if (!rewrite.flush()) {
      throw StorageError(fmt::format("{}: cannot be written", temporary.string()));
    }
  }
  std::filesystem::rename(temporary, path_);
  written_bytes_ = kept.size();
  out_.open(path_, std::ios::app);
  if (!out_) {
    throw StorageError(fmt::format("{}: cannot be opened for writing", path_.string()));
  }
}

void MetricsFile::write(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["tokens"] = metrics.tokens;
  line["loss"] = metrics.loss;
  if (metrics.validation_loss) {
    line["validation_loss"] = *metrics.validation_loss;
  }
  line["lr"] = metrics.learning_rate;
  line["grad_norm"] = metrics.grad_norm;
  line["loss_scale"] = metrics.loss_scale;
  line["skipped"] = metrics.skipped ? 1 : 0;
  line["step_seconds"] = metrics.step_seconds;
  line["checkpoint_seconds"] = metrics.checkpoint_seconds;
  line["saving"] = metrics.saving ? 1 : 0;
  line["tokens_per_second"] = metrics.tokens_per_second;
  line["model_flops_per_second"] = metrics.model_flops_per_second;
  // A CPU has no nominal peak to take a share of; scripts/bench_step measures one.
  line["model_flops_utilization"] = or_null(metrics.model_flops_utilization);
  auto& memory = line["memory_bytes"] = nlohmann::ordered_json::array();
  for (const RankMemory& rank : metrics.memory) {
    memory.push_back({{"planned", rank.planned_bytes},
                      {"overhead", rank.overhead_bytes},
                      {"measured", rank.measured_bytes},
                      {"peak", rank.peak_bytes},
                      {"resident_peak", rank.resident_peak_bytes}});
  }
  for (const DeviceReadings& device : metrics.devices) {
    line["devices"].push_back(to_json(device));
  }
  unwritten_ += line.dump() + "\n";
  if (!out_.is_open()) {
    out_.open(path_, std::ios::app);
  }
  out_ << unwritten_ << std::flush;
  if (!out_) {
    out_.close();
    out_.clear();
    std::error_code ignored;  // half a line is dropped when the run resumes, too
    std::filesystem::resize_file(path_, written_bytes_, ignored);
    throw StorageError(
        fmt::format("{}: the line of step {} cannot be written", path_.string(), metrics.step));
  }
  written_bytes_ += unwritten_.size();
  unwritten_.clear();
}

ResidentMemory resident_memory() {
  constexpr std::int64_t kKiB = 1024;
  ResidentMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) {
      memory.peak_bytes = kibibytes * kKiB;
    } else if ((word == "RssAnon:" || word == "RssShmem:") && status >> kibibytes) {
      memory.own_bytes += kibibytes * kKiB;
    }
  }
  return memory;
}

}  // namespace dstrain
