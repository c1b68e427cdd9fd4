// A run whose nodes are started by hand, seen from outside: somebody hears the nodes' connection,
// changes what is on its way, or calls the run where it can be called.
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <asio.hpp>
#include <catch2/catch.hpp>

#include "tests/failure/nodes_by_hand.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::kToken;
using testing::Nodes;
using testing::says;

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
  /// Returns what was sent; call it after the connection has ended.
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

}  // namespace
}  // namespace dstrain
