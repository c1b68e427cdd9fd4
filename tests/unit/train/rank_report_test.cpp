// What ranks tell each other after a step, and what of it a line of metrics.jsonl says.
#include "engine/train/rank_report.h"

#include <fstream>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/train/accelerators.h"
#include "tests/harness/inline_stream.h"
#include "tests/harness/thread_world.h"
#include "tests/unit/checkpoint/scratch_folder.h"

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

nlohmann::json line_of(const StepMetrics& metrics) {
  const checkpoint_test::ScratchFolder folder;
  MetricsFile(folder.path() / "metrics.jsonl", 0).write(metrics);
  std::ifstream in(folder.path() / "metrics.jsonl");
  return nlohmann::json::parse(in);
}

TEST_CASE("a line names the devices' clocks and why they are slow", "[metrics]") {
  const nlohmann::json on_gpus =
      line_of({.step = 1,
               .model_flops_utilization = 0.5,
               .devices = {{.compute_mhz = 1200.0, .watts = 699.5, .slowdown = {.power = true}},
                           {.slowdown = {.temperature = true, .hardware = true}}}});
  CHECK(on_gpus["model_flops_utilization"] == 0.5);
  REQUIRE(on_gpus["devices"].size() == 2);
  CHECK(on_gpus["devices"][0]["compute_mhz"] == 1200.0);
  CHECK(on_gpus["devices"][0]["watts"] == 699.5);
  CHECK(on_gpus["devices"][0]["celsius"].is_null());
  CHECK(on_gpus["devices"][0]["slowed_by"] == nlohmann::json{"power"});
  CHECK(on_gpus["devices"][1]["slowed_by"] == nlohmann::json{"temperature", "hardware"});
  const nlohmann::json on_cpus = line_of({.step = 1});
  CHECK(on_cpus["model_flops_utilization"].is_null());
  CHECK_FALSE(on_cpus.contains("devices"));
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
