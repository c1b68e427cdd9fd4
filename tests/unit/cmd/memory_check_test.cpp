#include "cmd/memory/memory_check.h"

#include <catch2/catch.hpp>

#include "launcher/process/errors.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr int kRanks = 4;

LoadedConfig gpt2(const std::vector<std::string>& overrides) {
  LoadedConfig loaded = load_config("configs/gpt2-124m.json", {.overrides = overrides});
  resolve_config(loaded, kRanks);
  return loaded;
}

void check(std::int64_t first_host, std::int64_t second_host) {
  const std::vector<HostMemory> hosts = {{"w0", 3, first_host}, {"w1", 1, second_host}};
  check_memory(gpt2, hosts, {.cuda = false, .threads = 1, .ranks_per_host = 3});
}

TEST_CASE("a host that is too small is refused with what would fit", "[cmd][launch]") {
  // 124 million parameters of 18 bytes, and activations: between 2 and 6 GiB a rank.
  CHECK_NOTHROW(check(18 * kGiB, 6 * kGiB));
  CHECK_THROWS_AS(check(6 * kGiB, 6 * kGiB), launcher::PreflightError);
  CHECK_THROWS_WITH(check(6 * kGiB, 6 * kGiB),
                    Contains("host w0 has 6.00 GiB of memory free, and its 3 ranks will take") &&
                        Contains("--no-memory-check") && Contains("--set "));
  CHECK_THROWS_WITH(check(18 * kGiB, 2 * kGiB),
                    Contains("host w1 has 2.00 GiB of memory free, and its rank will take"));
}

constexpr std::int64_t kMuch = 512 * kGiB;

TEST_CASE("a host whose disk cannot hold the states is refused with needed and free bytes",
          "[cmd][launch][offload]") {
  const ConfigWith offloads = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"zero_optimization.offload_optimizer.device=nvme",
                                    "zero_optimization.offload_optimizer.nvme_path=/scratch"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return gpt2(all);
  };
  const auto check_disks = [&](std::int64_t first, std::int64_t second) {
    const std::vector<HostMemory> hosts = {
        {.name = "w0", .ranks = 3, .available_bytes = kMuch, .free_disk_bytes = first},
        {.name = "w1", .ranks = 1, .available_bytes = kMuch, .free_disk_bytes = second}};
    check_memory(offloads, hosts, {.cuda = false, .threads = 1, .ranks_per_host = 3});
  };
  // In bf16 masters and two moments of 124 million parameters: 1.4 GiB a rank of stage 0.
  CHECK_NOTHROW(check_disks(kMuch, kMuch));
  CHECK_NOTHROW(check_disks(-1, -1));  // not known
  CHECK_THROWS_WITH(check_disks(1 << 20, kMuch),
                    Contains("host w0 has 1.0 MiB (1048576 bytes) free in /scratch") &&
                        Contains("its 3 ranks will keep") &&
                        Contains("zero_optimization.offload_optimizer.nvme_path"));
  CHECK_THROWS_WITH(check_disks(kMuch, 0), Contains("host w1 has 0 bytes"));
}

TEST_CASE("a host whose memory cannot hold what its GPUs offload is refused",
          "[cmd][launch][offload]") {
  const ConfigWith offloads = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"zero_optimization.offload_optimizer.device=cpu",
                                    "training.device=cuda"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return gpt2(all);
  };
  const auto check_memory_of = [&](std::int64_t bytes) {
    const std::vector<HostMemory> hosts = {{.name = "w0", .ranks = 4, .available_bytes = bytes}};
    check_memory(offloads, hosts, {.cuda = true, .threads = 1, .ranks_per_host = 4});
  };
  CHECK_NOTHROW(check_memory_of(kMuch));
  CHECK_THROWS_WITH(check_memory_of(kGiB),
                    Contains("host w0 has 1.00 GiB of memory free, and its 4 ranks will take") &&
                        Contains("offloaded to it"));
}

TEST_CASE("a host whose memory cannot hold its GPUs' inputs of blocks is refused",
          "[cmd][launch][recompute]") {
  const ConfigWith keeps = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {
        R"(activation_checkpointing={"granularity": "full", "cpu_checkpointing": true})",
        "training.device=cuda"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return gpt2(all);
  };
  const auto check_memory_of = [&](std::int64_t bytes) {
    const std::vector<HostMemory> hosts = {{.name = "w0", .ranks = 4, .available_bytes = bytes}};
    check_memory(keeps, hosts, {.cuda = true, .threads = 1, .ranks_per_host = 4});
  };
  CHECK_NOTHROW(check_memory_of(kMuch));
  CHECK_THROWS_WITH(check_memory_of(kGiB / 4),
                    Contains("are blocks' inputs: the GPUs keep them with "
                             "activation_checkpointing.cpu_checkpointing false"));
}

/// Two hosts of two ranks each, with so many GPUs of so many bytes.
std::vector<std::string> check_gpus(const std::vector<launcher::GpuReport>& first,
                                    const std::vector<launcher::GpuReport>& second,
                                    std::int64_t host_memory = kMuch) {
  const auto by_turns = [](std::size_t gpus) {
    return gpus == 0 ? std::vector<int>{} : std::vector<int>{0, gpus == 1 ? 0 : 1};
  };
  const std::vector<HostMemory> hosts = {{"w0", 2, host_memory, first, by_turns(first.size())},
                                         {"w1", 2, host_memory, second, by_turns(second.size())}};
  return check_memory(gpt2, hosts, {.cuda = true, .threads = 1, .ranks_per_host = 2});
}

TEST_CASE("a GPU that is too small for its ranks' plans is refused with what would fit",
          "[cmd][launch]") {
  const launcher::GpuReport large{.model = "H100", .total_bytes = 80 * kGiB};
  const launcher::GpuReport small{.model = "T4", .total_bytes = 3 * kGiB};
  CHECK(check_gpus({large, large}, {large, large}).empty());
  CHECK_THROWS_AS(check_gpus({large, large}, {large, small}), launcher::PreflightError);
  CHECK_THROWS_WITH(check_gpus({large, large}, {large, small}),
                    Contains("cuda:1 of host w1, T4, has 3.00 GiB of memory, and its rank will "
                             "take ") &&
                        Contains("--no-memory-check") && Contains("--set "));
  // Memory that other processes hold counts.
  const launcher::GpuReport busy{
      .model = "H100", .total_bytes = 80 * kGiB, .free_bytes = 512 << 20};
  CHECK_THROWS_WITH(check_gpus({busy, large}, {large, large}),
                    Contains("cuda:0 of host w0, H100, has 512.0 MiB of memory free"));
}

TEST_CASE("what would fit on a GPU fits into its host's memory as well, and on its disk",
          "[cmd][launch][offload]") {
  const ConfigWith on_gpus = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"training.device=cuda", "train_micro_batch_size_per_gpu=1",
                                    "activation_checkpointing.granularity=full",
                                    "zero_optimization.stage=0"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return gpt2(all);
  };
  const auto refusal = [&](std::int64_t host_memory, std::int64_t free_disk) {
    std::vector<HostMemory> hosts;
    const launcher::GpuReport gpu{.model = "T4", .total_bytes = 2200 * (kGiB / 1024)};
    for (const char* const name : {"w0", "w1"}) {
      hosts.push_back({.name = name,
                       .ranks = 2,
                       .available_bytes = host_memory,
                       .gpus = {gpu, gpu},
                       .gpu_of_rank = {0, 1},
                       .free_disk_bytes = free_disk});
    }
    try {
      check_memory(on_gpus, hosts, {.cuda = true, .threads = 1, .ranks_per_host = 2});
    } catch (const launcher::PreflightError& error) {
      return std::string(error.what());
    }
    return std::string("fits");
  };
  const std::string to_host = "--set zero_optimization.offload_optimizer.device=cpu";
  const std::string to_disk = "--set zero_optimization.offload_optimizer.device=nvme";
  CHECK_THAT(refusal(kMuch, -1), Contains(to_host));
  const std::string small_host = refusal(kGiB / 2, -1);
  CHECK_THAT(small_host, !Contains(to_host) && Contains(to_disk) &&
                             Contains("of a host's disk (not checked: not known here)"));
  CHECK_THAT(refusal(kGiB / 2, kGiB / 2), !Contains(to_host) && !Contains(to_disk));
}

TEST_CASE("the GPUs that a run's slots leave out are not looked at", "[cmd][launch]") {
  const launcher::GpuReport large{.model = "H100", .total_bytes = 80 * kGiB};
  const launcher::GpuReport small{.model = "T4", .total_bytes = 3 * kGiB};
  const auto check_slots = [&](const std::vector<int>& slots) {
    const std::vector<HostMemory> hosts = {
        {"w0", 4, kMuch, {small, large, large, large, large}, slots}};
    return check_memory(gpt2, hosts, {.cuda = true, .threads = 1, .ranks_per_host = 4});
  };
  CHECK_NOTHROW(check_slots({1, 2, 3, 4}));
  CHECK_THROWS_WITH(check_slots({0, 1, 2, 3}), Contains("cuda:0 of host w0, T4"));
}

TEST_CASE("ranks that share a GPU must fit together", "[cmd][launch]") {
  // Between 2 and 6 GiB a rank, as on CPUs.
  const launcher::GpuReport for_one{.model = "A2", .total_bytes = 6 * kGiB};
  const launcher::GpuReport tight{.model = "A2", .total_bytes = 4 * kGiB};
  CHECK_NOTHROW(check_gpus({for_one, for_one}, {for_one, for_one}));
  CHECK_THROWS_WITH(check_gpus({tight}, {for_one, for_one}),
                    Contains("cuda:0 of host w0, A2, has 4.00 GiB of memory, and its 2 ranks"));
  CHECK_NOTHROW(check_gpus({}, {}));  // not asked
}

TEST_CASE("a GPU that holds the plan and not the libraries is reported", "[cmd][launch]") {
  std::vector<std::string> notices;
  for (std::int64_t bytes = 8 * kGiB; notices.empty() && bytes > kGiB; bytes -= kGiB / 8) {
    const launcher::GpuReport gpu{.model = "A2", .total_bytes = bytes};
    notices = check_gpus({gpu, gpu}, {gpu, gpu});
  }
  REQUIRE(notices.size() == 1);
  CHECK_THAT(notices[0], Contains("memory is tight: cuda:0 of host w0") && Contains("libraries") &&
                             Contains("so it is on 4 GPUs"));
}

TEST_CASE("what ranks on GPUs take of the host's memory is checked too", "[cmd][launch]") {
  const launcher::GpuReport large{.model = "H100", .total_bytes = 80 * kGiB};
  CHECK_THROWS_WITH(check_gpus({large, large}, {large, large}, 1 << 20),
                    Contains("host w0 has 1.0 MiB of memory free, and its 2 ranks will take"));
}

}  // namespace
}  // namespace dstrain
