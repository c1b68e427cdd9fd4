// What an agent keeps for a slow channel: order, turns, and whole lines lost and counted.
#include "launcher/agent/output_queue.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain::launcher {
namespace {

/// What comes out, one entry a message: "3>text", "3!text" (stderr), "3-bytes,lines", "3=code",
/// "*".
std::vector<std::string> all_of(OutputQueue& queue) {
  std::vector<std::string> said;
  FrameReader reader;
  for (std::string frames = queue.take(); !frames.empty(); frames = queue.take()) {
    reader.feed(frames, [&](const Frame& frame) {
      const FromAgent message = decode_from_agent(frame);
      if (const auto* o = std::get_if<Output>(&message)) {
        said.push_back(std::to_string(o->rank) + (o->is_stderr ? "!" : ">") + o->bytes);
      } else if (const auto* d = std::get_if<Dropped>(&message)) {
        said.push_back(std::to_string(d->rank) + "-" + std::to_string(d->bytes) + "," +
                       std::to_string(d->lines));
      } else if (const auto* e = std::get_if<Exited>(&message)) {
        said.push_back(std::to_string(e->rank) + "=" + std::to_string(e->code));
      } else {
        said.emplace_back("*");
      }
    });
  }
  CHECK(queue.empty());
  return said;
}

using Said = std::vector<std::string>;

TEST_CASE("a rank's streams keep their order, its end comes last, the agent's own words first",
          "[launcher][agent]") {
  OutputQueue queue(1000);
  queue.output(3, false, "a");
  queue.output(3, false, "b\n");
  queue.output(3, true, "c\n");
  queue.output(3, false, "d\n");
  queue.say_of_rank(3, Exited{.rank = 3, .code = 9});
  queue.output(1, false, "e\n");
  queue.say(Heartbeat{});
  CHECK(all_of(queue) == Said{"*", "1>e\n", "3>ab\n", "3!c\n", "3>d\n", "3=9"});
}

TEST_CASE("what does not fit is dropped in whole lines and reported in its place",
          "[launcher][agent]") {
  OutputQueue queue(10);
  queue.output(0, false, "one\ntwo\nthree\nfour\n");  // 8 bytes fit in whole lines
  queue.output(0, false, "five\n");
  queue.output(0, true, "said\n");  // the other stream has room of its own
  CHECK(all_of(queue) == Said{"0>one\ntwo\n", "0-16,3", "0!said\n"});
  queue.output(0, false, "six\n");
  CHECK(all_of(queue) == Said{"0>six\n"});
}

TEST_CASE("a line is lost whole or kept whole, in pieces as well", "[launcher][agent]") {
  OutputQueue queue(10);
  SECTION("its beginning is kept, so its end is") {
    queue.output(0, false, "12345678");
    queue.output(0, false, "9abcd\nlost\n");
    CHECK(all_of(queue) == Said{"0>123456789abcd\n", "0-5,1"});
  }
  SECTION("its beginning is lost, so its end is") {
    queue.output(0, false, "1234567\n");
    queue.output(0, false, "abcde");
    CHECK(queue.take().size() > 0);
    queue.output(0, false, "fgh\nnext\n");
    CHECK(all_of(queue) == Said{"0-4,1", "0>next\n"});
  }
  SECTION("it has no end: it is cut") {
    queue.output(0, false, "12345678");
    queue.output(0, false, std::string(kMaxOutputBytes, 'x'));
    queue.output(0, false, "x\nnext\n");
    CHECK(all_of(queue) == Said{"0>12345678\n", "0-65543,2"});
  }
}

TEST_CASE("what is dropped is reported even if nothing follows", "[launcher][agent]") {
  OutputQueue queue(4);
  queue.output(0, false, "abcdef\n");
  CHECK_FALSE(queue.empty());
  CHECK(all_of(queue) == Said{"0-7,1"});
}

TEST_CASE("ranks take turns", "[launcher][agent]") {
  OutputQueue queue(1 << 20);
  queue.output(0, false, std::string(3 * kMaxOutputBytes, 'x'));
  queue.output(5, false, "y");
  const Said said = all_of(queue);
  REQUIRE(said.size() == 4);
  CHECK(said[0].size() == 2 + kMaxOutputBytes);
  CHECK(said[1] == "5>y");
}

}  // namespace
}  // namespace dstrain::launcher
