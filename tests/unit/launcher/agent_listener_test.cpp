// Agents that come by themselves, and others who do.
#include "launcher/agent/agent_listener.h"

#include <array>
#include <future>
#include <map>

#include <catch2/catch.hpp>

#include "engine/comm/keyed_hash.h"
#include "launcher/agent/agent_dial.h"
#include "tests/harness/captured_log.h"

namespace dstrain::launcher {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;
using testing::CapturedLog;

KeyedHash hash_under(std::string secret) {
  return [secret = std::move(secret)](std::string_view message) {
    const Digest digest = hmac_sha256(secret, message);
    return std::string(digest.begin(), digest.end());
  };
}

const KeyedHash kHash = hash_under("the secret of this job");

/// A listener with what came to it.
struct Reception {
  explicit Reception(AgentListenerOptions options = {.address = "127.0.0.1"})
      : listener(
            loop,
            kHash,
            [this](ArrivedAgent agent) { agents[agent.name] = std::move(agent.stream); },
            std::move(options)) {}

  template <typename Condition>
  bool run_until(const Condition& done, std::chrono::milliseconds patience = 5s) {
    const auto deadline = Clock::now() + patience;
    loop.restart();
    while (!done() && Clock::now() < deadline)
      loop.run_one_for(10ms);
    return done();
  }

  /// In a thread of its own, as an agent is a process of its own.
  std::future<std::string> dial(const std::string& name,
                                std::vector<Place> places,
                                const KeyedHash& hash = kHash) {
    return std::async(std::launch::async, [=] {
      asio::io_context own;
      try {
        tcp::socket socket = dial_launcher(own, places, name, hash, {}, 3s).socket;
        asio::write(socket, asio::buffer("hello from " + name));
        std::string answer(3, ' ');
        asio::read(socket, asio::buffer(answer));
        return answer;
      } catch (const std::exception& error) {
        return std::string(error.what());
      }
    });
  }
  std::future<std::string> dial(const std::string& name, const KeyedHash& hash = kHash) {
    return dial(name, {here()}, hash);
  }
  [[nodiscard]] Place here() const { return {"127.0.0.1", listener.port()}; }

  /// Its outcome, while the listener works.
  std::string outcome(std::future<std::string> future) {
    run_until([&] { return future.wait_for(0s) == std::future_status::ready; });
    return future.get();
  }

  asio::io_context loop;
  std::map<std::string, std::unique_ptr<ByteStream>> agents;
  AgentListener listener;
};

TEST_CASE("agents that know the secret come in by name, and both ends talk", "[slurm]") {
  Reception reception;
  std::vector<std::future<std::string>> dialled;
  for (const char* name : {"n1", "n2", "n3"})
    dialled.push_back(reception.dial(name));
  REQUIRE(reception.run_until([&] { return reception.agents.size() == 3; }));
  std::map<std::string, std::string> heard;
  std::map<std::string, std::string> ends;
  for (auto& [name, stream] : reception.agents) {
    stream->listen({.on_data = [&, name = name](std::string_view bytes) { heard[name] += bytes; },
                    .on_error_data = [](std::string_view) {},
                    .on_closed = [&, name = name](const StreamEnd& end) { ends[name] = end.why; }});
    stream->write("yes");
  }
  for (auto& one : dialled)
    CHECK(reception.outcome(std::move(one)) == "yes");
  REQUIRE(reception.run_until([&] { return ends.size() == 3; }));
  CHECK(heard == std::map<std::string, std::string>{
                     {"n1", "hello from n1"}, {"n2", "hello from n2"}, {"n3", "hello from n3"}});
  CHECK_THAT(ends["n1"], Contains("closed the connection"));
}

TEST_CASE("a listener on all addresses sees IPv4 agents by their IPv4 addresses", "[slurm]") {
  Reception reception(AgentListenerOptions{});
  auto dialled = reception.dial("n1");
  CHECK(reception.run_until([&] { return reception.agents.size() == 1; }));
  reception.agents.clear();  // hangs up
  (void)reception.outcome(std::move(dialled));
}

TEST_CASE("an agent finds the launcher among addresses of which others are dead", "[slurm]") {
  Reception reception;
  asio::io_context other_loop;
  tcp::acceptor silent(other_loop, {asio::ip::make_address("127.0.0.1"), 0});  // never answers
  const std::vector<Place> places = {{"127.0.0.1", silent.local_endpoint().port()},
                                     {"127.0.0.1", 1},  // nobody there
                                     reception.here()};
  auto dialled = reception.dial("n1", places);
  REQUIRE(reception.run_until([&] { return reception.agents.size() == 1; }));
  reception.agents["n1"]->listen({.on_data = [](std::string_view) {},
                                  .on_error_data = [](std::string_view) {},
                                  .on_closed = [](const StreamEnd&) {}});
  reception.agents["n1"]->write("yes");
  CHECK(reception.outcome(std::move(dialled)) == "yes");
}

TEST_CASE("who does not know the secret stays out, on either side", "[slurm]") {
  const CapturedLog log;
  Reception reception;
  const auto began = Clock::now();
  CHECK_THAT(reception.outcome(reception.dial("n1", hash_under("another secret"))),
             Contains("127.0.0.1:") && Contains("the tokens differ"));
  CHECK(Clock::now() - began < 3s);
  CHECK(reception.agents.empty());
  CHECK_THAT(log.text(), Contains("does not know the job's secret") && !Contains("this job"));

  // A listener that knows nothing cannot prove itself, whatever it sends back.
  asio::io_context loop;
  tcp::acceptor impostor(loop, {asio::ip::make_address("127.0.0.1"), 0});
  auto dialled = reception.dial("n1", {{"127.0.0.1", impostor.local_endpoint().port()}});
  tcp::socket victim = impostor.accept();
  asio::write(victim, asio::buffer(std::string(kAgentMagic) + std::string(16, 'n') +
                                   std::string(kAgentProofBytes, 'p')));
  CHECK_THAT(dialled.get(), Contains("does not know the job's secret"));
}

TEST_CASE("strangers are gone in time, and agents come in past them", "[slurm]") {
  const CapturedLog log;
  Reception reception({.address = "127.0.0.1", .proof_deadline = 300ms, .max_strangers = 50});
  asio::io_context loop;
  std::vector<tcp::socket> strangers;
  const auto connect = [&]() -> tcp::socket& {
    strangers.emplace_back(loop);
    strangers.back().connect({asio::ip::make_address("127.0.0.1"), reception.listener.port()});
    return strangers.back();
  };
  asio::write(connect(), asio::buffer(std::string("GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")));
  asio::write(connect(), asio::buffer(std::string(400, '\xff')));
  asio::write(connect(), asio::buffer(std::string(kAgentMagic) + std::string(16, 'x') + '\xff' +
                                      std::string(300, 'y')));
  for (int i = 0; i < 200; ++i)
    connect();  // and silent
  auto dialled = reception.dial("n1");
  REQUIRE(reception.run_until([&] { return reception.agents.size() == 1; }));
  reception.agents.clear();  // hangs up
  (void)reception.outcome(std::move(dialled));
  // Every one of them sees its end.
  for (tcp::socket& socket : strangers) {
    bool is_closed = false;
    std::array<char, 64> buffer{};
    socket.non_blocking(true);
    CHECK(reception.run_until([&] {
      asio::error_code error;
      do {
        socket.read_some(asio::buffer(buffer), error);
      } while (!error);
      is_closed = error != asio::error::would_block;
      return is_closed;
    }));
  }
  CHECK_THAT(log.text(), Contains("does not speak the protocol") &&
                             Contains("did not prove in time") && Contains("displaced"));
}

TEST_CASE("places are read back as they were written", "[slurm]") {
  const auto places = parse_places("10.0.0.1:4711,[fd00::1]:80");
  REQUIRE(places.size() == 2);
  CHECK(places[1].address == "fd00::1");
  CHECK(to_text(places) == "10.0.0.1:4711,[fd00::1]:80");
  for (const char* text : {"10.0.0.1", ":1", "a:0", "a:x", "a:70000", "a:1,b"})
    CHECK_THROWS_AS(parse_places(text), std::invalid_argument);
}

}  // namespace
}  // namespace dstrain::launcher
