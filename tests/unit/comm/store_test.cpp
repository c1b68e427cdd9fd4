// The stores as ranks use them: values, waits with deadlines, ranks that start in any order, and
// the sentences of what can go wrong. Strangers are in strangers_test.cpp.
#include "engine/comm/store.h"

#include <array>
#include <chrono>
#include <functional>
#include <thread>

#include <catch2/catch.hpp>

#include "engine/comm/keyed_hash.h"
#include "engine/comm/socket.h"
#include "engine/comm/tcp_store.h"
#include "tests/unit/comm/ranks.h"

namespace dstrain {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += fmt::format("{:02x}", byte);
  }
  return text;
}

void check_store(Store& a, Store& b) {
  a.set("key", "value");
  CHECK(b.get("key", 1s) == "value");
  a.set("key", "other");
  CHECK(b.get("key", 1s) == "other");
  const std::string binary("a\0b\n\xff", 5);
  a.set("binary", binary);
  CHECK(b.get("binary", 1s) == binary);
  a.set("empty", "");
  CHECK(b.get("empty", 1s).empty());
  const std::string large(1 << 20, 'x');
  a.set("large", large);
  CHECK(b.get("large", 1s) == large);
  CHECK(a.add("count", 5) == 5);
  CHECK(b.add("count", -7) == -2);
  CHECK(a.get("count", 1s) == "-2");
  CHECK_THAT(thrown<InternalError>([&] { a.add("empty", 1); }), Contains("empty"));

  const auto start = Clock::now();
  CHECK_THAT(thrown<Timeout>([&] { (void)a.get("absent", 30ms); }), Contains("\"absent\""));
  CHECK(seconds_since(start) >= 0.03);
  CHECK(seconds_since(start) < 2.0);

  // A get that is waiting: answered when the key comes, not at the next look.
  Clock::time_point set_at;
  std::jthread setter([&] {
    std::this_thread::sleep_for(20ms);
    set_at = Clock::now();
    b.set("late", "here");
  });
  CHECK(a.get("late", 5s) == "here");
  CHECK(seconds_since(set_at) < 0.05);
}

/// Caller r's row for `size` callers: entry c names both.
std::string row_of(int rank, int size) {
  std::string row;
  for (int other = 0; other < size; ++other) {
    row += fmt::format("[{:03}>{:03}]", rank, other);
  }
  return row;
}

/// `size` callers, each through a store of its own or all through one.
void check_all_to_all(int size, const std::function<std::shared_ptr<Store>(int)>& store_of) {
  std::vector<std::string> columns(static_cast<std::size_t>(size));
  run_threads(size, [&](int rank) {
    const auto store = store_of(rank);
    const std::string row = row_of(rank, size);
    for (const char* key : {"first", "second"}) {
      const Column column = store->all_to_all(
          {.key = key, .rank = rank, .size = size, .agreed = "all", .row = row}, 30s);
      CHECK(column.missing.empty());
      columns[static_cast<std::size_t>(rank)] += column.entries;
    }
  });
  for (int rank = 0; rank < size; ++rank) {
    std::string expected;
    for (int i = 0; i < 2 * size; ++i) {
      expected += fmt::format("[{:03}>{:03}]", i % size, rank);
    }
    CHECK(columns[static_cast<std::size_t>(rank)] == expected);
  }
}

TEST_CASE("an all-to-all hands each caller its entry of every row", "[store]") {
  const std::shared_ptr<Store> memory = make_memory_store();
  check_all_to_all(64, [&](int) { return memory; });
  TcpStoreServer server("127.0.0.1", 0, "token");
  check_all_to_all(64, [&](int) -> std::shared_ptr<Store> {
    return make_tcp_store("127.0.0.1", server.port(), "token", 5s);
  });
}

/// The error of each of three callers; the last one's call is as given.
std::array<std::string, 3> all_to_all_with_odd_one(Store& store, const AllToAll& odd) {
  std::array<std::string, 3> told;
  run_threads(3, [&](int rank) {
    told[static_cast<std::size_t>(rank)] = thrown<InternalError>([&] {
      if (rank == 2) {
        std::this_thread::sleep_for(30ms);  // the others wait by then
        (void)store.all_to_all(odd, 30s);
      } else {
        (void)store.all_to_all(
            {.key = odd.key, .rank = rank, .size = 3, .agreed = "us", .row = "abc"}, 30s);
      }
    });
  });
  return told;
}

void check_refusals(Store& store) {
  const auto start = Clock::now();
  for (const auto& [odd, why] : {
           std::pair<AllToAll, std::string>{
               {.key = "a", .rank = 2, .size = 3, .agreed = "them", .row = "abc"},
               "rank 2 brings \"them\" and the first rank \"us\""},
           {{.key = "b", .rank = 2, .size = 3, .agreed = "us", .row = "abcdef"},
            "rank 2 brings 6 bytes for 3 ranks"},
           {{.key = "c", .rank = 2, .size = 4, .agreed = "us", .row = "abcd"}, "for 4 ranks"},
           {{.key = "d", .rank = 1, .size = 3, .agreed = "us", .row = "abc"}, "rank 1 came twice"},
       }) {
    for (const std::string& told : all_to_all_with_odd_one(store, odd)) {
      CHECK_THAT(told, Contains(why));
    }
  }
  CHECK(seconds_since(start) < 5.0);
  CHECK_THAT(thrown<InternalError>([&] {
               (void)store.all_to_all({.key = "e", .rank = 0, .size = 3, .row = "abcd"}, 1s);
             }),
             Contains("4 bytes for 3 ranks"));
}

TEST_CASE("an all-to-all whose callers do not agree fails for each of them, at once", "[store]") {
  const auto memory = make_memory_store();
  check_refusals(*memory);
  TcpStoreServer server("127.0.0.1", 0, "token");
  check_refusals(*make_tcp_store("127.0.0.1", server.port(), "token", 2s));
}

TEST_CASE("an all-to-all carries as much as a value, and refuses more", "[store]") {
  TcpStoreServer server("127.0.0.1", 0, "token");
  const auto store = make_tcp_store("127.0.0.1", server.port(), "token", 2s);
  const std::string row(1 << 20, 'x');
  const std::string key(4096, 'k');
  CHECK(store->all_to_all({.key = key, .row = row}, 1s).entries == row);
  CHECK_THAT(thrown<InternalError>(
                 [&] { (void)store->all_to_all({.key = "k", .agreed = "a", .row = row}, 1s); }),
             Contains("1048577 bytes, at most 1048576"));
  // Long lists that differ: the answer is cut to what an answer may be.
  std::string told;
  run_threads(2, [&](int rank) {
    const std::string list(1 << 19, static_cast<char>('a' + rank));
    const std::string message = thrown<InternalError>([&] {
      (void)store->all_to_all({.key = "long", .rank = rank, .size = 2, .agreed = list, .row = "ab"},
                              10s);
    });
    if (rank == 0) told = message;
  });
  CHECK_THAT(told, Contains("aaaa…") && Contains("bbbb…"));
}

TEST_CASE("an all-to-all says at its deadline who has not come", "[store]") {
  const auto memory = make_memory_store();
  TcpStoreServer server("127.0.0.1", 0, "token");
  const auto tcp = make_tcp_store("127.0.0.1", server.port(), "token", 2s);
  for (Store* const store : {memory.get(), tcp.get()}) {
    run_threads(2, [&](int thread) {
      const int rank = 2 * thread;  // 0 and 2 of 4
      const Column column = store->all_to_all(
          {.key = "late", .rank = rank, .size = 4, .agreed = "", .row = "abcd"}, 500ms);
      CHECK(column.entries.empty());
      CHECK(column.missing == std::vector<int>{1, 3});
    });
    // A caller that has given up waiting has still arrived: the others continue without it.
    run_threads(2, [&](int thread) {
      const int rank = 1 + 2 * thread;
      const Column column = store->all_to_all(
          {.key = "late", .rank = rank, .size = 4, .agreed = "", .row = "ABCD"}, 10s);
      CHECK(column.entries == (rank == 1 ? "bBbB" : "dDdD"));
    });
  }
}

TEST_CASE("the in-memory store keeps, waits and counts", "[store]") {
  const auto store = make_memory_store();
  check_store(*store, *store);
}

TEST_CASE("the TCP store keeps, waits and counts for every rank", "[store]") {
  TcpStoreServer server("127.0.0.1", 0, "token");
  REQUIRE(server.port() != 0);
  const auto a = make_tcp_store("127.0.0.1", server.port(), "token", 2s);
  const auto b = make_tcp_store("localhost", server.port(), "token", 2s);
  check_store(*a, *b);
  CHECK_THAT(thrown<Timeout>([&] { (void)a->get("absent", 1ms); }),
             Contains(fmt::format("127.0.0.1:{}", server.port())));
}

TEST_CASE("many threads of many ranks add to one counter", "[store]") {
  TcpStoreServer server("127.0.0.1", 0, "token");
  run_threads(8, [&](int) {
    const auto store = make_tcp_store("127.0.0.1", server.port(), "token", 5s);
    for (int i = 0; i < 100; ++i) {
      store->add("count", 1);
    }
  });
  CHECK(make_tcp_store("127.0.0.1", server.port(), "token", 5s)->add("count", 0) == 800);
}

TEST_CASE("a long get of one thread does not hold up another", "[store]") {
  TcpStoreServer server("127.0.0.1", 0, "token");
  const auto store = make_tcp_store("127.0.0.1", server.port(), "token", 2s);
  std::jthread waiting([&] { CHECK(store->get("answer", 10s) == "42"); });
  std::this_thread::sleep_for(10ms);
  const auto start = Clock::now();
  store->set("answer", "42");
  CHECK(seconds_since(start) < 1.0);
}

TEST_CASE("ranks may start before the store", "[store]") {
  const std::uint16_t port = port_of(listen_on("127.0.0.1", 0));  // free again at once
  std::jthread early([&] {
    const auto store = make_tcp_store("127.0.0.1", port, "token", 5s);
    store->set("early", "yes");
  });
  std::this_thread::sleep_for(50ms);
  TcpStoreServer server("127.0.0.1", port, "token");
  CHECK(make_tcp_store("127.0.0.1", port, "token", 5s)->get("early", 5s) == "yes");
}

TEST_CASE("a store that nobody serves is a Timeout that says so", "[store]") {
  const std::uint16_t port = port_of(listen_on("127.0.0.1", 0));
  const auto start = Clock::now();
  const std::string message =
      thrown<Timeout>([&] { (void)make_tcp_store("127.0.0.1", port, "token", 100ms); });
  CHECK_THAT(message, Contains(fmt::format("127.0.0.1:{}", port)) && Contains("rank 0") &&
                          Contains("refused"));
  CHECK(seconds_since(start) < 1.0);
}

TEST_CASE("the end of the server is PeerLost, at once, for waiting clients too", "[store]") {
  auto server = std::make_unique<TcpStoreServer>("127.0.0.1", 0, "token");
  const auto store = make_tcp_store("127.0.0.1", server->port(), "token", 100ms);
  std::jthread ender([&] {
    std::this_thread::sleep_for(30ms);
    server.reset();
  });
  const auto start = Clock::now();
  CHECK_THAT(thrown<PeerLost>([&] { (void)store->get("never", 30s); }),
             Contains("never") && Contains("rank 0"));
  // And for a call that would want a new connection.
  CHECK_THAT(thrown<PeerLost>([&] { (void)store->add("count", 1); }),
             Contains("add of key \"count\"") && Contains("refused"));
  CHECK(seconds_since(start) < 2.0);
}

TEST_CASE("a port in use is named; one in TIME_WAIT is not in use", "[store]") {
  auto first = std::make_unique<TcpStoreServer>("127.0.0.1", 0, "token");
  const std::uint16_t port = first->port();
  try {
    TcpStoreServer second("127.0.0.1", port, "token");
    FAIL("two servers on one port");
  } catch (const PortInUse& failure) {
    CHECK(failure.port() == port);
    CHECK(failure.host() == "127.0.0.1");
    CHECK_THAT(failure.what(), Contains(std::to_string(port)) && Contains("in use"));
  }
  const auto client = make_tcp_store("127.0.0.1", port, "token", 2s);
  first.reset();  // closes the client's connection first, which leaves TIME_WAIT on this side
  CHECK_NOTHROW(TcpStoreServer("127.0.0.1", port, "token"));
}

TEST_CASE("a host that does not exist is named", "[store]") {
  CHECK_THAT(thrown<Timeout>([] { (void)make_tcp_store("no-such-host.invalid", 1, "t", 20ms); }),
             Contains("no-such-host.invalid"));
}

TEST_CASE("HMAC-SHA-256 gives the published values", "[store]") {
  // RFC 4231, cases 1, 2 and 6.
  CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(hmac_sha256(std::string(131, '\xaa'),
                        "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(equal_in_constant_time("same", "same"));
  CHECK_FALSE(equal_in_constant_time("same", "sane"));
  CHECK_FALSE(equal_in_constant_time("same", "sam"));
}

}  // namespace
}  // namespace dstrain
