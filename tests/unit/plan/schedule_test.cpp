#include "engine/plan/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <catch2/catch.hpp>

#include "engine/plan/schedule_play.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr auto kGpipe = PipelineOrder::kGpipe;
constexpr auto k1f1b = PipelineOrder::kOneForwardOneBackward;
constexpr auto kInterleaved = PipelineOrder::kInterleaved;

/// Every schedule of up to 8 ranks, 4 chunks and 16 micro-batches.
template <typename Visit>
void for_each_schedule(Visit visit) {
  for (const PipelineOrder order : {kGpipe, k1f1b, kInterleaved}) {
    for (int p = 1; p <= 8; ++p) {
      for (int v = 1; v <= 4; ++v) {
        for (int m = 1; m <= 16; ++m) {
          if (!why_not(order, p, v, m)) {
            visit(make_schedule(order, p, v, m));
          }
        }
      }
    }
  }
}

/// One line a rank against time, a backward twice as long as a forward. The schedule must be valid.
///   rank 0: F0 F1       B0--- F2 B1--- F3 B2---    B3---
///   rank 1:    F0 B0--- F1 B1--- F2 B2--- F3 B3---
std::string figure_of(const Schedule& schedule) {
  constexpr double kForwardCells = 1;
  constexpr double kBackwardCells = 2;
  constexpr std::size_t kCell = 3;  // characters: "F0 "
  const Arrivals arrivals = play(schedule, kForwardCells, kBackwardCells);
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::string line;
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      if (action.kind != Action::Kind::kExchange) {
        line.resize(static_cast<std::size_t>(arrivals[rank].at(i)) * kCell, ' ');
        line += to_text(schedule, action);
        line += action.kind == Action::Kind::kBackward ? "---" : "";
      }
    }
    text += fmt::format("rank {}: {}\n", rank, line);
  }
  return text;
}

std::string shape(const Schedule& s) {
  return fmt::format("{} p={} v={} m={}", name_of(s.order), s.pipeline_ranks, s.chunks,
                     s.micro_batches);
}

/// Most micro-batches in flight at once on a rank, over all its chunks.
int most_in_flight(const Schedule& schedule, int rank) {
  int now = 0;
  int most = 0;
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
    now += action.kind == Action::Kind::kForward    ? 1
           : action.kind == Action::Kind::kBackward ? -1
                                                    : 0;
    most = std::max(most, now);
  }
  return most;
}

/// Actions of one rank, one a line.
std::vector<std::string> lines_of(const Schedule& schedule, int rank) {
  std::vector<std::string> lines;
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
    lines.push_back(to_text(schedule, action));
  }
  return lines;
}

TEST_CASE("every schedule that there is can be run without buffers", "[plan][schedule]") {
  int schedules = 0;
  for_each_schedule([&](const Schedule& schedule) {
    INFO(shape(schedule));
    REQUIRE_NOTHROW(validate(schedule));
    ++schedules;
  });
  // gpipe, 1f1b and interleaved with v = 1: 8·16 each. v = 2, 3, 4: ⌊16/p⌋ multiples of p each.
  CHECK(schedules == 3 * 128 + 3 * (16 + 8 + 5 + 4 + 3 + 2 + 2 + 2));
}

TEST_CASE(
    "an evaluation's schedule takes every micro-batch forward through all chunks, and none back",
    "[plan][schedule]") {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = 1; m <= 5; ++m) {
        const Schedule schedule = make_schedule(PipelineOrder::kForward, p, v, m);
        INFO(shape(schedule));
        REQUIRE_NOTHROW(validate(schedule));
        for (const std::vector<Action>& actions : schedule.ranks) {
          const auto number_of = [&actions](Action::Kind kind) {
            return std::count_if(actions.begin(), actions.end(),
                                 [kind](const Action& action) { return action.kind == kind; });
          };
          CHECK(number_of(Action::Kind::kForward) == v * m);
          CHECK(number_of(Action::Kind::kBackward) == 0);
        }
      }
    }
  }
}

TEST_CASE("the idle share of every schedule is the papers' formula, whatever a backward costs",
          "[plan][schedule]") {
  for_each_schedule([](const Schedule& schedule) {
    INFO(shape(schedule));
    const double p = schedule.pipeline_ranks;
    const double turns = schedule.chunks * schedule.micro_batches;
    // Exactly: all times are small integers, and both sides round one division.
    CHECK(idle_share(schedule, 1, 2) == (p - 1) / (turns + p - 1));
    CHECK(idle_share(schedule, 1, 1) == (p - 1) / (turns + p - 1));
    CHECK(idle_share(schedule, 1, 3) == (p - 1) / (turns + p - 1));
    CHECK(idle_share(schedule, 3, 2) == (p - 1) / (turns + p - 1));
  });
}

TEST_CASE("micro-batches in flight are as many as the header says", "[plan][schedule]") {
  for_each_schedule([](const Schedule& schedule) {
    const int p = schedule.pipeline_ranks;
    const int v = schedule.chunks;
    const int m = schedule.micro_batches;
    for (int rank = 0; rank < p; ++rank) {
      INFO(shape(schedule) << " rank " << rank);
      const int expected = schedule.order == kGpipe ? m
                           : schedule.order == k1f1b
                               ? std::min(m, p - rank)
                               : std::min(v * m, 2 * (p - rank - 1) + (v - 1) * p + 1);
      CHECK(most_in_flight(schedule, rank) == expected);
    }
  });
}

TEST_CASE("no two micro-batches in flight share a slot, and no slot is in vain",
          "[plan][schedule]") {
  for_each_schedule([](const Schedule& schedule) {
    for (int rank = 0; rank < schedule.pipeline_ranks; ++rank) {
      INFO(shape(schedule) << " rank " << rank);
      const ActivationSlots slots(schedule, rank);
      std::map<int, std::set<int>> taken;  // [chunk], slots
      std::map<int, std::size_t> most;
      for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
        const int slot = slots.slot_of(action.chunk, action.micro_batch);
        if (action.kind == Action::Kind::kForward) {
          REQUIRE(slot >= 0);
          REQUIRE(slot < slots.num_slots(action.chunk));
          REQUIRE(taken[action.chunk].insert(slot).second);
          most[action.chunk] = std::max(most[action.chunk], taken[action.chunk].size());
        } else if (action.kind == Action::Kind::kBackward) {
          REQUIRE(taken[action.chunk].erase(slot) == 1);
        }
      }
      for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
        REQUIRE(most[chunk] == static_cast<std::size_t>(slots.num_slots(chunk)));
      }
    }
  });
}

TEST_CASE("the chunks of an interleaved rank hold what figure 4 of the paper shows",
          "[plan][schedule]") {
  // p = 4, v = 2, m = 8; counted in the lower half of the figure.
  const Schedule schedule = make_schedule(kInterleaved, 4, 2, 8);
  const std::vector<std::pair<int, int>> in_figure{{8, 4}, {8, 4}, {7, 3}, {5, 1}};
  for (int rank = 0; rank < 4; ++rank) {
    INFO("rank " << rank);
    const ActivationSlots slots(schedule, rank);
    CHECK(slots.num_slots(0) == in_figure[static_cast<std::size_t>(rank)].first);
    CHECK(slots.num_slots(1) == in_figure[static_cast<std::size_t>(rank)].second);
  }
}

TEST_CASE("schedules look as in the papers' figures", "[plan][schedule]") {
  SECTION("gpipe: Narayanan et al. 2021, figure 3, with half as many micro-batches") {
    CHECK(figure_of(make_schedule(kGpipe, 4, 1, 4)) ==
          "rank 0: F0 F1 F2 F3                            B0--- B1--- B2--- B3---\n"
          "rank 1:    F0 F1 F2 F3                   B0--- B1--- B2--- B3---\n"
          "rank 2:       F0 F1 F2 F3          B0--- B1--- B2--- B3---\n"
          "rank 3:          F0 F1 F2 F3 B0--- B1--- B2--- B3---\n");
  }
  SECTION("1f1b: figure 4, upper half") {
    CHECK(figure_of(make_schedule(k1f1b, 4, 1, 8)) ==
          "rank 0: F0 F1 F2 F3                   B0--- F4 B1--- F5 B2--- F6 B3--- F7 B4---    "
          "B5---    B6---    B7---\n"
          "rank 1:    F0 F1 F2             B0--- F3 B1--- F4 B2--- F5 B3--- F6 B4--- F7 B5---    "
          "B6---    B7---\n"
          "rank 2:       F0 F1       B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- F6 B5--- F7 B6---"
          "    B7---\n"
          "rank 3:          F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6--- F7 "
          "B7---\n");
  }
}

TEST_CASE("an interleaved schedule is figure 4's, lower half", "[plan][schedule]") {
  // Devices 1 and 4 of the figure, read from left to right; its micro-batches count from 1.
  const Schedule schedule = make_schedule(kInterleaved, 4, 2, 8);
  const auto computed = [&](int rank) {
    std::string text;
    for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
      if (action.kind != Action::Kind::kExchange) {
        text += to_text(schedule, action) + " ";
      }
    }
    return text;
  };
  CHECK(computed(0) ==
        "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 "
        "F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0.0 F7.1 B1.0 "
        "B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0 ");
  CHECK(computed(3) ==
        "F0.0 F1.0 F2.0 F3.0 "
        "F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 B2.0 F7.0 B3.0 "
        "F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0 ");
}

TEST_CASE("a message goes right after what made it, with what is needed next", "[plan][schedule]") {
  using Lines = std::vector<std::string>;
  SECTION("1f1b of two ranks") {
    const Schedule schedule = make_schedule(k1f1b, 2, 1, 2);
    CHECK(lines_of(schedule, 0) ==
          Lines{"F0", "send activation of F0 to rank 1", "F1",
                "send activation of F1 to rank 1, receive gradient of B0 from rank 1", "B0",
                "receive gradient of B1 from rank 1", "B1"});
    CHECK(lines_of(schedule, 1) ==
          Lines{"receive activation of F0 from rank 0", "F0", "B0",
                "send gradient of B0 to rank 0, receive activation of F1 from rank 0", "F1", "B1",
                "send gradient of B1 to rank 0"});
  }
  SECTION("interleaved, two ranks: the ring closes from the last rank to the first") {
    const Schedule schedule = make_schedule(kInterleaved, 2, 2, 2);
    CHECK(lines_of(schedule, 1) ==
          Lines{"receive activation of F0.0 from rank 0", "F0.0",
                "send activation of F0.0 to rank 0, receive activation of F1.0 from rank 0", "F1.0",
                "send activation of F1.0 to rank 0, receive activation of F0.1 from rank 0", "F0.1",
                "receive activation of F1.1 from rank 0", "B0.1", "send gradient of B0.1 to rank 0",
                "F1.1", "B1.1",
                "send gradient of B1.1 to rank 0, receive gradient of B0.0 from rank 0", "B0.0",
                "send gradient of B0.0 to rank 0, receive gradient of B1.0 from rank 0", "B1.0",
                "send gradient of B1.0 to rank 0"});
  }
}

TEST_CASE("a single rank sends nothing, and 1f1b on it holds one micro-batch", "[plan][schedule]") {
  CHECK(figure_of(make_schedule(k1f1b, 1, 1, 3)) == "rank 0: F0 B0--- F1 B1--- F2 B2---\n");
  for (const Schedule& schedule : {make_schedule(kGpipe, 1, 1, 5), make_schedule(k1f1b, 1, 1, 5),
                                   make_schedule(kInterleaved, 1, 3, 5)}) {
    CHECK(std::none_of(schedule.ranks[0].begin(), schedule.ranks[0].end(),
                       [](const Action& a) { return a.kind == Action::Kind::kExchange; }));
  }
}

TEST_CASE("block by block, one rank keeps every micro-batch of a step", "[plan][schedule]") {
  const Schedule schedule = make_schedule(PipelineOrder::kVertical, 1, 1, 4);
  REQUIRE_NOTHROW(validate(schedule));
  CHECK(lines_of(schedule, 0) == std::vector<std::string>{"F0-3", "B0-3"});
  CHECK(idle_share(schedule, 1, 2) == 0.0);
  const ActivationSlots slots(schedule, 0);
  CHECK(slots.num_slots(0) == 4);
  for (int k = 0; k < 4; ++k) {
    CHECK(slots.slot_of(0, k) == k);
  }
  Schedule single = schedule;
  single.ranks[0] = one_by_one(schedule.ranks[0]);
  REQUIRE_NOTHROW(validate(single));
  CHECK(lines_of(single, 0) ==
        std::vector<std::string>{"F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"});
  const Schedule piped = make_schedule(k1f1b, 2, 1, 4);
  CHECK(one_by_one(piped.ranks[1]) == piped.ranks[1]);
}

TEST_CASE("no exchange of a schedule sends or receives more than one message", "[plan][schedule]") {
  for_each_schedule([](const Schedule& schedule) {
    for (const auto& actions : schedule.ranks) {
      for (const Action& action : actions) {
        const auto sends = std::count_if(
            action.messages.begin(), action.messages.end(),
            [](const Message& m) { return m.direction == Message::Direction::kSend; });
        REQUIRE(sends <= 1);
        REQUIRE(static_cast<std::ptrdiff_t>(action.messages.size()) - sends <= 1);
      }
    }
  });
}

TEST_CASE("a schedule that there is not is refused with the reason", "[plan][schedule]") {
  CHECK(why_not(kGpipe, 2, 2, 4) ==
        "2 chunks of the model on each pipeline rank need the interleaved schedule: gpipe has one");
  CHECK(why_not(k1f1b, 2, 3, 4).has_value());
  CHECK(why_not(kInterleaved, 4, 2, 6) ==
        "the interleaved schedule takes as many micro-batches at a time through a chunk as there "
        "are pipeline ranks: 6 micro-batches a step are not a multiple of 4");
  CHECK_FALSE(why_not(kInterleaved, 4, 1, 6));  // as 1f1b
  CHECK_FALSE(why_not(kInterleaved, 1, 4, 7));
  CHECK(why_not(PipelineOrder::kVertical, 2, 1, 4) ==
        "the vertical order takes all micro-batches through a block before the next, which leaves "
        "nothing for other ranks to begin with: it needs the whole model on each rank, not 2 "
        "stages");
  CHECK(why_not(k1f1b, 0, 1, 1).has_value());
  CHECK(why_not(k1f1b, 1, 1, 0).has_value());
  CHECK(why_not(kInterleaved, 1, 0, 1).has_value());
  CHECK_THROWS_AS(make_schedule(kInterleaved, 4, 2, 6), InternalError);
}

}  // namespace
}  // namespace dstrain
