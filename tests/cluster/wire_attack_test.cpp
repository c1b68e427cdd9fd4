// Another user of the host, and of a host of several, tries to get between the ranks: no run ends
// with 0 and other losses than an undisturbed one, and none stands.
//
// DSTRAIN_ATTACKED_STARTS says how often each; a few without it.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"
#include "tests/cluster/wire_attacker.h"

namespace dstrain {
namespace {

using std::chrono::seconds;
using testing::Isolation;
using testing::NamespaceHolder;
using testing::Program;
using testing::TinyRun;
using testing::WireAttacker;

constexpr seconds kPatience{60};
constexpr int kSteps = 20;

int starts() {
  const char* const text = std::getenv("DSTRAIN_ATTACKED_STARTS");
  return text == nullptr ? 3 : std::atoi(text);
}

const char* name_of(WireAttacker::Manner manner) {
  return manner == WireAttacker::Manner::kRelay ? "relays" : "anything";
}

/// The outcomes of the starts.
struct Outcomes {
  int undisturbed = 0;
  int ended_with_an_error = 0;
  int wrong = 0;
  int standing = 0;

  void count(std::optional<int> exit_code, bool same_losses) {
    if (!exit_code) {
      ++standing;
    } else if (*exit_code != 0) {
      ++ended_with_an_error;
    } else if (same_losses) {
      ++undisturbed;
    } else {
      ++wrong;
    }
  }
};

void report(const std::string& what, const Outcomes& outcomes, const WireAttacker& attacker) {
  std::cout << fmt::format(
                   "{}: {} undisturbed, {} ended with an error, {} ended with 0 and other losses, "
                   "{} stood; "
                   "{} connections, {} relays, {} bytes relayed, {} signs turned\n",
                   what, outcomes.undisturbed, outcomes.ended_with_an_error, outcomes.wrong,
                   outcomes.standing, attacker.counts().connections.load(),
                   attacker.counts().relays.load(), attacker.counts().relayed_bytes.load(),
                   attacker.counts().turned_signs.load())
            << std::flush;
}

std::vector<std::string> arguments(const TinyRun& run, int ranks, const std::string& folder) {
  return {testing::dstrain_binary(),
          "launch",
          "--num_gpus",
          std::to_string(ranks),
          run.path("config.json"),
          "--set",
          fmt::format("training.steps={}", kSteps),
          "--set",
          "training.output_dir=" + run.path(folder)};
}

TEST_CASE("another user of the host does not get between its ranks", "[cluster][attack][slow]") {
  if (const auto reason = testing::why_no_namespaces()) {
    testing::skip(*reason);
    return;
  }
  const int ranks = GENERATE(2, 4);
  const auto manner = GENERATE(WireAttacker::Manner::kRelay, WireAttacker::Manner::kAnything);
  const TinyRun run;
  Program alone(arguments(run, ranks, "alone"));
  REQUIRE(alone.wait(kPatience) == 0);
  const auto reference = testing::losses_in(run.read("alone/metrics.jsonl"));
  REQUIRE(reference.size() == kSteps);

  NamespaceHolder host(
      Isolation::kNetwork,
      [] {
        testing::run_tool({"ip", "link", "set", "lo", "up"});
      },
      [] {});
  host.await_namespaces();
  host.go();
  host.await_started();
  const WireAttacker attacker(host, manner, 4711);
  Outcomes outcomes;
  for (int start = 0; start < starts(); ++start) {
    const std::string folder = fmt::format("attacked{}", start);
    Program launch(arguments(run, ranks, folder), {}, [&host] { host.enter_network(); });
    const auto exit_code = launch.wait(kPatience);
    INFO(launch.err());
    outcomes.count(exit_code, testing::losses_in(run.read(folder + "/metrics.jsonl")) == reference);
    CHECK(outcomes.wrong == 0);
    CHECK(outcomes.standing == 0);
    CHECK(outcomes.ended_with_an_error == 0);
  }
  report(fmt::format("{} ranks of one host, {}", ranks, name_of(manner)), outcomes, attacker);
  CHECK(attacker.counts().connections > 0);
}

TEST_CASE("another user of one of two hosts does not get between their ranks",
          "[cluster][attack][slow]") {
  if (testing::no_cluster_here()) return;
  const auto manner = GENERATE(WireAttacker::Manner::kRelay, WireAttacker::Manner::kAnything);
  testing::FleetRun run(2, 1);
  Program alone(arguments(run.tiny(), 2, "alone"));
  REQUIRE(alone.wait(kPatience) == 0);
  const auto reference = testing::losses_in(run.tiny().read("alone/metrics.jsonl"));
  REQUIRE(reference.size() == kSteps);

  const WireAttacker attacker(run.host(0).holder(), manner, 4711);
  Outcomes outcomes;
  for (int start = 0; start < starts(); ++start) {
    const std::string folder = fmt::format("attacked{}", start);
    const auto launch = run.launch({"--set", fmt::format("training.steps={}", kSteps), "--set",
                                    "training.output_dir=" + run.path(folder)});
    const auto exit_code = launch->wait(kPatience);
    INFO(launch->err());
    outcomes.count(exit_code,
                   testing::losses_in(run.tiny().read(folder + "/metrics.jsonl")) == reference);
    CHECK(outcomes.wrong == 0);
    CHECK(outcomes.standing == 0);
    CHECK(outcomes.ended_with_an_error == 0);
  }
  report(fmt::format("2 hosts, {}", name_of(manner)), outcomes, attacker);
  CHECK(attacker.counts().connections > 0);
}

}  // namespace
}  // namespace dstrain
