// Callers that do not know the job's token: silent, slow, loud, numerous, or clever. Ranks join
// meanwhile.
#include <chrono>
#include <thread>

#include <catch2/catch.hpp>

#include "engine/comm/handshake.h"
#include "engine/comm/socket.h"
#include "engine/comm/store_protocol.h"
#include "engine/comm/tcp_store.h"
#include "tests/harness/captured_log.h"
#include "tests/unit/comm/ranks.h"

namespace dstrain {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using testing::CapturedLog;
namespace protocol = store_protocol;

const std::string kToken = "the-token-of-this-job";

struct Server {
  explicit Server(const TcpStoreLimits& limits = {}) : server("127.0.0.1", 0, kToken, limits) {}
  TcpStoreServer server;
  [[nodiscard]] FileDescriptor connect() const {
    return connect_to("127.0.0.1", server.port(), Clock::now() + 2s);
  }
  /// A rank joins and works; how long that took.
  [[nodiscard]] double join() const {
    const auto start = Clock::now();
    const auto store = make_tcp_store("127.0.0.1", server.port(), kToken, 5s);
    store->set("joined", "yes");
    CHECK(store->get("joined", 1s) == "yes");
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
};

/// Returns true if the other end closes within `patience`.
bool closes(const FileDescriptor& socket, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  try {
    for (;;) {
      (void)receive_exactly(socket, 1, deadline);
    }
  } catch (const std::runtime_error& failure) {
    return std::string(failure.what()).find("deadline") == std::string::npos;
  }
}

void say(const FileDescriptor& socket, std::string_view text) {
  send_all(socket, text, Clock::now() + 2s);
}

TEST_CASE("strangers who say the wrong thing are closed at once and logged once", "[store]") {
  const CapturedLog log;
  {
    const Server server;
    const std::string garbage(300, '\x7f');
    const std::string unproven =
        std::string(protocol::kMagic) + std::string(kHelloBytes - kMagicBytes, 'x');
    const std::string huge_length = std::string(protocol::kMagic) + std::string(300, '\xff');
    const std::string older = "dstrain\x63" + std::string(48, 'x');
    for (const std::string& words : {garbage, std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                                     unproven, huge_length, older}) {
      const FileDescriptor stranger = server.connect();
      say(stranger, words);
      CHECK(closes(stranger, 1s));
      CHECK(server.join() < 1.0);
    }
  }
  CHECK(log.lines_with("protocol") == 1);     // three of them, from one host for one reason
  CHECK(log.lines_with("wrong token") == 1);  // two of them
  CHECK(log.lines_with("further strangers count=3") == 1);
  CHECK(log.lines_with("127.0.0.1:") == 2);
}

TEST_CASE("a wrong token is refused in a sentence, not at a deadline", "[store]") {
  const CapturedLog log;
  const Server server;
  const auto start = Clock::now();
  CHECK_THAT(thrown<StoreRefused>([&] {
               (void)make_tcp_store("127.0.0.1", server.server.port(), "another-token", 30s);
             }),
             Contains("token"));
  CHECK(Clock::now() - start < 1s);
  CHECK(server.join() < 1.0);
}

/// Does what a rank does once it is connected: it seals its requests with the result.
FrameSeal prove(const FileDescriptor& socket) {
  const auto deadline = Clock::now() + 5s;
  DialingHandshake handshake(protocol::kMagic, kToken, protocol::kSubject, 0);
  (void)handshake.take(receive_exactly(socket, kGreetingBytes, deadline));
  say(socket, handshake.hello());
  CHECK(handshake.take(receive_exactly(socket, kVerdictBytes, deadline)) ==
        DialingHandshake::State::kDone);
  return {Sealing::kEncrypted, handshake.keys().from_dialer, FrameSeal::End::kSeals};
}

TEST_CASE("the ranks of a large job, all strangers at first, get in at the first try", "[store]") {
  const CapturedLog log;
  {
    const Server server;
    std::vector<FileDescriptor> ranks;
    for (int i = 0; i < 400; ++i) {  // with the store's ends, below a limit of 1024 descriptors
      ranks.push_back(server.connect());
    }
    for (const FileDescriptor& rank : ranks) {
      (void)prove(rank);
    }
  }
  CHECK(log.lines_with("stranger") == 0);
}

TEST_CASE("two hundred idle connections do not keep a rank out", "[store]") {
  const CapturedLog log;
  const Server server({.strangers = 64});
  std::vector<FileDescriptor> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(server.connect());
  }
  CHECK(server.join() < 1.0);
  int open = 0;
  for (const FileDescriptor& socket : idle) {
    open += !closes(socket, 20ms);
  }
  CHECK(open <= 64);
}

TEST_CASE("a silent stranger and a slow one are gone after five seconds", "[store][slow]") {
  const CapturedLog log;
  const Server server;
  const FileDescriptor silent = server.connect();
  const FileDescriptor slow = server.connect();
  const auto start = Clock::now();
  for (std::size_t i = 0; i < 9; ++i) {  // right so far, but a byte every half second
    say(slow, std::string(protocol::kMagic).append("nonce").substr(i, 1));
    std::this_thread::sleep_for(500ms);
  }
  CHECK(closes(silent, 2s));
  CHECK(closes(slow, 2s));
  CHECK(Clock::now() - start < 6s);
  CHECK(log.lines_with("within 5 s") == 1);
  CHECK(server.join() < 1.0);
}

TEST_CASE("a member that does not wait for its answers is closed", "[store]") {
  const CapturedLog log;
  const Server server;
  const FileDescriptor member = server.connect();
  FrameSeal seal = prove(member);
  std::string get;  // one that must wait for its key
  put_number(get, protocol::Request::kGet);
  put_number(get, std::uint16_t{1});
  get += "k";
  put_number(get, std::int64_t{60'000});
  SECTION("two requests at once") {
    const std::string first = protocol::sealed_frame(seal, get);
    say(member, first + protocol::sealed_frame(seal, get));
  }
  SECTION("one while another waits") {
    say(member, protocol::sealed_frame(seal, get));
    std::this_thread::sleep_for(50ms);
    say(member, protocol::sealed_frame(seal, get));
  }
  CHECK(closes(member, 1s));
  CHECK(server.join() < 1.0);
}

TEST_CASE("a member that asks for a huge frame is closed, without the memory for it", "[store]") {
  const CapturedLog log;
  const Server server;
  const FileDescriptor member = server.connect();
  (void)prove(member);
  say(member, std::string(4, '\xff'));
  CHECK(closes(member, 1s));
  CHECK(server.join() < 1.0);
}

// Between a member and the store: every byte of a request in turn, its length left alone, and a
// request once more.
TEST_CASE("a request that was changed on the way, or comes twice, is not answered", "[store]") {
  const CapturedLog log;
  const Server server;
  std::string set;
  put_number(set, protocol::Request::kSet);
  put_number(set, std::uint16_t{1});
  set += "kvalue";
  const std::size_t bytes = protocol::kLengthBytes + set.size() + protocol::kTagBytes;
  for (std::size_t at = protocol::kLengthBytes; at <= bytes; ++at) {
    const FileDescriptor member = server.connect();
    FrameSeal seal = prove(member);
    std::string frame = protocol::sealed_frame(seal, set);
    if (at < bytes) {
      frame[at] = static_cast<char>(frame[at] ^ 0x10);
      say(member, frame);
    } else {
      say(member, frame);
      (void)receive_exactly(member, protocol::kLengthBytes + 1 + protocol::kTagBytes,
                            Clock::now() + 2s);
      say(member, frame);
    }
    CHECK(closes(member, 1s));
  }
  CHECK(log.lines_with("fails authentication") ==
        static_cast<int>(bytes - protocol::kLengthBytes + 1));
  CHECK(server.join() < 1.0);
}

// A stranger who took the place of the store, and passes on what he likes.
TEST_CASE("a client's proof shows no token and is worthless a second time", "[store]") {
  const CapturedLog log;
  const Server server;
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  const auto deadline = Clock::now() + 5s;
  std::string refusal;
  std::jthread client([&] {
    refusal = thrown<StoreRefused>(
        [&] { (void)make_tcp_store("127.0.0.1", port_of(listener), kToken, 5s); });
  });
  FileDescriptor victim;
  while (!victim && Clock::now() < deadline) {
    victim = accept_from(listener);
    std::this_thread::sleep_for(1ms);
  }
  REQUIRE(victim);
  const FileDescriptor first = server.connect();
  say(victim, receive_exactly(first, kGreetingBytes, deadline));
  const std::string proof = receive_exactly(victim, kHelloBytes, deadline);
  CHECK(proof.find(kToken) == std::string::npos);

  const FileDescriptor second = server.connect();
  (void)receive_exactly(second, kGreetingBytes, deadline);
  say(second, proof);
  CHECK(receive_exactly(second, kVerdictBytes, deadline) == AcceptingHandshake::refusal());

  say(victim, std::string(kVerdictBytes, 'x'));  // "accepted", but he cannot prove it
  client.join();
  CHECK_THAT(refusal, Contains("does not know this job's token"));
}

TEST_CASE("what listens there but is no store is named", "[store]") {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::jthread other([&] {
    const auto deadline = Clock::now() + 300ms;
    while (Clock::now() < deadline) {
      if (const FileDescriptor guest = accept_from(listener); guest) {
        say(guest, "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n");
      }
      std::this_thread::sleep_for(1ms);
    }
  });
  CHECK_THAT(
      thrown<Timeout>([&] { (void)make_tcp_store("127.0.0.1", port_of(listener), kToken, 100ms); }),
      Contains("not a dstrain store"));
}

}  // namespace
}  // namespace dstrain
