// What a rank writes into its page, as its starter reads it: across processes, when it is stopped,
// and over a wire.
#include "launcher/supervision/status_page.h"

#include <chrono>
#include <csignal>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/process/process_state.h"
#include "tests/harness/processes.h"

namespace dstrain::launcher {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

/// The rank's side of `page`, as the rank would open it.
StatusPage rank_side(const StatusPage& page) {
  StatusPage own = StatusPage::open(FileDescriptor(dup(page.fd())));
  own.attach();
  return own;
}

TEST_CASE("a page that no rank attached to says nothing", "[launcher][status]") {
  CHECK_FALSE(StatusPage::make().read().has_value());
}

TEST_CASE("a descriptor that is no status page is refused, with its number", "[launcher][status]") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const FileDescriptor writer(ends[1]);
  const std::string number = std::to_string(ends[0]);
  CHECK_THROWS_WITH(StatusPage::open(FileDescriptor(ends[0])), Contains("_FD=" + number));
}

TEST_CASE("a page tells phase, steps and the collective that a rank waits in",
          "[launcher][status]") {
  const StatusPage page = StatusPage::make();
  StatusPage rank = rank_side(page);
  CHECK(page.read()->phase == RankPhase::kStarting);
  const int reduce = rank.add_operation("all_reduce (gradient)");
  const int group = rank.add_group("data-parallel");
  rank.add_group("world");
  rank.set_comparable(3);
  rank.begin_phase(RankPhase::kTraining);
  rank.finish_step(121);
  CHECK_THAT(page.read()->describe(), Contains("computing for 0.0"));
  rank.begin_operation(group, reduce);
  rank.begin_wait();
  std::this_thread::sleep_for(20ms);

  const RankStatus status = page.read().value();
  CHECK(status.phase == RankPhase::kTraining);
  CHECK(status.num_steps == 1);
  CHECK(status.step == 121);
  CHECK(status.comparable == 3);
  REQUIRE(status.groups.size() == 2);
  REQUIRE(status.waits_in() != nullptr);
  CHECK(status.waits_in()->name == "data-parallel");
  CHECK(status.waits_in()->started == 1);
  CHECK(status.waits_in()->operating_for >= 20ms);
  CHECK_THAT(status.describe(),
             Contains("waiting in all_reduce (gradient) of group \"data-parallel\" for 0.0"));

  rank.end_wait();
  rank.end_operation(group);
  CHECK(page.read()->waits_in() == nullptr);
}

TEST_CASE("time spent waiting, evaluating and saving is not computing", "[launcher][status]") {
  const StatusPage page = StatusPage::make();
  StatusPage rank = rank_side(page);
  rank.begin_phase(RankPhase::kTraining);
  std::this_thread::sleep_for(30ms);
  rank.begin_wait();
  std::this_thread::sleep_for(300ms);
  rank.end_wait();
  rank.begin_phase(RankPhase::kEvaluating);
  std::this_thread::sleep_for(400ms);
  rank.begin_phase(RankPhase::kTraining);
  rank.finish_step(1);
  rank.begin_phase(RankPhase::kSaving);
  std::this_thread::sleep_for(50ms);
  rank.begin_phase(RankPhase::kTraining);
  rank.finish_step(2);
  const RankStatus status = page.read().value();
  CHECK(status.num_steps == 2);
  CHECK(status.computing >= 30ms);
  CHECK(status.computing < 250ms);
  CHECK(status.longest_step >= 330ms);
  CHECK(status.longest_step < 700ms);
  CHECK(status.longest_evaluation >= 400ms);
  CHECK(status.longest_save >= 50ms);
}

TEST_CASE("a page that is full continues with what it has, and cuts long names",
          "[launcher][status]") {
  const StatusPage page = StatusPage::make();
  StatusPage rank = rank_side(page);
  int last = 0;
  for (int i = 0; i < 100; ++i)
    last = rank.add_group(std::string(200, 'g'));
  CHECK(last == -1);
  for (int i = 0; i < 100; ++i)
    rank.add_operation("op");
  rank.begin_operation(last, 99);
  rank.end_operation(last);
  CHECK(page.read()->groups.front().name.size() < 200);
}

TEST_CASE("a rank that is stopped can be read, and its state seen", "[launcher][status]") {
  const StatusPage page = StatusPage::make();
  const pid_t child = fork();
  if (child == 0) {
    StatusPage rank = rank_side(page);
    rank.begin_phase(RankPhase::kTraining);
    for (std::int64_t step = 1;; ++step)
      rank.finish_step(step);  // stopped in the middle of a change, more often than not
  }
  const auto steps = [&] {
    const auto status = page.read();
    return status ? status->num_steps : 0;
  };
  CHECK(testing::becomes_true([&] { return steps() > 1000; }, 10s));
  CHECK(process_state(child).letter == 'R');
  kill(child, SIGSTOP);
  CHECK(testing::becomes_true([&] { return process_state(child).letter == 'T'; }, 5s));
  const std::int64_t stopped_at = steps();
  CHECK(stopped_at > 1000);
  std::this_thread::sleep_for(50ms);
  CHECK(steps() == stopped_at);
  CHECK(page.read()->in_phase_for >= 50ms);
  CHECK(process_state(child).cpu_time >= 0ms);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(process_state(child).letter == 0);
}

std::string on_wire(RankStatus status) {
  WireWriter wire;
  wire(status);
  return wire.take();
}

RankStatus from_wire(std::string_view bytes) {
  RankStatus status;
  WireReader wire(bytes);
  wire(status);
  wire.end();
  return status;
}

TEST_CASE("a status survives the way from agent to launcher, garbage does not",
          "[launcher][status]") {
  RankStatus status;
  status.phase = RankPhase::kSaving;
  status.in_phase_for = 5s;
  status.num_steps = 7;
  status.step = 107;
  status.computing = 3s;
  status.longest_step = 1s;
  status.longest_save = 2s;
  status.comparable = 1;
  status.waiting_for = 4s;
  status.groups = {{"world", 9, "barrier (control)", 4s}, {"data", 3, "", 0s}};
  status.process = {'D', 11s, "io_schedule"};
  const std::string bytes = on_wire(status);
  RankStatus back = from_wire(bytes);
  CHECK(back.phase == status.phase);
  CHECK(back.in_phase_for == status.in_phase_for);
  CHECK(back.step == 107);
  CHECK(back.longest_save == 2s);
  CHECK(back.waiting_for == status.waiting_for);
  CHECK(back.groups == status.groups);
  CHECK(back.has_spoken);
  CHECK(back.process.letter == 'D');
  CHECK(back.process.kernel_wait == "io_schedule");
  CHECK(on_wire(back) == bytes);
  const RankStatus silent = from_wire(on_wire({.has_spoken = false}));
  CHECK_FALSE(silent.has_spoken);
  CHECK_FALSE(silent.waiting_for);

  CHECK_THROWS_AS(from_wire(bytes + "x"), ProtocolError);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    CHECK_THROWS_AS(from_wire(bytes.substr(0, size)), ProtocolError);
  std::string unknown = bytes;
  unknown[1] = '\x7f';
  CHECK_THROWS_WITH(from_wire(unknown), "a rank in no known phase");
}

}  // namespace
}  // namespace dstrain::launcher
