#include <algorithm>
#include <utility>

#include <catch2/catch.hpp>

#include "engine/plan/schedule.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Kind = Action::Kind;
using Catch::Matchers::Contains;
using Direction = Message::Direction;
using What = Message::What;

Schedule two_ranks() {
  return make_schedule(PipelineOrder::kOneForwardOneBackward, 2, 1, 2);
}

Schedule interleaved() {
  return make_schedule(PipelineOrder::kInterleaved, 2, 2, 4);
}

/// Index of the action of a rank with this text.
std::size_t find(const Schedule& schedule, std::size_t rank, const std::string& text) {
  const auto& actions = schedule.ranks[rank];
  const auto found = std::find_if(actions.begin(), actions.end(), [&](const Action& action) {
    return to_text(schedule, action) == text;
  });
  REQUIRE(found != actions.end());
  return static_cast<std::size_t>(found - actions.begin());
}

Action& at(Schedule& schedule, std::size_t rank, const std::string& text) {
  return schedule.ranks[rank][find(schedule, rank, text)];
}

void erase(Schedule& schedule, std::size_t rank, const std::string& text) {
  auto& actions = schedule.ranks[rank];
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(find(schedule, rank, text)));
}

void swap(Schedule& schedule, std::size_t rank, const std::string& a, const std::string& b) {
  std::swap(at(schedule, rank, a), at(schedule, rank, b));
}

Action compute(Kind kind, int micro_batch) {
  return {.kind = kind, .chunk = 0, .micro_batch = micro_batch};
}

Action exchange(std::vector<Message> messages) {
  return {.kind = Kind::kExchange, .chunk = 0, .micro_batch = 0, .messages = std::move(messages)};
}

#define CHECK_REFUSED(schedule, what) \
  CHECK_THROWS_WITH(validate(schedule), Contains("pipeline schedule: ") && Contains(what))

TEST_CASE("a schedule with two actions swapped is refused", "[plan][schedule]") {
  SECTION("forwards") {
    Schedule schedule = two_ranks();
    swap(schedule, 0, "F0", "F1");
    CHECK_REFUSED(schedule,
                  "rank 0, action 1 (send activation of F0 to rank 1) sends what was not the last "
                  "to be computed");
  }
  SECTION("a backward before its forward") {
    Schedule schedule = two_ranks();
    swap(schedule, 1, "F0", "B0");
    CHECK_REFUSED(schedule, "rank 1, action 1 (B0) comes before its forward");
  }
  SECTION("an exchange and the forward that needs it") {
    Schedule schedule = two_ranks();
    swap(schedule, 1, "receive activation of F0 from rank 0", "F0");
    CHECK_REFUSED(schedule, "rank 1, action 0 (F0) computes with an input that has not come");
  }
  SECTION("the chunks of an interleaved rank") {
    Schedule schedule = interleaved();
    swap(schedule, 0, "F0.1", "F2.0");
    CHECK_REFUSED(schedule,
                  "rank 0, action 5 (send activation of F0.1 to rank 1, receive activation of "
                  "F1.1 from rank 1) sends what was not the last to be computed");
  }
  SECTION("a single rank's chunks") {
    Schedule schedule = make_schedule(PipelineOrder::kInterleaved, 1, 2, 1);
    swap(schedule, 0, "F0.0", "F0.1");
    CHECK_REFUSED(schedule, "rank 0, action 0 (F0.1) computes with an input that has not come");
  }
}

TEST_CASE("a schedule that lost a message is refused", "[plan][schedule]") {
  Schedule schedule = two_ranks();
  SECTION("a send, where the next output overwrites it") {
    erase(schedule, 0, "send activation of F0 to rank 1");
    CHECK_REFUSED(schedule, "rank 0, action 1 (F1) overwrites an output that is still to be sent");
  }
  SECTION("the last send") {
    erase(schedule, 1, "send gradient of B1 to rank 0");
    CHECK_REFUSED(schedule, "rank 1 ends with a message that it has not sent");
  }
  SECTION("a receive") {
    erase(schedule, 0, "receive gradient of B1 from rank 1");
    CHECK_REFUSED(schedule, "rank 0, action 5 (B1) computes with an input that has not come");
  }
  SECTION("one of two in an exchange") {
    at(schedule, 0, "send activation of F1 to rank 1, receive gradient of B0 from rank 1")
        .messages.pop_back();
    CHECK_REFUSED(schedule, "rank 0, action 4 (B0) computes with an input that has not come");
  }
}

TEST_CASE("a schedule in which a micro-batch is missing or comes twice is refused",
          "[plan][schedule]") {
  Schedule schedule = two_ranks();
  SECTION("forward twice") {
    schedule.ranks[0].insert(schedule.ranks[0].begin() + 2, compute(Kind::kForward, 0));
    CHECK_REFUSED(schedule, "rank 0, action 2 (F0) has been done before");
  }
  SECTION("back twice") {
    schedule.ranks[0].push_back(compute(Kind::kBackward, 1));
    CHECK_REFUSED(schedule, "rank 0, action 7 (B1) has been done before");
  }
  SECTION("never back") {
    schedule.ranks[0].pop_back();
    CHECK_REFUSED(schedule, "rank 0 never takes micro-batch 1 back through chunk 0");
  }
  SECTION("never forward") {
    schedule = make_schedule(PipelineOrder::kGpipe, 1, 1, 2);
    erase(schedule, 0, "F1");
    erase(schedule, 0, "B1");
    CHECK_REFUSED(schedule, "rank 0 never takes micro-batch 1 forward through chunk 0");
  }
  SECTION("one that there is not") {
    at(schedule, 0, "F1").micro_batch = 2;
    CHECK_REFUSED(schedule, "rank 0, action 2 (F2) names a chunk or micro-batch that there is not");
  }
  SECTION("a rank is missing") {
    schedule.ranks.pop_back();
    CHECK_REFUSED(schedule, "1 ranks are described, of 2");
  }
}

TEST_CASE("micro-batches that go together past a neighbour, twice or beyond the last are refused",
          "[plan][schedule]") {
  const auto refused = [](Schedule schedule, std::size_t action, int together, const char* why) {
    schedule.ranks[0][action].together = together;
    CHECK_THROWS_WITH(validate(schedule), Contains(why));
  };
  const Schedule vertical = make_schedule(PipelineOrder::kVertical, 1, 1, 4);
  refused(vertical, 0, 5, "names a chunk or micro-batch that there is not");
  refused(vertical, 0, 3, "B0-3) comes before its forward");
  refused(vertical, 1, 3, "never takes micro-batch 3 back through chunk 0");
  refused(make_schedule(PipelineOrder::kOneForwardOneBackward, 2, 1, 2), 0, 2,
          "takes micro-batches together that other stages wait for one by one");
}

TEST_CASE("a message to the wrong place is refused", "[plan][schedule]") {
  SECTION("another rank") {
    Schedule schedule = make_schedule(PipelineOrder::kGpipe, 3, 1, 1);
    at(schedule, 0, "send activation of F0 to rank 1, receive gradient of B0 from rank 1")
        .messages[0]
        .peer = 2;
    CHECK_REFUSED(schedule, "is with a rank that does not hold the neighbouring stage");
  }
  SECTION("beyond the last stage") {
    Schedule schedule = two_ranks();
    schedule.ranks[1].push_back(exchange({{.direction = Direction::kSend,
                                           .what = What::kActivation,
                                           .peer = 0,
                                           .chunk = 0,
                                           .micro_batch = 1}}));
    CHECK_REFUSED(schedule, "rank 1, action 7 (send activation of F1 to rank 0) crosses no");
  }
  SECTION("over an input that still waits") {
    Schedule schedule = two_ranks();
    swap(schedule, 1, "F0", "send gradient of B0 to rank 0, receive activation of F1 from rank 0");
    at(schedule, 1, "send gradient of B0 to rank 0, receive activation of F1 from rank 0")
        .messages.erase(schedule.ranks[1][1].messages.begin());
    CHECK_REFUSED(schedule, "receives over an input that is still to be used");
  }
  SECTION("of something used before") {
    Schedule schedule = two_ranks();
    schedule.ranks[1].push_back(schedule.ranks[1][0]);
    CHECK_REFUSED(schedule, "rank 1 ends with a message that it has not used");
  }
  SECTION("nowhere") {
    Schedule schedule = two_ranks();
    schedule.ranks[0].push_back(exchange({}));
    CHECK_REFUSED(schedule, "rank 0, action 7 (an exchange of nothing) has no messages");
  }
}

// From here on each rank by itself is right.

TEST_CASE("ranks that take micro-batches in different orders are refused", "[plan][schedule]") {
  Schedule schedule = two_ranks();
  for (Action& action : schedule.ranks[1]) {
    action.micro_batch = action.kind == Kind::kExchange ? 0 : 1 - action.micro_batch;
    for (Message& message : action.messages) {
      message.micro_batch = 1 - message.micro_batch;
    }
  }
  CHECK_REFUSED(schedule,
                "rank 0, action 1 (send activation of F0 to rank 1) meets rank 1, action 0 "
                "(receive activation of F1 from rank 0)");
}

/// Puts the messages of one exchange in front of those of a later one.
void merge(Schedule& schedule, std::size_t rank, const std::string& text, const std::string& into) {
  const std::vector<Message> moved = at(schedule, rank, text).messages;
  auto& messages = at(schedule, rank, into).messages;
  messages.insert(messages.begin(), moved.begin(), moved.end());
  erase(schedule, rank, text);
}

TEST_CASE("what one exchange sends to a rank must meet one exchange there, in the same order",
          "[plan][schedule]") {
  // Rank 0 sends rank 1 an activation and a gradient in one exchange.
  Schedule schedule = interleaved();
  merge(schedule, 0, "send activation of F2.0 to rank 1",
        "send gradient of B0.1 to rank 1, receive gradient of B1.1 from rank 1");
  const std::string merged =
      "send activation of F2.0 to rank 1, send gradient of B0.1 to rank 1, receive gradient of "
      "B1.1 from rank 1";
  SECTION("which receives them in two") {
    CHECK_REFUSED(schedule,
                  "(" + merged + "): this meets two exchanges of rank 1, actions 10 and 12");
  }
  SECTION("which receives them in one") {
    merge(schedule, 1, "receive activation of F2.0 from rank 0",
          "send gradient of B1.1 to rank 0, receive gradient of B0.0 from rank 0");
    CHECK_NOTHROW(validate(schedule));
    auto& messages = at(schedule, 0, merged).messages;
    std::swap(messages[0], messages[1]);
    CHECK_REFUSED(schedule, "which is another message");
  }
  SECTION("and another that receives in one what is sent in two") {
    schedule = interleaved();
    merge(schedule, 1, "receive activation of F2.0 from rank 0",
          "send gradient of B1.1 to rank 0, receive gradient of B0.0 from rank 0");
    CHECK_REFUSED(schedule, "this meets two exchanges of rank 0, actions 10 and 12");
  }
}

TEST_CASE("a schedule that cannot be run has no idle share", "[plan][schedule]") {
  Schedule schedule = two_ranks();
  erase(schedule, 0, "send activation of F0 to rank 1");
  CHECK_THROWS_WITH(idle_share(schedule, 1, 2),
                    Contains("rank 0 sends 1 message(s) to rank 1, which receives 2"));
}

TEST_CASE("a schedule that waits for ever is refused, with all that wait", "[plan][schedule]") {
  // Rank 0 wants to be rid of both activations before it takes a gradient; rank 1 wants to be rid
  // of the first gradient before it takes the second activation.
  constexpr auto kSend = Direction::kSend;
  constexpr auto kReceive = Direction::kReceive;
  constexpr auto kActivation = What::kActivation;
  constexpr auto kGradient = What::kGradient;
  Schedule schedule = two_ranks();
  schedule.ranks[0] = {compute(Kind::kForward, 0),
                       exchange({{kSend, kActivation, 1, 0, 0}}),
                       compute(Kind::kForward, 1),
                       exchange({{kSend, kActivation, 1, 0, 1}}),
                       exchange({{kReceive, kGradient, 1, 0, 0}}),
                       compute(Kind::kBackward, 0),
                       exchange({{kReceive, kGradient, 1, 0, 1}}),
                       compute(Kind::kBackward, 1)};
  schedule.ranks[1] = {exchange({{kReceive, kActivation, 0, 0, 0}}),
                       compute(Kind::kForward, 0),
                       compute(Kind::kBackward, 0),
                       exchange({{kSend, kGradient, 0, 0, 0}}),
                       exchange({{kReceive, kActivation, 0, 0, 1}}),
                       compute(Kind::kForward, 1),
                       compute(Kind::kBackward, 1),
                       exchange({{kSend, kGradient, 0, 0, 1}})};
  CHECK_REFUSED(schedule,
                "these wait for each other for ever: rank 0, action 3 (send activation of F1 to "
                "rank 1); rank 1, action 3 (send gradient of B0 to rank 0)");
  // One exchange for the two messages that cross, and all is well.
  schedule.ranks[0][3].messages.push_back(schedule.ranks[0][4].messages[0]);
  schedule.ranks[0].erase(schedule.ranks[0].begin() + 4);
  schedule.ranks[1][3].messages.push_back(schedule.ranks[1][4].messages[0]);
  schedule.ranks[1].erase(schedule.ranks[1].begin() + 4);
  CHECK_NOTHROW(validate(schedule));
}

TEST_CASE("a schedule that only goes forward is refused with a backward, or without a forward",
          "[plan][schedule]") {
  Schedule schedule = make_schedule(PipelineOrder::kForward, 1, 1, 2);
  schedule.ranks[0].push_back(compute(Kind::kBackward, 0));
  CHECK_REFUSED(schedule, "goes back where all only goes forward");
  schedule.ranks[0] = {compute(Kind::kForward, 0)};
  CHECK_REFUSED(schedule, "never takes micro-batch 1 forward");
}

}  // namespace
}  // namespace dstrain
