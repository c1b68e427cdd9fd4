// What ranks tell each other after a step, and which of it appears in metrics.jsonl and
// ranks.jsonl.
#include "engine/train/rank_report.h"

#include <chrono>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/train/accelerators.h"
#include "tests/harness/inline_stream.h"
#include "tests/harness/thread_world.h"

namespace dstrain {
namespace {

/// Different in every field, and large where fields are large.
RankReport report_of(int rank) {
  const std::int64_t bytes = (std::int64_t{3} << 40) + rank;
  return {.loss_sum = 0.1 + rank,
          .signal = rank,
          .save_has_ended = rank == 1,
          .memory = {.planned_bytes = bytes,
                     .overhead_bytes = bytes + 10,
                     .measured_bytes = bytes + 20,
                     .peak_bytes = bytes + 30,
                     .resident_peak_bytes = bytes + 40},
          .time = {.total = 1.5 + rank,
                   .data = 2.5 + rank,
                   .waits = {3.5 + rank, 4.5, 5.5, 6.5, 7.5, 8.5 + rank}},
          .device = DeviceReadings{
              .used_bytes = bytes + 50,
              .peak_bytes = bytes + 60,
              .compute_mhz = 1980.0 - rank,
              .memory_mhz = 2619.0 - rank,
              .watts = 700.5 - rank,
              .celsius = 60.0 + rank,
              .utilization = 0.5,
              .slowdown = {.power = rank == 0, .temperature = rank == 1, .hardware = rank == 2}}};
}

TEST_CASE("every rank has every rank's report, to the last field", "[metrics]") {
  const auto gathered = test::thread_world(3, [](Rendezvous& rendezvous) {
    const std::vector<int> members{0, 1, 2};
    const auto world = rendezvous.make_group("world", members);
    InlineStream stream;
    return gather_reports(report_of(rendezvous.world_rank()), *world, stream);
  });
  for (const std::vector<RankReport>& reports : gathered) {
    REQUIRE(reports.size() == 3);
    for (int rank = 0; rank < 3; ++rank) {
      const RankReport& got = reports[static_cast<std::size_t>(rank)];
      const RankReport sent = report_of(rank);
      CHECK(got.loss_sum == sent.loss_sum);
      CHECK(got.signal == sent.signal);
      CHECK(got.save_has_ended == sent.save_has_ended);
      CHECK(got.memory.planned_bytes == sent.memory.planned_bytes);
      CHECK(got.memory.overhead_bytes == sent.memory.overhead_bytes);
      CHECK(got.memory.measured_bytes == sent.memory.measured_bytes);
      CHECK(got.memory.peak_bytes == sent.memory.peak_bytes);
      CHECK(got.memory.resident_peak_bytes == sent.memory.resident_peak_bytes);
      CHECK(got.time.total == sent.time.total);
      CHECK(got.time.data == sent.time.data);
      CHECK(got.time.waits == sent.time.waits);
      REQUIRE(got.device.has_value());
      CHECK(got.device->used_bytes == sent.device->used_bytes);
      CHECK(got.device->peak_bytes == sent.device->peak_bytes);
      CHECK(got.device->compute_mhz == sent.device->compute_mhz);
      CHECK(got.device->memory_mhz == sent.device->memory_mhz);
      CHECK(got.device->watts == sent.device->watts);
      CHECK(got.device->celsius == sent.device->celsius);
      CHECK(got.device->utilization == sent.device->utilization);
      CHECK(got.device->slowdown.power == sent.device->slowdown.power);
      CHECK(got.device->slowdown.temperature == sent.device->slowdown.temperature);
      CHECK(got.device->slowdown.hardware == sent.device->slowdown.hardware);
    }
  }
}

TEST_CASE("what a driver does not tell stays absent", "[metrics]") {
  const auto world = make_local_rendezvous(1);
  const std::vector<int> members{0};
  const auto group = world[0]->make_group("world", members);
  InlineStream stream;
  const RankReport silent =
      gather_reports({.device = DeviceReadings{.used_bytes = 5}}, *group, stream)[0];
  REQUIRE(silent.device.has_value());
  CHECK(silent.device->used_bytes == 5);
  CHECK_FALSE(silent.device->compute_mhz.has_value());
  CHECK_FALSE(silent.device->watts.has_value());
  CHECK_FALSE(gather_reports({}, *group, stream)[0].device.has_value());
}

/// 2026-11-22, 16:30:05.007 UTC.
const std::chrono::system_clock::time_point kNow{std::chrono::milliseconds{1'795'365'005'007}};

nlohmann::json step_line(const StepMetrics& metrics) {
  return nlohmann::json::parse(metrics_line(metrics, kNow));
}

TEST_CASE("a step's line says when it ended and what its time went into", "[metrics]") {
  const nlohmann::json line = step_line({.step = 7,
                                         .validation_loss = 2.5,
                                         .step_seconds = 1.0,
                                         .phases = {.data = 0.125,
                                                    .forward = 0.25,
                                                    .backward = 0.375,
                                                    .optimizer = 0.0625,
                                                    .communication = 0.5},
                                         .evaluation_seconds = 3.0});
  CHECK(line["time"] == "2026-11-22T16:30:05.007Z");
  CHECK(line["data_seconds"] == 0.125);
  CHECK(line["forward_seconds"] == 0.25);
  CHECK(line["backward_seconds"] == 0.375);
  CHECK(line["optimizer_seconds"] == 0.0625);
  CHECK(line["communication_seconds"] == 0.5);
  CHECK(line["evaluation_seconds"] == 3.0);
  const nlohmann::json plain = step_line({.step = 1});
  CHECK(plain["communication_seconds"].is_null());
  CHECK_FALSE(plain.contains("evaluation_seconds"));
}

TEST_CASE("a step's line is as long with a thousand ranks as with one", "[metrics]") {
  StepMetrics metrics{.step = 1,
                      .memory = {{.peak_bytes = 5}},
                      .devices = {{.compute_mhz = 1980.0, .watts = 100.0}}};
  const std::size_t alone = metrics_line(metrics, kNow).size();
  metrics.memory.resize(1000);
  metrics.devices.resize(1000);
  metrics.memory[999] = {.planned_bytes = 1,
                         .overhead_bytes = 2,
                         .measured_bytes = 3,
                         .peak_bytes = 6,
                         .resident_peak_bytes = 8};
  CHECK(metrics_line(metrics, kNow).size() < alone + 10);
  const nlohmann::json fullest = {{"rank", 999},   {"planned", 1}, {"overhead", 2},
                                  {"measured", 3}, {"peak", 6},    {"resident_peak", 8}};
  CHECK(step_line(metrics)["memory_bytes"] == fullest);
}

const std::vector<DeviceReadings> kTwoGpus = {
    {.compute_mhz = 1200.0, .watts = 699.5, .slowdown = {.power = true}},
    {.compute_mhz = 1980.0,
     .watts = 500.5,
     .celsius = 60.0,
     .slowdown = {.temperature = true, .hardware = true}}};

TEST_CASE("a step's line names the slowest device and why devices are slow", "[metrics]") {
  const nlohmann::json on_gpus =
      step_line({.step = 1, .model_flops_utilization = 0.5, .devices = kTwoGpus});
  CHECK(on_gpus["model_flops_utilization"] == 0.5);
  CHECK(on_gpus["devices"]["slowest_rank"] == 0);
  CHECK(on_gpus["devices"]["lowest_compute_mhz"] == 1200.0);
  CHECK(on_gpus["devices"]["total_watts"] == 1200.0);
  CHECK(on_gpus["devices"]["highest_celsius"] == 60.0);
  CHECK(on_gpus["devices"]["slowed_ranks"] == 2);
  CHECK(on_gpus["devices"]["slowed_by"] == nlohmann::json{"power", "temperature", "hardware"});
  const nlohmann::json silent = step_line({.step = 1, .devices = {DeviceReadings{}}});
  CHECK(silent["devices"]["slowest_rank"].is_null());
  CHECK(silent["devices"]["slowed_by"].empty());
  const nlohmann::json on_cpus = step_line({.step = 1});
  CHECK(on_cpus["model_flops_utilization"].is_null());
  CHECK_FALSE(on_cpus.contains("devices"));
}

TEST_CASE("the ranks' line has every rank's memory and device, by rank", "[metrics]") {
  const StepMetrics metrics{.step = 3,
                            .memory = {{.planned_bytes = 1,
                                        .overhead_bytes = 2,
                                        .measured_bytes = 3,
                                        .peak_bytes = 4,
                                        .resident_peak_bytes = 5},
                                       {.planned_bytes = 6,
                                        .overhead_bytes = 7,
                                        .measured_bytes = 8,
                                        .peak_bytes = 9,
                                        .resident_peak_bytes = 10}},
                            .devices = kTwoGpus};
  const nlohmann::json line = nlohmann::json::parse(ranks_line(metrics, kNow));
  CHECK(line["step"] == 3);
  CHECK(line["time"] == "2026-11-22T16:30:05.007Z");
  CHECK(line["memory_bytes"]["planned"] == nlohmann::json{1, 6});
  CHECK(line["memory_bytes"]["overhead"] == nlohmann::json{2, 7});
  CHECK(line["memory_bytes"]["measured"] == nlohmann::json{3, 8});
  CHECK(line["memory_bytes"]["peak"] == nlohmann::json{4, 9});
  CHECK(line["memory_bytes"]["resident_peak"] == nlohmann::json{5, 10});
  CHECK(line["devices"]["compute_mhz"] == nlohmann::json{1200.0, 1980.0});
  CHECK(line["devices"]["celsius"] == nlohmann::json{nullptr, 60.0});
  CHECK(line["devices"]["slowed_by"][1] == nlohmann::json{"temperature", "hardware"});
}

TEST_CASE("a driver's name leads to a data sheet, or to none", "[metrics]") {
  const auto h100 = accelerator_of_model("NVIDIA H100 80GB HBM3");
  REQUIRE(h100.has_value());
  CHECK(h100->name == "H100-80GB");
  CHECK(h100->flops == 989e12);
  CHECK(accelerator_of_model("NVIDIA A100-SXM4-80GB")->name == "A100-80GB");
  // A slower one of the same family must not be held to the faster one's figures.
  CHECK_FALSE(accelerator_of_model("NVIDIA H100 PCIe").has_value());
  CHECK_FALSE(accelerator_of_model("cpu").has_value());
}

}  // namespace
}  // namespace dstrain
