#include "cmd/launch/job_device.h"

#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using launcher::GpuReport;
using launcher::HostAnswer;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr const char* kH100 = "NVIDIA H100 80GB HBM3";

/// `prefix` makes the UUIDs of one machine.
HostAnswer with_gpus(const std::string& prefix, int count, const GpuReport& model) {
  HostAnswer answer;
  for (int i = 0; i < count; ++i) {
    answer.gpus.push_back(model);
    answer.gpus.back().uuid = prefix + "-" + std::to_string(i);
  }
  return answer;
}
GpuReport h100() {
  return {.model = kH100, .total_bytes = 80 * kGiB, .capability = 90};
}
GpuReport t4() {
  return {.model = "Tesla T4",
          .total_bytes = 15 * kGiB,
          .capability = 75,
          .unusable = "it has compute capability 7.5, and this dstrain is built for 8.0 and later"};
}
HostAnswer without_gpus() {
  return {.error = "no CUDA driver is installed on this machine (libcuda.so.1)"};
}

launcher::ProcessorReport epyc() {
  return {.model = "AMD EPYC", .multiplies_bf16 = true, .memory_bytes = 64 * kGiB};
}

struct TestHost {
  TestHost(std::string named,
           std::vector<int> with_slots,
           HostAnswer answer,
           launcher::ProcessorReport with_processor = epyc())
      : name(std::move(named)),
        machine(name),
        slots(std::move(with_slots)),
        gpus(std::move(answer)),
        processor(std::move(with_processor)) {}

  std::string name;
  std::string machine;
  std::vector<int> slots;
  HostAnswer gpus;
  launcher::ProcessorReport processor;
};

std::vector<RankSeat> seats_of_all(const std::vector<TestHost>& hosts, bool may_share) {
  std::vector<RankSeat> all;
  for (const TestHost& host : hosts) {
    for (RankSeat& seat :
         seats_of({host.name, host.slots}, host.machine, host.gpus, host.processor, may_share)) {
      all.push_back(std::move(seat));
    }
  }
  return all;
}
JobDevice decide(DeviceChoice wish, const std::vector<TestHost>& hosts, bool may_share = false) {
  return decide_device(wish, seats_of_all(hosts, may_share), may_share);
}
std::string problems(const JobDevice& device) {
  std::string text;
  for (const launcher::HostFailure& failure : device.failures)
    text += failure.host + ": " + failure.what + "; " + failure.fix + "\n";
  return text;
}

TEST_CASE("auto takes GPUs where every host has some, and processors where none has",
          "[cmd][device]") {
  const JobDevice gpus = decide(DeviceChoice::kAuto, {{"w0", {0, 1}, with_gpus("a", 2, h100())},
                                                      {"w1", {0, 1}, with_gpus("b", 2, h100())}});
  CHECK(gpus.failures.empty());
  CHECK(gpus.facts == MachineFacts{.cuda = true,
                                   .name = kH100,
                                   .multiplies_bf16 = true,
                                   .multiplies_f16 = true,
                                   .memory_bytes = 80 * kGiB,
                                   .ranks_per_host = 2});
  CHECK_THAT(gpus.line, Contains("device=cuda ranks=4 gpus=\"4 × NVIDIA H100 80GB HBM3\"") &&
                            Contains("\"auto\""));

  const JobDevice processors =
      decide(DeviceChoice::kAuto, {{"w0", {0, 1}, without_gpus()}, {"w1", {0}, without_gpus()}});
  CHECK(processors.failures.empty());
  CHECK(processors.facts ==
        MachineFacts{.name = "AMD EPYC", .multiplies_bf16 = true, .memory_bytes = 32 * kGiB});
  CHECK_THAT(processors.line, Contains("device=cpu ranks=3 processor=\"AMD EPYC\"") &&
                                  Contains("no host has a GPU to use: no CUDA driver"));
}

TEST_CASE("hosts have as many ranks each, or nothing is said of their number", "[cmd][device]") {
  const auto ranks_per_host = [](const std::vector<TestHost>& hosts) {
    return decide(DeviceChoice::kCpu, hosts).facts.ranks_per_host;
  };
  const TestHost two{"w0", {0, 1}, without_gpus()};
  CHECK(ranks_per_host({two}) == 2);
  CHECK(ranks_per_host({two, {"w1", {2, 3}, without_gpus()}}) == 2);
  CHECK(ranks_per_host({two, {"w1", {0}, without_gpus()}}) == std::nullopt);
  // Ranks that srun has dealt out in turn are not neighbours.
  const TestHost one{"w0", {0}, without_gpus()};
  const TestHost other{"w1", {0}, without_gpus()};
  CHECK(ranks_per_host({one, other}) == 1);
  CHECK(ranks_per_host({one, other, one, other}) == std::nullopt);
  CHECK(assumed_facts(DeviceChoice::kCpu, {{"w0", {0, 1}}, {"w1", {0, 1}}}).ranks_per_host == 2);
  CHECK(assumed_facts(DeviceChoice::kCpu).ranks_per_host == std::nullopt);
}

TEST_CASE("auto on hosts with and without GPUs is an error that names them", "[cmd][device]") {
  const JobDevice mixed = decide(DeviceChoice::kAuto, {{"w0", {0}, with_gpus("a", 1, h100())},
                                                       {"w1", {0}, without_gpus()},
                                                       {"w2", {0}, with_gpus("c", 1, t4())}});
  REQUIRE(mixed.failures.size() == 2);
  CHECK_THAT(problems(mixed),
             Contains("w1: training.device is \"auto\", and no CUDA driver") &&
                 Contains("but w0 has GPUs") && Contains("--exclude w1") &&
                 Contains("--set training.device=cpu") &&
                 Contains("w2: training.device is \"auto\", and cuda:0, Tesla T4, cannot be used"));
  CHECK(mixed.facts.cuda);  // for those that are left, where the run can do with them
  CHECK(mixed.facts.name == kH100);
}

TEST_CASE("a word in the config is kept to", "[cmd][device]") {
  const std::vector<TestHost> with = {{"w0", {0}, with_gpus("a", 1, h100())}};
  CHECK_FALSE(decide(DeviceChoice::kCpu, with).facts.cuda);
  CHECK_THAT(decide(DeviceChoice::kCpu, with).line, !Contains("auto"));
  CHECK(decide(DeviceChoice::kCuda, with).failures.empty());
  const JobDevice none = decide(DeviceChoice::kCuda, {{"w0", {0, 1}, without_gpus()}});
  REQUIRE(none.failures.size() == 1);
  CHECK_THAT(problems(none), Contains("training.device is \"cuda\", but no CUDA driver") &&
                                 Contains("--set training.device=cpu"));
}

TEST_CASE("a rank takes the GPU of its slot", "[cmd][device]") {
  const auto seats = seats_of_all(
      {{"w0", {0, 2}, with_gpus("a", 4, h100())}, {"w1", {3}, with_gpus("b", 4, h100())}}, false);
  REQUIRE(seats.size() == 3);
  CHECK(seats[0].gpu->uuid == "a-0");
  CHECK(seats[1].gpu->uuid == "a-2");
  CHECK(seats[2].gpu->uuid == "b-3");
  CHECK(seats[2].gpu_index == 3);
  CHECK(ranks_on_gpus(seats) == std::vector<int>{1, 1, 1});
}

TEST_CASE("more slots than GPUs are an error, unless ranks may take turns", "[cmd][device]") {
  const std::vector<TestHost> hosts = {{"w0", {0, 1}, with_gpus("a", 2, h100())},
                                       {"w1", {0, 1, 2, 3}, with_gpus("b", 2, h100())}};
  const JobDevice refused = decide(DeviceChoice::kAuto, hosts);
  REQUIRE(refused.failures.size() == 1);
  CHECK_THAT(problems(refused),
             Contains("w1: there is no GPU for slots 2, 3: it has 2 (2 × NVIDIA H100 80GB HBM3)") &&
                 Contains("--share-gpus"));
  const JobDevice shared = decide(DeviceChoice::kAuto, hosts, true);
  CHECK(shared.failures.empty());
  CHECK(shared.facts.memory_bytes == 40 * kGiB);
  CHECK(ranks_on_gpus(seats_of_all(hosts, true)) == std::vector<int>{1, 1, 2, 2, 2, 2});
}

TEST_CASE("a slot whose GPU cannot be used is named", "[cmd][device]") {
  HostAnswer gpus = with_gpus("a", 2, h100());
  gpus.gpus[1] = t4();
  CHECK(decide(DeviceChoice::kCuda, {{"w0", {0}, gpus}}).failures.empty());
  const JobDevice refused = decide(DeviceChoice::kCuda, {{"w0", {0, 1}, gpus}});
  CHECK_THAT(problems(refused),
             Contains("w0: cuda:1, Tesla T4, cannot be used: it has compute capability 7.5") &&
                 Contains("--exclude w0:1"));
  const JobDevice left_alone = decide(DeviceChoice::kAuto, {{"w0", {0}, with_gpus("a", 1, t4())}});
  CHECK_FALSE(left_alone.facts.cuda);
  CHECK_THAT(left_alone.line, Contains("and cuda:0, Tesla T4, cannot be used"));
}

TEST_CASE("two names of one machine do not make two of its GPU", "[cmd][device]") {
  std::vector<TestHost> names = {{"localhost", {0}, with_gpus("a", 2, h100())},
                                 {"127.0.0.1", {0}, with_gpus("a", 2, h100())}};
  names[0].machine = names[1].machine = "";
  CHECK_THAT(problems(decide(DeviceChoice::kAuto, names)),
             Contains("127.0.0.1: cuda:0, a-0, is taken by two ranks, as localhost is the same"));
  names[1].slots = {1};
  CHECK(decide(DeviceChoice::kAuto, names).failures.empty());
}

TEST_CASE("facts hold for the least of the ranks", "[cmd][device]") {
  const GpuReport v100{.model = "Tesla V100", .total_bytes = 32 * kGiB, .capability = 70};
  const JobDevice gpus = decide(DeviceChoice::kAuto, {{"w0", {0}, with_gpus("a", 1, h100())},
                                                      {"w1", {0}, with_gpus("b", 1, v100)}});
  CHECK(gpus.facts == MachineFacts{.cuda = true,
                                   .name = "NVIDIA H100 80GB HBM3, Tesla V100",
                                   .multiplies_bf16 = false,
                                   .multiplies_f16 = true,
                                   .memory_bytes = 32 * kGiB,
                                   .ranks_per_host = 1});
  const JobDevice processors =
      decide(DeviceChoice::kCpu,
             {{"w0", {0, 1}, HostAnswer{}},
              {"w1",
               {0},
               HostAnswer{},
               launcher::ProcessorReport{.model = "Xeon", .memory_bytes = 48 * kGiB}}});
  CHECK(processors.facts == MachineFacts{.name = "AMD EPYC, Xeon", .memory_bytes = 32 * kGiB});
}

}  // namespace
}  // namespace dstrain
