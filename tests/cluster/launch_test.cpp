// `dstrain launch` over several hosts, each with a real sshd: the same run as on one host, and what
// is told before a rank starts.
#include <chrono>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::FleetRun;
using testing::Program;

constexpr seconds kPatience{120};

TEST_CASE("four hosts of two ranks train to the same losses as one host of eight, bit for bit",
          "[cluster][launch][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(4, 2);
  const std::vector<std::string> steps = {"--set", "training.steps=20"};
  const auto fleet = run.launch(steps);
  REQUIRE(fleet->wait(kPatience));
  INFO(fleet->err());
  REQUIRE(fleet->wait(seconds{0}) == 0);
  INFO(run.left());
  CHECK(run.nothing_is_left(seconds{5}));

  const testing::TinyRun alone;
  Program one({testing::dstrain_binary(), "launch", "--num_gpus", "8", run.path("config.json"),
               "--set", "training.steps=20", "--set", "training.output_dir=" + alone.path("run")});
  REQUIRE(one.wait(kPatience) == 0);
  const std::vector<double> losses = testing::losses_in(run.tiny().read("run/metrics.jsonl"));
  CHECK(losses.size() == 20);
  CHECK(losses == testing::losses_in(alone.read("run/metrics.jsonl")));
}

TEST_CASE("this machine and another one train together, the first one under two names",
          "[cluster][launch][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(1, 1);
  std::ofstream(run.path("hosts")) << "launcher slots=1\nw0 slots=1\n10.77.0.1 slots=1\n";
  const auto fleet = run.launch({"--set", "training.steps=3"});
  REQUIRE(fleet->wait(kPatience));
  INFO(fleet->err());
  CHECK(fleet->wait(seconds{0}) == 0);
  CHECK_THAT(fleet->err(), Contains("3 ranks"));
  CHECK(testing::losses_in(run.tiny().read("run/metrics.jsonl")).size() == 3);
  CHECK(run.nothing_is_left(seconds{5}));
}

TEST_CASE("a fixed port and address are taken as they are given", "[cluster][launch][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  const auto by_flags = run.launch(
      {"--set", "training.steps=3", "--master_port", "23456", "--master_addr", run.host(0).ipv6()});
  REQUIRE(by_flags->wait(kPatience));
  INFO(by_flags->err());
  CHECK(by_flags->wait(seconds{0}) == 0);
}

}  // namespace
}  // namespace dstrain
