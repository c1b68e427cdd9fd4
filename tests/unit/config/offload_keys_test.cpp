// "offload_optimizer", "offload_param" and "aio": what is read, what is refused on which device,
// and what a run then plans is in tests/unit/train.
#include <catch2/catch.hpp>

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Contains;
using Strings = std::vector<std::string>;

LoadedConfig resolved(const Strings& overrides, bool on_gpu = false) {
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, 1, {.cuda = on_gpu});
  return loaded;
}

std::string refusal_of(const Strings& overrides, bool on_gpu = false) {
  return config_error_of([&] { (void)resolved(overrides, on_gpu); });
}

std::string notices_of(const LoadedConfig& loaded) {
  std::string all;
  for (const std::string& notice : loaded.notices)
    all += notice + "\n";
  return all;
}

const std::string kDevice = "zero_optimization.offload_optimizer.device=";
const std::string kPath = "zero_optimization.offload_optimizer.nvme_path=/scratch";

TEST_CASE("offloaded states are read with all that belongs to them", "[spec][offload]") {
  const OffloadConfig read =
      load_tiny({kDevice + "nvme", kPath, "zero_optimization.offload_optimizer.buffer_count=6",
                 "zero_optimization.offload_optimizer.ratio=0.5",
                 "zero_optimization.sub_group_size=1e6", "aio.block_size=1048576",
                 "aio.queue_depth=16"})
          .config.offload;
  CHECK(read == OffloadConfig{.states = OffloadTo::kDisk,
                              .states_path = "/scratch",
                              .states_ratio = 0.5,
                              .state_buffers = 6,
                              .sub_group_size = 1'000'000,
                              .block_size = 1'048'576,
                              .queue_depth = 16});
  CHECK(load_tiny({"zero_optimization.cpu_offload=true"}).config.offload.states ==
        OffloadTo::kHost);
  CHECK(load_tiny({"zero_optimization.cpu_offload=false"}).config.offload == OffloadConfig{});
  CHECK_THAT(error_of_tiny({"zero_optimization.cpu_offload=true", kDevice + "nvme", kPath}),
             Contains("zero_optimization.cpu_offload: true means \"cpu\", and the block that has "
                      "taken its place says \"nvme\""));
  CHECK(load_tiny({kDevice + "none", kPath, "aio.queue_depth=16"}).config.offload ==
        OffloadConfig{});
}

TEST_CASE("settings of offloading that mean nothing here say so", "[spec][offload]") {
  const std::string told = notices_of(
      load_tiny({kDevice + "cpu", "zero_optimization.offload_optimizer.pipeline_read=true",
                 "zero_optimization.offload_optimizer.pin_memory=true", "aio.use_gds=true"}));
  CHECK_THAT(told, Contains("offload_optimizer.pipeline_read: reads are always ahead"));
  CHECK_THAT(told, Contains("offload_optimizer.pin_memory: it is always so"));
  CHECK_THAT(told, Contains("aio.use_gds"));
}

TEST_CASE("states offloaded to \"cpu\" leave a GPU, and have nowhere to go from a CPU",
          "[spec][offload]") {
  CHECK_THAT(
      notices_of(resolved({kDevice + "cpu"})),
      Contains("no effect: zero_optimization.offload_optimizer.device: \"cpu\" is where CPUs "
               "compute"));
  CHECK_THAT(notices_of(resolved({kDevice + "cpu"}, true)), !Contains("offload_optimizer"));
}

TEST_CASE("states on a disk need a folder, an optimizer of single elements, and saves that wait",
          "[spec][offload]") {
  for (const bool on_gpu : {false, true}) {
    CHECK_THAT(refusal_of({kDevice + "nvme"}, on_gpu),
               Contains("zero_optimization.offload_optimizer.nvme_path: missing: name a folder"));
    CHECK_THAT(refusal_of({kDevice + "nvme", kPath, "optimizer.type=Muon"}, on_gpu),
               Contains("Muon looks at whole tensors at once"));
    CHECK_THAT(refusal_of({kDevice + "nvme", kPath, "checkpoint.async=true"}, on_gpu),
               Contains("checkpoint.async: copies all states to memory"));
    CHECK(refusal_of({kDevice + "nvme", kPath}, on_gpu).empty());
  }
  CHECK_THAT(refusal_of({kDevice + "cpu", "optimizer.type=Lamb"}, true),
             Contains("Lamb looks at whole tensors at once"));
  CHECK(refusal_of({kDevice + "cpu", "optimizer.type=Lamb"}).empty());
}

TEST_CASE("a part of the states can stay on the device, but not where parameters leave it",
          "[spec][offload]") {
  const std::string ratio = "zero_optimization.offload_optimizer.ratio=";
  CHECK(refusal_of({kDevice + "cpu", ratio + "0.3"}, true).empty());
  CHECK_THAT(notices_of(resolved({kDevice + "cpu", ratio + "0"}, true)),
             Contains("ratio is 0, so that all states stay on the device"));
  CHECK_THAT(refusal_of({kDevice + "cpu", ratio + "0.3", "zero_optimization.stage=3",
                         "zero_optimization.offload_param.device=cpu"},
                        true),
             Contains("ratio keeps some of these there: write 1.0"));
  CHECK_THAT(error_of_tiny({kDevice + "cpu", ratio + "1.5"}), Contains("ratio"));
}

TEST_CASE("parameters go to a disk with the states, into the same folder", "[spec][offload]") {
  const std::string device = "zero_optimization.offload_param.device=nvme";
  const std::string path = "zero_optimization.offload_param.nvme_path=";
  const std::string stage3 = "zero_optimization.stage=3";
  for (const bool on_gpu : {false, true}) {
    CHECK_THAT(refusal_of({stage3, device, path + "/scratch"}, on_gpu),
               Contains("parameters go to a disk together with the optimizer's states"));
    CHECK_THAT(refusal_of({stage3, kDevice + "nvme", kPath, device, path + "/other"}, on_gpu),
               Contains("offload_param.nvme_path: parameters and states lie in one file, and "
                        "zero_optimization.offload_optimizer.nvme_path is \"/scratch\""));
    CHECK(refusal_of({stage3, kDevice + "nvme", kPath, device}, on_gpu).empty());
    CHECK(resolved({stage3, kDevice + "nvme", device, path + "/scratch"}, on_gpu)
              .config.offload.states_path == "/scratch");
    CHECK_THAT(notices_of(resolved({"zero_optimization.stage=2", kDevice + "nvme", kPath, device},
                                   on_gpu)),
               Contains("parameters are offloaded in ZeRO's stage 3, and the stage is 2"));
  }
}

TEST_CASE("--ignore-offload keeps everything on the device, and says so", "[spec][offload]") {
  LoadOptions options{.overrides = {kDevice + "nvme", "zero_optimization.cpu_offload_param=true",
                                    "zero_optimization.stage=3"},
                      .ignore_offload = true};
  const LoadedConfig loaded = load_text(kTinyConfig, options);
  CHECK(loaded.config.offload == OffloadConfig{});
  REQUIRE(loaded.warnings.size() == 1);
  CHECK_THAT(loaded.warnings.front(),
             Contains("zero_optimization.offload_optimizer.device=\"nvme\", "
                      "zero_optimization.cpu_offload_param=true"));
}

}  // namespace
}  // namespace dstrain
