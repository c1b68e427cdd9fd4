// Nodes that are each started by hand, without SSH: they find each other in any order, refuse who
// does not belong to them, and end together. Here all of them are on one machine.
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <asio.hpp>
#include <catch2/catch.hpp>

#include "launcher/hosts/local_host.h"
#include "tests/failure/tiny_run.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::becomes_true;
using testing::Program;
using testing::TinyRun;

constexpr const char* kToken = "0123456789abcdef-of-a-test";

/// One command line for all nodes, and a port of their own.
class Nodes {
 public:
  explicit Nodes(int count) : count_(count), port_(launcher::listen_on("127.0.0.1", 0).port) {}

  [[nodiscard]] const TinyRun& run() const { return run_; }

  std::unique_ptr<Program> start(int rank,
                                 const std::vector<std::string>& more = {},
                                 const std::string& token = kToken) const {
    return start_of(count_, rank, more, token);
  }
  std::unique_ptr<Program> start_of(int count,
                                    int rank,
                                    const std::vector<std::string>& more,
                                    const std::string& token = kToken) const {
    return start_as({"--node_rank", std::to_string(rank), "--num_nodes", std::to_string(count),
                     "--master_addr", "127.0.0.1", "--master_port", std::to_string(port_)},
                    more, token);
  }
  /// Calls node 0 at another port.
  std::unique_ptr<Program> start_through(std::uint16_t port, int rank) const {
    return start_as({"--node_rank", std::to_string(rank), "--num_nodes", std::to_string(count_),
                     "--master_addr", "127.0.0.1", "--master_port", std::to_string(port)},
                    {}, kToken);
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// Started as with torchrun: the first node to come leads.
  std::unique_ptr<Program> arrive(const std::vector<std::string>& more = {}) const {
    return start_as({"--nnodes", std::to_string(count_), "--rdzv_endpoint",
                     "127.0.0.1:" + std::to_string(port_), "--rdzv_backend", "c10d"},
                    more, kToken);
  }

 private:
  std::unique_ptr<Program> start_as(std::vector<std::string> flags,
                                    const std::vector<std::string>& more,
                                    const std::string& token) const {
    std::vector<std::string> argv = {testing::dstrain_binary(), "launch", "--nproc_per_node=1",
                                     run_.path("config.json")};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.insert(argv.end(), more.begin(), more.end());
    return std::make_unique<Program>(argv, Program::Environment{{"DSTRAIN_TOKEN", token}});
  }

  TinyRun run_;
  int count_;
  std::uint16_t port_;
};

bool says(const Program& node, const std::string& words) {
  return becomes_true([&] { return node.err().find(words) != std::string::npos; }, seconds{20});
}

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

/// Passes one connection on to a port, both ways, and keeps what it heard.
class Eavesdropper {
 public:
  explicit Eavesdropper(std::uint16_t port)
      : acceptor_(loop_, {asio::ip::make_address("127.0.0.1"), 0}),
        inside_(loop_),
        outside_(loop_),
        port_(acceptor_.local_endpoint().port()) {
    acceptor_.async_accept(outside_, [this, port](const asio::error_code& error) {
      if (error) return;
      inside_.connect({asio::ip::make_address("127.0.0.1"), port});
      pass_on(outside_, inside_, there_);
      pass_on(inside_, outside_, back_);
    });
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Eavesdropper() {
    loop_.stop();
    thread_.join();
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// Changes a bit of the data that passes next.
  void change_a_bit() { changes_ = true; }
  /// What was sent, after the connection's end.
  std::string heard() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
    thread_ = std::thread([] {});
    return all_;
  }

 private:
  using Socket = asio::ip::tcp::socket;
  void pass_on(Socket& from, Socket& to, std::array<char, 4096>& buffer) {
    from.async_read_some(asio::buffer(buffer),
                         [&, this](const asio::error_code& error, std::size_t size) {
                           asio::error_code closed;
                           if (error) {
                             to.shutdown(Socket::shutdown_send, closed);
                             return;
                           }
                           all_.append(buffer.data(), size);
                           if (changes_.exchange(false))
                             buffer[size / 2] = static_cast<char>(buffer[size / 2] ^ 1);
                           asio::write(to, asio::buffer(buffer.data(), size), closed);
                           pass_on(from, to, buffer);
                         });
  }
  asio::io_context loop_;
  asio::ip::tcp::acceptor acceptor_;
  Socket inside_;
  Socket outside_;
  std::uint16_t port_;
  std::array<char, 4096> there_{};
  std::array<char, 4096> back_{};
  std::string all_;
  std::atomic<bool> changes_ = false;
  std::thread thread_;
};

std::string variable_of(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t at = text.find('\0' + name + '=');
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 2;
  return text.substr(begin, text.find('\0', begin) - begin);
}

TEST_CASE("who hears all that two nodes say to each other learns neither token nor secret",
          "[launch][by_hand]") {
  const Nodes nodes(2);
  Eavesdropper ear(nodes.port());
  const auto first = nodes.start(0);
  REQUIRE(says(*first, "waits for node 1"));
  const auto second = nodes.start_through(ear.port(), 1);
  REQUIRE(nodes.run().reaches_step(3));
  const std::vector<pid_t> ranks = second->children();
  REQUIRE(ranks.size() == 1);
  const std::string secret = variable_of(ranks.front(), "DSTRAIN_TOKEN");
  CHECK(secret.size() == 64);
  CHECK(secret != kToken);
  first->signal(SIGTERM);
  CHECK(first->wait(seconds{20}) == 143);
  CHECK(second->wait(seconds{20}) == 143);
  const std::string heard = ear.heard();
  CHECK(heard.size() > 1024);  // the start of a rank among it
  CHECK_THAT(heard, !Contains(secret) && !Contains(kToken));
  CHECK_THAT(heard, !Contains("DSTRAIN_") && !Contains("config.json"));
}

TEST_CASE("who changes a bit between two nodes ends the run, and it is reported",
          "[launch][by_hand]") {
  const Nodes nodes(2);
  Eavesdropper relay(nodes.port());
  const auto first = nodes.start(0);
  REQUIRE(says(*first, "waits for node 1"));
  const auto second = nodes.start_through(relay.port(), 1);
  REQUIRE(nodes.run().reaches_step(3));
  relay.change_a_bit();
  CHECK(first->wait(seconds{20}).value_or(0) != 0);
  CHECK(second->wait(seconds{20}).value_or(0) != 0);
  CHECK_THAT(first->err() + second->err(), Contains("changed on their way"));
}

/// Addresses, as /proc/net has them in hexadecimal, at which the process listens.
std::vector<std::string> listening_at(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code ended;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ended)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ended).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> addresses;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream rows("/proc/" + std::to_string(pid) + "/net/" + table);
    for (std::string line; std::getline(rows, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state, ignored, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i)
        words >> ignored;
      words >> inode;
      if (state == "0A" && inodes.contains(inode)) {
        addresses.push_back(local.substr(0, local.find(':')));
      }
    }
  }
  return addresses;
}

TEST_CASE("nothing of a run by hand listens on more than the address that it was given",
          "[launch][by_hand]") {
  const Nodes nodes(2);
  const auto first = nodes.start(0);
  const auto second = nodes.start(1);
  REQUIRE(nodes.run().reaches_step(3));
  std::vector<pid_t> all = {first->pid(), second->pid()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::ifstream list("/proc/" + std::to_string(all[i]) + "/task/" + std::to_string(all[i]) +
                       "/children");
    for (pid_t child = 0; list >> child;)
      all.push_back(child);
  }
  CHECK(all.size() >= 4);
  std::size_t listeners = 0;
  for (const pid_t pid : all) {
    for (const std::string& address : listening_at(pid)) {
      ++listeners;
      CHECK((address == "0100007F" || address == "0000000000000000FFFF00000100007F"));
    }
  }
  CHECK(listeners >= 2);  // node 0's launcher, and rank 0's store
  first->signal(SIGTERM);
  CHECK(first->wait(seconds{20}) == 143);
}

TEST_CASE("node 0 listens on every interface where it is told to alone", "[launch][by_hand]") {
  const Nodes nodes(2);
  const auto all = nodes.start(0, {"--listen", "all", "--rdzv_conf", "timeout=60"});
  REQUIRE(says(*all, "node 0 listens on all interfaces, as --listen all says"));
  REQUIRE(says(*all, "waits for node 1"));
  const std::vector<std::string> addresses = listening_at(all->pid());
  REQUIRE(addresses.size() == 1);
  CHECK(addresses.front().find_first_not_of('0') == std::string::npos);
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
