// Nodes that are each started by hand, without SSH: they find each other in any order, refuse who
// does not belong to them, and end together. Here all of them are on one machine.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/failure/nodes_by_hand.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::becomes_true;
using testing::kToken;
using testing::Nodes;
using testing::Program;
using testing::says;
using testing::TinyRun;

const std::vector<std::string> kShort = {"--set", "training.steps=20"};

std::vector<std::string> losses_of(const std::string& metrics) {
  std::vector<std::string> losses;
  constexpr std::string_view kKey = "\"loss\":";
  for (std::size_t at = metrics.find(kKey); at != std::string::npos;
       at = metrics.find(kKey, at + 1)) {
    losses.push_back(metrics.substr(at, metrics.find_first_of(",}", at) - at));
  }
  return losses;
}

TEST_CASE("nodes started by hand in any order train as two ranks of one machine do",
          "[launch][by_hand]") {
  const Nodes nodes(2);
  const auto second = nodes.start(1, kShort);
  REQUIRE(says(*second, "waiting for node 0"));
  const auto first = nodes.start(0, kShort);
  CHECK(first->wait(seconds{60}) == 0);
  CHECK(second->wait(seconds{20}) == 0);
  CHECK_THAT(first->err(), Contains("node 1: ") && Contains("finished at step 20"));
  CHECK_THAT(second->err(), Contains("the run has ended"));
  const std::vector<std::string> losses = losses_of(nodes.run().read("run/metrics.jsonl"));
  REQUIRE(losses.size() == 20);

  Program alone(nodes.run().launch(
      {"--set", "training.steps=20", "--set", "training.output_dir=" + nodes.run().path("alone")}));
  REQUIRE(alone.wait(seconds{60}) == 0);
  CHECK(losses == losses_of(nodes.run().read("alone/metrics.jsonl")));
}

TEST_CASE(
    "without numbers the node at the endpoint leads, and the others are numbered as they come",
    "[launch][by_hand]") {
  const Nodes nodes(3);
  const std::vector<std::unique_ptr<Program>> all = [&] {
    std::vector<std::unique_ptr<Program>> started;
    for (int i = 0; i < 3; ++i)
      started.push_back(nodes.arrive(kShort));
    return started;
  }();
  std::string words;
  for (const auto& node : all) {
    CHECK(node->wait(seconds{60}) == 0);
    words += node->err();
  }
  CHECK_THAT(words, Contains("node 1: ") && Contains("node 2: ") && Contains("3 ranks"));
}

TEST_CASE("who does not come is named", "[launch][by_hand]") {
  const Nodes nodes(3);
  const auto first = nodes.start(0, {"--rdzv_conf", "timeout=2"});
  const auto third = nodes.start(2, {"--rdzv_conf", "timeout=2"});
  CHECK(first->wait(seconds{30}) == 4);
  CHECK_THAT(first->last_line(), Contains("1 of 3 nodes did not come within 2 s: node 1;"));
  CHECK(third->wait(seconds{30}) == 4);
  CHECK_THAT(third->err(), Contains("1 of 3 nodes did not come within 2 s: node 1;"));

  const auto alone = nodes.start(1, {"--rdzv_conf", "timeout=1"});
  CHECK(alone->wait(seconds{30}) == 4);
  CHECK_THAT(alone->last_line(), Contains("did not answer within 1 s"));
}

TEST_CASE("a node with another token is refused, and hears why", "[launch][by_hand]") {
  const Nodes nodes(2);
  const auto first = nodes.start(0, kShort);
  REQUIRE(says(*first, "waits for node 1"));
  const auto stranger = nodes.start(1, kShort, "another-token-of-a-test-0123456789");
  CHECK(stranger->wait(seconds{20}) == 4);
  CHECK_THAT(stranger->last_line(), Contains("the tokens differ"));
  REQUIRE(says(*first, "it does not know the job's secret"));
  const auto second = nodes.start(1, kShort);  // the run is not lost by it
  CHECK(first->wait(seconds{60}) == 0);
  CHECK(second->wait(seconds{20}) == 0);
}

TEST_CASE("a node that was started for another run ends the start on all of them",
          "[launch][by_hand]") {
  const auto others = [](const std::vector<std::string>& flags) {
    std::vector<std::string> all = kShort;
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  };
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {others({"--set", "training.seed=7"}), "was started with other --set flags than node 0"},
      {others({"--rdzv_id", "seven"}), "was started with another --rdzv_id than node 0"},
      {others({"--allow-unknown-keys"}), "was started with other --set flags than node 0"},
  };
  for (const auto& [flags, sentence] : cases) {
    const Nodes nodes(3);
    const auto first = nodes.start(0, kShort);
    const auto second = nodes.start(1, kShort);
    REQUIRE(says(*first, "node 1: "));
    const auto third = nodes.start(2, flags);
    CHECK(third->wait(seconds{20}) == 2);
    CHECK(first->wait(seconds{20}) == 2);
    CHECK(second->wait(seconds{20}) == 2);
    for (const auto* node : {first.get(), second.get(), third.get()})
      CHECK_THAT(node->err(), Contains("node 2 (") && Contains(sentence));
  }
}

TEST_CASE("a node whose config is another file's content is reported", "[launch][by_hand]") {
  const Nodes nodes(2);
  const auto first = nodes.start(0, kShort);
  REQUIRE(says(*first, "waits for node 1"));
  std::ofstream(nodes.run().path("config.json"), std::ios::app) << "// another\n";
  const auto second = nodes.start(1, kShort);
  CHECK(second->wait(seconds{20}) == 2);
  CHECK(first->wait(seconds{20}) == 2);
  CHECK_THAT(first->last_line(), Contains("a CONFIG that is not the same as on node 0"));
}

TEST_CASE("nodes that disagree on their number are reported", "[launch][by_hand]") {
  const Nodes nodes(2);
  const auto first = nodes.start(0, kShort);
  REQUIRE(says(*first, "waits for node 1"));
  const auto second = nodes.start_of(3, 1, kShort);
  CHECK(second->wait(seconds{20}) == 2);
  CHECK(first->wait(seconds{20}) == 2);
  for (const auto* node : {first.get(), second.get()}) {
    CHECK_THAT(node->err(), Contains("was started for 3 nodes, and node 0") &&
                                Contains("for 2: give all the same --num_nodes"));
  }
}

TEST_CASE("a node that dies ends the run on all nodes", "[launch][by_hand]") {
  const Nodes nodes(2);
  const auto first = nodes.start(0);
  const auto second = nodes.start(1);
  REQUIRE(nodes.run().reaches_step(3));
  SECTION("a node's launcher") {
    second->signal(SIGKILL);
    REQUIRE(first->wait(seconds{20}).has_value());
    CHECK_THAT(first->err(), Contains("is gone"));
    CHECK(*first->wait(seconds{1}) != 0);
  }
  SECTION("the leader") {
    const std::vector<pid_t> ranks = second->children();
    REQUIRE(ranks.size() == 1);
    first->signal(SIGKILL);
    CHECK(second->wait(seconds{20}) == 14);
    CHECK_THAT(second->last_line(), Contains("node 0 is gone"));
    CHECK(becomes_true([&] { return !testing::is_alive(ranks[0]); }, seconds{5}));
  }
  SECTION("a rank") {
    const std::vector<pid_t> ranks = second->children();
    REQUIRE(ranks.size() == 1);
    kill(ranks[0], SIGKILL);
    CHECK(first->wait(seconds{20}) == 137);
    CHECK(second->wait(seconds{20}) == 137);
    CHECK_THAT(first->last_line(), Contains("killed by SIGKILL"));
    CHECK_THAT(second->last_line(), Contains("exit code 137"));
  }
  SECTION("one Ctrl-C on node 0: all save and end") {
    first->signal(SIGINT);
    CHECK(first->wait(seconds{20}) == 130);
    CHECK(second->wait(seconds{20}) == 130);
    CHECK(std::filesystem::exists(nodes.run().path("run/checkpoints/latest")));
  }
}

TEST_CASE("a run by hand restarts: with the same nodes, and with one that was started again",
          "[launch][by_hand]") {
  const Nodes nodes(2);
  const std::vector<std::string> again = {"--max-restarts", "3", "--set", "checkpoint.interval=5"};
  const auto first = nodes.start(0, again);
  auto second = nodes.start(1, again);
  REQUIRE(nodes.run().reaches_step(12));
  kill(second->children().at(0), SIGKILL);  // a rank: its node stays
  REQUIRE(says(*first, "restart 1 of 3"));
  REQUIRE(becomes_true([&] { return !second->children().empty(); }, seconds{20}));
  REQUIRE(says(*first, "resuming from step"));
  second->signal(SIGKILL);  // the node: it comes back
  second = nodes.start(1, again);
  REQUIRE(says(*first, "restart 2 of 3"));
  REQUIRE(becomes_true([&] { return !second->children().empty(); }, seconds{30}));
  const std::int64_t before = nodes.run().steps();
  CHECK(nodes.run().reaches_step(before + 10));
  first->signal(SIGINT);
  CHECK(first->wait(seconds{20}) == 130);
  CHECK(second->wait(seconds{20}) == 130);
}

TEST_CASE("the token comes from a file that nobody else can read, or is asked for",
          "[launch][by_hand]") {
  const Nodes nodes(2);
  const std::string file = nodes.run().path("token");
  std::ofstream(file) << kToken << "\n";
  std::filesystem::permissions(file, std::filesystem::perms(0644));
  const auto open = nodes.start(1, {"--token-file", file});
  CHECK(open->wait(seconds{10}) == 2);
  CHECK_THAT(open->last_line(), Contains("others may read or write it; chmod 600"));

  const auto none = nodes.start(1, {}, "");
  CHECK(none->wait(seconds{10}) == 2);
  CHECK_THAT(none->last_line(),
             Contains("need a token") && Contains("dstrain token FILE makes one"));
  const auto small = nodes.start(1, {}, "secret");
  CHECK(small->wait(seconds{10}) == 2);
  CHECK_THAT(small->last_line(), Contains("the token can be guessed: it has 6 characters"));

  std::filesystem::permissions(file, std::filesystem::perms(0600));
  std::vector<std::string> with_file = kShort;
  with_file.insert(with_file.end(), {"--token-file", file});
  const auto first = nodes.start(0, with_file, "");
  const auto second = nodes.start(1, kShort);  // the same, by the environment
  CHECK(first->wait(seconds{60}) == 0);
  CHECK(second->wait(seconds{20}) == 0);
}

TEST_CASE("dstrain token makes a new file that its user alone can read, and overwrites none",
          "[launch][by_hand]") {
  const Nodes nodes(2);
  const std::string file = nodes.run().path("made.token");
  Program made({testing::dstrain_binary(), "token", file});
  CHECK(made.wait(seconds{10}) == 0);
  CHECK(std::filesystem::status(file).permissions() == std::filesystem::perms(0600));
  const std::string token = nodes.run().read("made.token");
  CHECK(token.size() == 65);
  CHECK_THAT(made.err() + made.out(), !Contains(token.substr(0, 64)));
  Program again({testing::dstrain_binary(), "token", file});
  CHECK(again.wait(seconds{10}) == 2);
  CHECK_THAT(again.last_line(), Contains("already exists"));
  CHECK(nodes.run().read("made.token") == token);
  std::vector<std::string> with_file = kShort;
  with_file.insert(with_file.end(), {"--token-file", file});
  const auto first = nodes.start(0, with_file, "");
  const auto second = nodes.start(1, with_file, "");
  CHECK(first->wait(seconds{60}) == 0);
  CHECK(second->wait(seconds{20}) == 0);

  Program printed({testing::dstrain_binary(), "token"});
  CHECK(printed.wait(seconds{10}) == 0);
  CHECK(printed.out().size() == 65);
  CHECK(printed.out() != token);
}

TEST_CASE("what does not go together is said", "[launch][by_hand]") {
  const TinyRun run;
  const auto refused = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {testing::dstrain_binary(), "launch", run.path("config.json")});
    Program program(flags, {{"DSTRAIN_TOKEN", kToken}});
    CHECK(program.wait(seconds{10}) == 2);
    return program.last_line();
  };
  CHECK_THAT(refused({"--no_ssh"}), Contains("--no_ssh needs --node_rank"));
  CHECK_THAT(refused({"--node_rank", "1", "--master_addr", "h"}), Contains("needs --num_nodes"));
  CHECK_THAT(refused({"--node_rank", "1", "--num_nodes", "2"}), Contains("needs --master_addr"));
  CHECK_THAT(refused({"--node_rank", "2", "--num_nodes", "2", "--master_addr", "h"}),
             Contains("--node_rank 2 of 2 nodes: expected 0 to 1"));
  CHECK_THAT(refused({"--node_rank", "1", "--num_nodes", "1"}), Contains("expected 0"));
  CHECK_THAT(refused({"--rdzv_backend", "etcd", "--rdzv_endpoint", "h", "--nnodes", "2"}),
             Contains("without another service"));
}

}  // namespace
}  // namespace dstrain
