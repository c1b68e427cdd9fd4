// Which ranks are reported to keep a job waiting, and when. Ranks and time are made up.
#include "launcher/supervision/hang_watch.h"

#include <catch2/catch.hpp>

#include "launcher/supervision/stopped_watch.h"

namespace dstrain::launcher {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Time = HangWatch::TimePoint;

/// Ranks in training, each after its 120th step, 10 s ago.
class WatchedJob {
 public:
  explicit WatchedJob(int size) : specs_(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      ProcessSpec& spec = specs_[static_cast<std::size_t>(rank)];
      spec.host = rank < size / 2 ? "w0" : "w1";
      spec.rank = rank;
      RankStatus status;
      status.phase = RankPhase::kTraining;
      status.in_phase_for = 10s;
      status.num_steps = 20;
      status.step = 120;
      status.longest_step = 1s;
      status.process.letter = 'S';
      ranks.push_back({.spec = &spec, .pid = 100 + rank, .status = status});
    }
  }
  RankStatus& operator[](int rank) { return *ranks[static_cast<std::size_t>(rank)].status; }
  void waits(int rank, const std::string& group, std::uint64_t count = 7) {
    (*this)[rank].waiting_for = 9s;
    (*this)[rank].groups = {{group, count, "all_gather (metric)", 9s}};
  }
  void all_wait() {
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank)
      waits(rank, "world");
  }
  /// All of them have stood still for so long.
  void stand_still(std::chrono::seconds still) {
    for (RankObservation& rank : ranks)
      if (rank.status) rank.status->in_phase_for = still;
  }
  /// The final report about it by a watch that has looked once a second all the time.
  [[nodiscard]] std::optional<Hang> watched(const HangLimits& limits, std::chrono::seconds still) {
    HangWatch watch(limits);
    const Time start{1000s};
    for (std::chrono::seconds at{0}; at < still; ++at) {
      stand_still(at);
      if (auto hang = watch.observe(start + at, ranks)) return hang;
    }
    stand_still(still);
    return watch.observe(start + still, ranks);
  }

  std::vector<RankObservation> ranks;

 private:
  std::vector<ProcessSpec> specs_;
};

std::vector<int> ranks_of(const Hang& hang) {
  std::vector<int> ranks;
  for (const ProcessSpec* spec : hang.absent)
    ranks.push_back(spec->rank);
  return ranks;
}

const HangLimits kFiveSeconds{.step = 5s};

TEST_CASE("whoever is not in a collective keeps the others waiting", "[launcher][hang]") {
  WatchedJob job(4);
  job.all_wait();
  job[2].waiting_for.reset();
  job[2].groups[0].operation.clear();
  job[2].process = {'R', 0s, ""};
  const auto hang = job.watched(kFiveSeconds, 5s);
  REQUIRE(hang);
  CHECK(ranks_of(*hang) == std::vector{2});
  CHECK_THAT(hang->text,
             Contains("no rank has finished a step for 5.00 s (limit 5.00 s, as asked for): "
                      "rank 2 (local rank 0) on w1, pid 102, did not arrive: it is running") &&
                 Contains("it has been computing for 5.00 s, after step 120") &&
                 Contains("the other 3 ranks wait for it: rank 0 is waiting in all_gather "
                          "(metric) of group \"world\" for 9.00 s"));
  CHECK_FALSE(job.watched(kFiveSeconds, 4s));
}

TEST_CASE("a rank that is stopped is named even where it stopped in a collective",
          "[launcher][hang]") {
  WatchedJob job(3);
  job.all_wait();
  job[1].process.letter = 'T';
  const auto hang = job.watched(kFiveSeconds, 5s);
  REQUIRE(hang);
  CHECK(ranks_of(*hang) == std::vector{1});
  CHECK_THAT(hang->text, Contains("it is stopped (state T)"));
}

TEST_CASE("a rank that is stopped while it saves ends the job at the limit of saves",
          "[launcher][hang]") {
  WatchedJob job(2);
  job.all_wait();
  job[1].phase = RankPhase::kSaving;
  job[1].process.letter = 'T';
  const auto hang = job.watched({.step = 5s, .save = 20s}, 20s);
  REQUIRE(hang);
  CHECK(ranks_of(*hang) == std::vector{1});
  CHECK_THAT(hang->text, Contains("(limit 20.0 s for a save, as asked for)"));
  CHECK_FALSE(job.watched({.step = 5s, .save = 20s}, 19s));
}

TEST_CASE("a rank that is stopped is reported once, whatever it was doing, and when it continues",
          "[launcher][hang]") {
  WatchedJob job(2);
  const auto phase = GENERATE(RankPhase::kStarting, RankPhase::kTraining, RankPhase::kEvaluating,
                              RankPhase::kSaving, RankPhase::kEnding);
  StoppedWatch watch;
  const Time start{1000s};
  CHECK(watch.observe(start, job.ranks).empty());
  job[1].phase = phase;
  job[1].process.letter = GENERATE('T', 't');
  CHECK(watch.observe(start + 1s, job.ranks).empty());
  CHECK(watch.observe(start + 2s, job.ranks).empty());
  const auto told = watch.observe(start + 3s, job.ranks);
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], Contains("rank 1 (local rank 0) on w1, pid 101, is stopped") &&
                          Contains("while " + std::string(name_of(phase)) + ", after step 120") &&
                          Contains("kill -CONT 101"));
  CHECK(watch.observe(start + 4s, job.ranks).empty());
  CHECK(watch.longest() == 3s);
  job[1].process.letter = 'S';
  const auto over = watch.observe(start + 5s, job.ranks);
  REQUIRE(over.size() == 1);
  CHECK_THAT(over[0], Contains("pid 101, continues after 4.00 s"));
  CHECK(watch.longest() == 0s);
}

TEST_CASE("a stop too short to matter is not reported", "[launcher][hang]") {
  WatchedJob job(2);
  StoppedWatch watch;
  const Time start{1000s};
  for (int second = 0; second < 20; ++second) {
    job[0].process.letter = second % 2 == 0 ? 'T' : 'R';
    CHECK(watch.observe(start + std::chrono::seconds{second}, job.ranks).empty());
  }
}

TEST_CASE("a rank that has said nothing is known to be stopped all the same", "[launcher][hang]") {
  WatchedJob job(2);
  job.ranks[1].status = RankStatus{.has_spoken = false, .process = {'T', 0s, ""}};
  StoppedWatch watch;
  const Time start{1000s};
  CHECK(watch.observe(start, job.ranks).empty());
  const auto told = watch.observe(start + 2s, job.ranks);
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], Contains("is stopped (state T) and has said nothing since"));
  // Where no rank has ever spoken they are no ranks that would.
  job.ranks[0].status = RankStatus{.has_spoken = false};
  CHECK_FALSE(HangWatch(kFiveSeconds).observe(start, job.ranks));
}

TEST_CASE("where all wait, the one that is behind, alone, or busy is named", "[launcher][hang]") {
  WatchedJob job(4);
  job.all_wait();
  SECTION("a collective behind") {
    job.waits(3, "world", 6);
  }
  SECTION("where nobody else is") {
    job.waits(3, "pipeline (data 0)");
  }
  SECTION("using a core all the time") {
    HangWatch watch(kFiveSeconds);
    std::optional<Hang> hang;
    for (std::chrono::seconds at{0}; at <= 5s; ++at) {
      job.stand_still(at);
      job[3].process = {'R', at, ""};
      hang = watch.observe(Time{1000s} + at, job.ranks);
    }
    REQUIRE(hang);
    CHECK_THAT(hang->text, Contains("has used 4.00 s of CPU in the last 4.00 s"));
  }
  const auto hang = job.watched(kFiveSeconds, 5s);
  REQUIRE(hang);
  CHECK((ranks_of(*hang) == std::vector{3} || job[3].process.letter == 'R'));
}

TEST_CASE("where nothing tells them apart all are named, a few by name", "[launcher][hang]") {
  WatchedJob job(6);
  job.all_wait();
  const auto hang = job.watched(kFiveSeconds, 5s);
  REQUIRE(hang);
  CHECK(hang->absent.size() == 6);
  CHECK_THAT(hang->text,
             Contains("stands still") && Contains("and 2 more") && !Contains("did not arrive"));
}

TEST_CASE("the limit of a step is learned from the longest one", "[launcher][hang]") {
  WatchedJob job(2);
  job.waits(0, "world");
  CHECK_FALSE(job.watched({}, 59s));
  CHECK_THAT(job.watched({}, 60s)->text, Contains("limit 60.0 s for step"));
  job[1].longest_step = 20s;
  CHECK_FALSE(job.watched({}, 99s));
  CHECK_THAT(job.watched({}, 100s)->text, Contains("5 × the longest step so far"));
}

TEST_CASE("starting, evaluating and saving have limits of their own", "[launcher][hang]") {
  WatchedJob job(2);
  job.waits(0, "world");
  SECTION("starting") {
    job[1].phase = RankPhase::kStarting;
    job[1].num_steps = 0;
    CHECK_FALSE(job.watched(kFiveSeconds, 29min));
    CHECK(job.watched(kFiveSeconds, 31min));
  }
  SECTION("the first step, too, is starting") {
    job[1].num_steps = 0;
    CHECK_FALSE(job.watched(kFiveSeconds, 29min));
  }
  SECTION("saving") {
    job[1].phase = RankPhase::kSaving;
    CHECK_FALSE(job.watched(kFiveSeconds, 29min));
    CHECK(job.watched(kFiveSeconds, 31min));
    job[1].longest_save = 10min;
    CHECK_FALSE(job.watched(kFiveSeconds, 49min));
    CHECK(job.watched(kFiveSeconds, 51min));
  }
  SECTION("evaluating") {
    job[1].phase = RankPhase::kEvaluating;
    CHECK_FALSE(job.watched(kFiveSeconds, 9min));
    CHECK(job.watched(kFiveSeconds, 11min));
  }
  SECTION("a rank that never said anything is starting") {
    job.ranks[1].status.reset();
    CHECK_FALSE(job.watched(kFiveSeconds, 29min));
    CHECK_THAT(job.watched(kFiveSeconds, 31min)->text, Contains("has said nothing"));
  }
}

TEST_CASE("those who wait do not lend the limit of what they wait in", "[launcher][hang]") {
  WatchedJob job(2);
  job.waits(0, "world");
  job[0].phase = RankPhase::kSaving;  // it went on to save; rank 1 never came
  CHECK(job.watched(kFiveSeconds, 5s));
}

TEST_CASE("ranks that go on do not hang, nor do programs that say nothing", "[launcher][hang]") {
  WatchedJob job(2);
  HangWatch watch(kFiveSeconds);
  for (std::chrono::seconds at{0}; at < 100s; ++at) {
    job.stand_still(at % 4);
    CHECK_FALSE(watch.observe(Time{1000s} + at, job.ranks));
  }
  for (RankObservation& rank : job.ranks)
    rank.status.reset();
  CHECK_FALSE(job.watched(kFiveSeconds, 1h));
}

TEST_CASE("time in which the launcher itself was stopped does not count", "[launcher][hang]") {
  WatchedJob job(2);
  job.waits(0, "world");
  HangWatch watch(kFiveSeconds);
  job.stand_still(0s);
  CHECK_FALSE(watch.observe(Time{1000s}, job.ranks));
  job.stand_still(600s);  // everything was frozen for 10 minutes
  CHECK_FALSE(watch.observe(Time{1600s}, job.ranks));
  job.stand_still(603s);
  CHECK_FALSE(watch.observe(Time{1603s}, job.ranks));
  job.stand_still(606s);
  CHECK(watch.observe(Time{1606s}, job.ranks));
}

}  // namespace
}  // namespace dstrain::launcher
