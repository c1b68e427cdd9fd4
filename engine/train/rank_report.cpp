#include "engine/train/rank_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace dstrain {
namespace {

constexpr auto kFields = static_cast<std::size_t>(kRankReportNumbers);
using Fields = std::array<double, kFields>;
constexpr std::size_t kFirstSum = kFields - std::tuple_size_v<ObjectiveSums>;
constexpr std::size_t kFirstWait = kFirstSum - kWaitsFor;
// Two answers in one number.
constexpr int kSaveHasEnded = 1;
constexpr int kTraceAsked = 2;
constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

/// Bytes below 2^53 are exact in a double.
Fields to_fields(const RankReport& report) {
  const DeviceReadings device = report.device.value_or(DeviceReadings{});
  const RankMemory& memory = report.memory;
  Fields fields = {report.loss_sum,
                   static_cast<double>(report.signal),
                   static_cast<double>((report.save_has_ended ? kSaveHasEnded : 0) +
                                       (report.trace_asked ? kTraceAsked : 0)),
                   static_cast<double>(memory.planned_bytes),
                   static_cast<double>(memory.overhead_bytes),
                   static_cast<double>(memory.measured_bytes),
                   static_cast<double>(memory.peak_bytes),
                   static_cast<double>(memory.resident_peak_bytes),
                   report.device ? 1.0 : 0.0,
                   static_cast<double>(device.used_bytes),
                   static_cast<double>(device.peak_bytes),
                   device.compute_mhz.value_or(kAbsent),
                   device.memory_mhz.value_or(kAbsent),
                   device.watts.value_or(kAbsent),
                   device.celsius.value_or(kAbsent),
                   device.utilization.value_or(kAbsent),
                   device.slowdown.power ? 1.0 : 0.0,
                   device.slowdown.temperature ? 1.0 : 0.0,
                   device.slowdown.hardware ? 1.0 : 0.0,
                   report.time.total,
                   report.time.data,
                   static_cast<double>(report.time.slow_peer),
                   report.time.slow_peer_seconds};
  std::copy(report.time.waits.begin(), report.time.waits.end(), fields.begin() + kFirstWait);
  std::copy(report.sums.begin(), report.sums.end(), fields.begin() + kFirstSum);
  return fields;
}

RankReport from_fields(const double* fields) {
  const auto bytes = [&](std::size_t field) { return static_cast<std::int64_t>(fields[field]); };
  const auto number = [&](std::size_t field) {
    return std::isnan(fields[field]) ? std::nullopt : std::optional(fields[field]);
  };
  RankReport report{.loss_sum = fields[0],
                    .signal = static_cast<int>(fields[1]),
                    .save_has_ended = (static_cast<int>(fields[2]) & kSaveHasEnded) != 0,
                    .trace_asked = (static_cast<int>(fields[2]) & kTraceAsked) != 0,
                    .memory = {.planned_bytes = bytes(3),
                               .overhead_bytes = bytes(4),
                               .measured_bytes = bytes(5),
                               .peak_bytes = bytes(6),
                               .resident_peak_bytes = bytes(7)},
                    .time = {.total = fields[19],
                             .data = fields[20],
                             .slow_peer = static_cast<int>(fields[21]),
                             .slow_peer_seconds = fields[22]},
                    .device = std::nullopt};
  std::copy_n(fields + kFirstWait, kWaitsFor, report.time.waits.begin());
  std::copy_n(fields + kFirstSum, report.sums.size(), report.sums.begin());
  if (fields[8] > 0.0) {
    report.device = DeviceReadings{.used_bytes = bytes(9),
                                   .peak_bytes = bytes(10),
                                   .compute_mhz = number(11),
                                   .memory_mhz = number(12),
                                   .watts = number(13),
                                   .celsius = number(14),
                                   .utilization = number(15),
                                   .slowdown = {.power = fields[16] > 0.0,
                                                .temperature = fields[17] > 0.0,
                                                .hardware = fields[18] > 0.0}};
  }
  return report;
}

}  // namespace

std::vector<RankReport> gather_reports(const RankReport& mine,
                                       Communicator& world,
                                       Stream& stream) {
  Fields own = to_fields(mine);
  std::vector<double> all(static_cast<std::size_t>(world.size()) * kFields);
  const auto tensor = [](double* data, std::size_t size) {
    return Tensor(data, DType::kF64, Shape{static_cast<std::int64_t>(size)});
  };
  world.all_gather(tensor(own.data(), own.size()), tensor(all.data(), all.size()), Purpose::kMetric,
                   stream);
  stream.synchronize();
  std::vector<RankReport> reports;
  for (std::size_t at = 0; at < all.size(); at += kFields) {
    reports.push_back(from_fields(&all[at]));
  }
  return reports;
}

}  // namespace dstrain
