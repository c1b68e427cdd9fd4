#include "engine/comm/wait_clock.h"

#include <chrono>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

/// Writes down what it is told.
class Heard final : public ActivityRecorder {
 public:
  int add_group(const std::string& name) override {
    text += name + ";";
    return 3;
  }
  void begin_collective(int group, Op, Purpose) noexcept override {
    text += "collective " + std::to_string(group) + ";";
  }
  void end_collective(int) noexcept override { text += "ended;"; }
  void add_transfer_wait(int rank, double) noexcept override {
    text += "bytes of " + std::to_string(rank) + ";";
  }
  void begin_wait() noexcept override { text += "wait;"; }
  void end_wait() noexcept override { text += "waited;"; }
  void begin_phase(RunPhase) noexcept override { text += "phase;"; }
  void finish_step(std::int64_t step) noexcept override {
    text += "step " + std::to_string(step) + ";";
  }
  void set_comparable(int number) noexcept override {
    text += "comparable " + std::to_string(number) + ";";
  }
  std::string text;
};

constexpr std::chrono::milliseconds kNap{20};

TEST_CASE("the waits of the thread that computes are added up once, and no others", "[comm]") {
  WaitClock clock(nullptr, 2);
  REQUIRE(clock.add_group("data") == 0);
  REQUIRE(clock.add_group("tensor") == 1);
  const auto take = [&] {
    const std::span<const double> seconds = clock.take_seconds();
    return std::vector<double>(seconds.begin(), seconds.end());
  };
  const std::vector<double> none{0.0, 0.0, 0.0};
  const auto start = std::chrono::steady_clock::now();
  clock.begin_wait();
  clock.begin_collective(0, Op::kAllReduce, Purpose::kMetric);  // within the wait, which is for it
  std::this_thread::sleep_for(kNap);
  clock.end_collective(0);
  std::this_thread::sleep_for(kNap);
  clock.end_wait();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  const std::vector<double> nested = take();
  CHECK(nested[0] >= 0.04);
  CHECK(nested[0] <= passed.count());
  CHECK(nested[1] + nested[2] == 0.0);
  clock.begin_wait();
  std::this_thread::sleep_for(kNap);
  clock.end_wait();
  CHECK(take()[2] >= 0.02);  // nothing had been carried beside

  clock.begin_collective(1, Op::kAllReduce, Purpose::kActivation);
  std::this_thread::sleep_for(kNap);
  clock.end_collective(1);
  const std::vector<double> direct = take();
  CHECK(direct[0] == 0.0);
  CHECK(direct[1] >= 0.02);
  CHECK(take() == none);
  std::thread([&] {
    clock.begin_collective(0, Op::kAllReduce, Purpose::kGradient);
    std::this_thread::sleep_for(kNap);
    clock.end_collective(0);
  }).join();
  CHECK(take() == none);
  clock.begin_wait();
  std::this_thread::sleep_for(kNap);
  clock.end_wait();
  CHECK(take()[0] >= 0.02);  // for what was carried beside last
}

TEST_CASE("whoever stands behind the clock hears everything", "[comm]") {
  Heard heard;
  WaitClock clock(&heard, 4);
  CHECK(clock.add_group("data") == 0);
  clock.begin_collective(0, Op::kAllReduce, Purpose::kMetric);
  clock.end_collective(0);
  clock.begin_wait();
  clock.end_wait();
  clock.begin_phase(RunPhase::kSaving);
  clock.finish_step(9);
  clock.set_comparable(2);
  CHECK(heard.text == "data;collective 3;ended;wait;waited;phase;step 9;comparable 2;");
}

}  // namespace
}  // namespace dstrain
