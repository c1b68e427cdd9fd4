// An attacker between two ranks, or at their ports, changes, drops, repeats, moves, reflects and
// relays messages, or sends arbitrary ones. A group gives the right digits or none.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include <catch2/catch.hpp>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "engine/comm/handshake.h"
#include "engine/comm/link_frames.h"
#include "engine/comm/socket.h"
#include "tests/harness/captured_log.h"
#include "tests/unit/comm/ranks.h"

namespace dstrain {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using State = DialingHandshake::State;

constexpr std::string_view kMagic = "testing\x01";

/// The results of the dialing end, which means `dialed`, and the accepting end, which means
/// `accepted`.
State shake_hands(const std::string& dialer_secret,
                  const std::string& dialed,
                  const std::string& acceptor_secret,
                  const std::string& accepted) {
  AcceptingHandshake acceptor(kMagic);
  DialingHandshake dialer(kMagic, dialer_secret, dialed, 1);
  CHECK(dialer.take(acceptor.greeting()) == State::kVerdict);
  CHECK(acceptor.take(dialer.hello()));
  CHECK(acceptor.caller() == 1);
  const auto keys = acceptor.judge(acceptor_secret, accepted);
  return dialer.take(keys ? AcceptingHandshake::verdict(*keys) : AcceptingHandshake::refusal());
}

TEST_CASE("a handshake succeeds for one secret and one subject", "[comm][wire]") {
  CHECK(shake_hands("secret", "rank 1 to 0", "secret", "rank 1 to 0") == State::kDone);
  CHECK(shake_hands("secret", "rank 1 to 0", "another", "rank 1 to 0") == State::kRefused);
  // Passed on by somebody in between, to another rank, or to the same in another group.
  CHECK(shake_hands("secret", "rank 1 to 0", "secret", "rank 1 to 2") == State::kRefused);
}

TEST_CASE("what one handshake said is worth nothing in another", "[comm][wire]") {
  AcceptingHandshake first(kMagic);
  DialingHandshake dialer(kMagic, "secret", "pair", 1);
  (void)dialer.take(first.greeting());
  AcceptingHandshake second(kMagic);  // replayed: it has a nonce of its own
  CHECK(second.take(dialer.hello()));
  CHECK_FALSE(second.judge("secret", "pair"));
  // Reflected: the dialer's own proof in place of the acceptor's.
  CHECK(dialer.take(dialer.hello().substr(kHelloBytes - kVerdictBytes)) == State::kImpostor);
}

TEST_CASE("every changed byte of a handshake ends it", "[comm][wire]") {
  for (std::size_t at = 0; at < kGreetingBytes + kHelloBytes + kVerdictBytes; ++at) {
    INFO("byte " << at);
    AcceptingHandshake acceptor(kMagic);
    DialingHandshake dialer(kMagic, "secret", "pair", 1);
    std::size_t passed = 0;
    const auto relay = [&](std::string text) {
      if (at >= passed && at < passed + text.size()) {
        text[at - passed] = static_cast<char>(text[at - passed] ^ 0x01);
      }
      passed += text.size();
      return text;
    };
    if (dialer.take(relay(acceptor.greeting())) != State::kVerdict) {
      continue;  // the magic
    }
    const bool understood = acceptor.take(relay(dialer.hello()));
    const auto keys = understood ? acceptor.judge("secret", "pair") : std::nullopt;
    const bool is_caller = at >= kGreetingBytes + kMagicBytes &&
                           at < kGreetingBytes + kMagicBytes + sizeof(std::uint32_t);
    if (is_caller) {  // the subject names the rank: see peer_meeting.cpp
      CHECK(acceptor.caller() != 1);
      continue;
    }
    CHECK(keys.has_value() == (at >= kGreetingBytes + kHelloBytes));
    if (keys) {
      CHECK(dialer.take(relay(AcceptingHandshake::verdict(*keys))) == State::kImpostor);
    }
  }
}

/// Takes frames of channel 0 that lie one behind the other, up to its size.
class Shelf final : public FrameSink {
 public:
  std::byte* place_for(const FrameHeader& header) override {
    if (header.channel != 0 || header.offset < 0 ||
        header.offset + header.bytes > static_cast<std::int64_t>(bytes.size())) {
      throw FrameRefused("it fits nowhere");
    }
    return bytes.data() + header.offset;
  }
  void arrived(const FrameHeader& header) override { frames.push_back(header.offset); }

  std::array<std::byte, 64> bytes{};
  std::vector<std::int64_t> frames;
};

/// Three frames of 8 bytes, with their tags.
std::vector<std::string> three_frames(Sealing sealing, const WireKey& key) {
  FrameWriter writer(FrameSeal(sealing, key, FrameSeal::End::kSeals), 8);
  std::array<std::uint64_t, 3> payload{111, 222, 333};
  std::vector<std::string> frames;
  for (std::int64_t i = 0; i < 3; ++i) {
    writer.add({.channel = 0, .bytes = 8, .offset = 8 * i}, &payload[static_cast<std::size_t>(i)],
               nullptr);
    std::string& frame = frames.emplace_back();
    while (!writer.empty()) {  // in pieces, as a full socket takes them
      for (const iovec& part : writer.next()) {
        if (part.iov_len > 0) {
          frame.append(static_cast<const char*>(part.iov_base), 1);
          writer.sent(1);
          break;
        }
      }
    }
  }
  return frames;
}

/// How many frames were believed, once `text` was read in pieces of `step` bytes.
std::size_t believed(
    Shelf& shelf, Sealing sealing, const WireKey& key, std::string_view text, std::size_t step) {
  FrameReader reader(shelf, FrameSeal(sealing, key, FrameSeal::End::kOpens));
  try {
    while (!text.empty()) {
      std::size_t left = std::min(step, text.size());
      std::size_t took = 0;
      for (const iovec& part : reader.room()) {
        const std::size_t bytes = std::min(left, part.iov_len);
        if (bytes > 0) {
          std::memcpy(part.iov_base, text.data() + took, bytes);
        }
        took += bytes;
        left -= bytes;
      }
      reader.took(took);
      text.remove_prefix(took);
    }
  } catch (const FrameRefused&) {
  }
  return shelf.frames.size();
}

TEST_CASE("frames that were changed, cut, dropped, repeated, moved or reflected are not believed",
          "[comm][wire]") {
  WireKey key{};
  key.fill(7);
  WireKey other = key;
  other[31] ^= 1;
  for (const Sealing sealing : {Sealing::kAuthenticated, Sealing::kEncrypted}) {
    const std::vector<std::string> frames = three_frames(sealing, key);
    const std::string all = frames[0] + frames[1] + frames[2];
    for (const std::size_t step : {1u, 7u, 1000u}) {
      Shelf shelf;
      CHECK(believed(shelf, sealing, key, all, step) == 3);
      std::array<std::uint64_t, 3> got{};
      std::memcpy(got.data(), shelf.bytes.data(), sizeof got);
      CHECK(got == std::array<std::uint64_t, 3>{111, 222, 333});
    }
    for (std::size_t at = 0; at < all.size(); ++at) {
      for (const int bit : {0x01, 0x80}) {
        Shelf shelf;
        std::string changed = all;
        changed[at] = static_cast<char>(changed[at] ^ bit);
        CHECK(believed(shelf, sealing, key, changed, 1000) == at / frames[0].size());
      }
      Shelf shelf;
      CHECK(believed(shelf, sealing, key, all.substr(0, at), 1000) == at / frames[0].size());
    }
    const auto count = [&](const std::string& text) {
      Shelf shelf;
      return believed(shelf, sealing, key, text, 1000);
    };
    CHECK(count(frames[0] + frames[2]) == 1);
    CHECK(count(frames[0] + frames[0]) == 1);
    CHECK(count(frames[1] + frames[0]) == 0);
    Shelf shelf;
    CHECK(believed(shelf, sealing, other, all, 1000) == 0);  // the other direction's key
  }
}

/// Where a listener is, in what ranks tell each other: behind 24 bytes, 52 for each rank.
constexpr std::size_t kEntryBytes = 52;
constexpr std::size_t kPortAt = 24 + offsetof(sockaddr_in, sin_port);

/// A store that tells rank 1 of another port to reach rank 0 at.
class MisleadingStore final : public Store {
 public:
  using Replace = std::function<std::uint16_t(std::uint16_t)>;
  MisleadingStore(Store& inner, Replace replace) : inner_(inner), replace_(std::move(replace)) {}
  void set(std::string_view key, std::string_view value) override { inner_.set(key, value); }
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    return inner_.get(key, timeout);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return inner_.add(key, amount);
  }
  Column all_to_all(const AllToAll& call, std::chrono::milliseconds timeout) override {
    Column column = inner_.all_to_all(call, timeout);
    if (call.rank == 1 && column.entries.size() == 2 * kEntryBytes) {
      std::uint16_t port = 0;
      std::memcpy(&port, column.entries.data() + kPortAt, sizeof port);
      port = htons(replace_(ntohs(port)));
      std::memcpy(column.entries.data() + kPortAt, &port, sizeof port);
    }
    return column;
  }

 private:
  Store& inner_;
  Replace replace_;
};

/// Passes on what rank 1 and rank 0 say on the first connection, with one byte of one direction
/// changed; later connections as they are.
class Relay {
 public:
  Relay(std::size_t change_at, bool towards_acceptor)
      : change_at_(change_at),
        towards_acceptor_(towards_acceptor),
        listener_(listen_on("127.0.0.1", 0)) {}
  std::uint16_t start(std::uint16_t target) {
    thread_ = std::jthread([this, target](const std::stop_token& stop) { serve(stop, target); });
    return port_of(listener_);
  }
  /// How many bytes went the way that is changed, on the first connection.
  [[nodiscard]] std::size_t passed() const { return passed_; }

 private:
  void serve(const std::stop_token& stop, std::uint16_t target) {
    std::vector<std::array<FileDescriptor, 2>> pairs;  // dialer's, acceptor's
    while (!stop.stop_requested()) {
      std::vector<pollfd> entries{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      for (const auto& pair : pairs) {
        for (const FileDescriptor& end : pair) {
          entries.push_back({.fd = end.get(), .events = POLLIN, .revents = 0});
        }
      }
      (void)poll(entries.data(), entries.size(), 5);
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        for (std::size_t from = 0; from < 2; ++from) {
          if (entries[1 + 2 * i + from].revents != 0) {
            pass(pairs[i], from, i == 0);
          }
        }
      }
      if (FileDescriptor dialer = accept_from(listener_); dialer) {
        try {
          pairs.push_back({std::move(dialer), connect_to("127.0.0.1", target, Clock::now() + 2s)});
        } catch (const std::runtime_error&) {  // it listens no more: neither does this
          listener_ = FileDescriptor();
        }
      }
    }
  }
  void pass(std::array<FileDescriptor, 2>& pair, std::size_t from, bool first) {
    std::array<char, 4096> bytes;
    const ssize_t got = recv(pair[from].get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) {
      pair = {};
      return;
    }
    const auto count = static_cast<std::size_t>(got);
    if (first && (from == 0) == towards_acceptor_) {
      if (change_at_ >= passed_ && change_at_ < passed_ + count) {
        char& byte = bytes[change_at_ - passed_];
        byte = static_cast<char>(byte ^ 0x10);
      }
      passed_ += count;
    }
    (void)send(pair[1 - from].get(), bytes.data(), count, MSG_NOSIGNAL);
  }

  const std::size_t change_at_;
  const bool towards_acceptor_;
  FileDescriptor listener_;
  std::atomic<std::size_t> passed_{0};
  std::jthread thread_;
};

/// Two ranks sum over TCP by way of `store`. Their sums, or what they threw.
struct Outcome {
  std::array<std::vector<float>, 2> sums;
  std::array<std::string, 2> failures;
};
Outcome sum_between_two(Store& plain, Store& misleading, WireSecurity security) {
  Outcome outcome;
  run_threads(2, [&](int rank) {
    const auto place = static_cast<std::size_t>(rank);
    outcome.failures[place] = thrown<std::exception>([&] {
      const auto rendezvous = make_process_rendezvous(
          rank, 2, rank == 1 ? misleading : plain,
          {.wire = wire_here(HostPath::kTcp, security), .timeout = 100ms, .connect_timeout = 2s});
      const auto group = rendezvous->make_group("world", everyone(2));
      InlineStream stream;
      std::vector<float> values{1.0f + static_cast<float>(rank), -5.0f, 0.25f};
      const Tensor tensor(values.data(), DType::kF32, Shape{3});
      group->all_reduce(tensor, ReduceOp::kSum, Purpose::kGradient, stream);
      outcome.sums[place] = values;
    });
  });
  return outcome;
}

TEST_CASE("a byte changed between two ranks ends the group or nothing, never as other digits",
          "[comm][wire]") {
  const testing::CapturedLog log;
  const std::vector<float> right{3.0f, -10.0f, 0.5f};
  for (const WireSecurity security : {WireSecurity::kAuthenticated, WireSecurity::kEncrypted}) {
    for (const bool towards_acceptor : {true, false}) {
      std::size_t passed = 1;
      int ended = 0;
      int named = 0;
      // The handshake is the same in both.
      const std::size_t handshake = towards_acceptor ? kHelloBytes : kGreetingBytes + kVerdictBytes;
      const std::size_t first = security == WireSecurity::kEncrypted ? handshake : 0;
      constexpr std::size_t kNothing = std::size_t{1} << 20;
      for (std::size_t at = kNothing; at == kNothing || at < passed;
           at = at == kNothing ? first : at + 1) {
        const auto memory = make_memory_store();
        Relay relay(at, towards_acceptor);
        MisleadingStore misleading(*memory, [&](std::uint16_t port) { return relay.start(port); });
        const Outcome outcome = sum_between_two(*memory, misleading, security);
        passed = std::max(passed, relay.passed());
        INFO("byte " << at << ", towards the acceptor: " << towards_acceptor << ": "
                     << outcome.failures[0] << " / " << outcome.failures[1]);
        for (std::size_t rank = 0; rank < 2; ++rank) {
          const bool failed = !outcome.failures[rank].empty();
          CHECK((failed || outcome.sums[rank] == right));
        }
        const std::string told = outcome.failures[0] + outcome.failures[1];
        CHECK((at != kNothing || told.empty()));
        ended += !told.empty();
        named += told.find("fails authentication") != std::string::npos;
      }
      // One frame carries the operation, its head and its payload: 16 + 64 + 12 + 16 bytes.
      CHECK(passed >= handshake + 108);
      CHECK(ended >= 108 - 16);  // whoever is done leaves; what follows its last frame may be lost
      CHECK(named >= 76 + 16);   // the head, the payload, the tag
    }
  }
}

TEST_CASE("strangers at a group's port cost it neither digits nor time", "[comm][wire]") {
  const testing::CapturedLog log;
  const auto memory = make_memory_store();
  std::vector<FileDescriptor> strangers;
  const auto flood = [&](std::uint16_t port) {
    const auto deadline = Clock::now() + 2s;
    for (int i = 0; i < 300; ++i) {
      strangers.push_back(connect_to("127.0.0.1", port, deadline));
      const std::string_view words = i % 3 == 0   ? "GET / HTTP/1.1\r\n\r\n"
                                     : i % 3 == 1 ? "dslink \x01 half a hello"
                                                  : "";
      send_all(strangers.back(), words, deadline);
    }
    return port;
  };
  MisleadingStore store(*memory, flood);
  const auto start = Clock::now();
  const Outcome outcome = sum_between_two(*memory, store, WireSecurity::kAuthenticated);
  CHECK(outcome.failures[0].empty());
  CHECK(outcome.failures[1].empty());
  CHECK(outcome.sums[0] == std::vector<float>{3.0f, -10.0f, 0.5f});
  CHECK(outcome.sums[1] == outcome.sums[0]);
  CHECK(Clock::now() - start < 3s);
  CHECK(log.lines_with("turned a stranger away") == 1);
  CHECK(log.lines_with("turned strangers away count=") == 1);
}

TEST_CASE("a rank with another secret, or other security, does not join", "[comm][wire]") {
  const testing::CapturedLog log;
  const bool differs_in_secret = GENERATE(true, false);
  const auto memory = make_memory_store();
  std::array<std::string, 2> failures;
  run_threads(2, [&](int rank) {
    WireOptions wire = wire_here(HostPath::kTcp);
    if (rank == 1) {
      wire.secret += differs_in_secret ? "?" : "";
      wire.security = differs_in_secret ? wire.security : WireSecurity::kTrusted;
    }
    failures[static_cast<std::size_t>(rank)] = thrown<std::exception>([&] {
      (void)make_process_rendezvous(rank, 2, *memory, {.wire = wire, .connect_timeout = 300ms})
          ->make_group("world", everyone(2));
    });
  });
  if (differs_in_secret) {
    CHECK_THAT(failures[0], Contains("rank 1 of the job") && Contains("did not connect"));
    // By then rank 0 may have given up and stopped listening.
    CHECK_THAT(failures[1], Contains("cannot connect to rank 0"));
    CHECK(log.lines_with("wrong secret") == 1);
  } else {
    CHECK_THAT(failures[0], Contains("\"authenticated\"") && Contains("\"trusted\""));
  }
}

}  // namespace
}  // namespace dstrain
