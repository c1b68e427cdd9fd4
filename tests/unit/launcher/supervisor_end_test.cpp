// Events left in the loop when a job has ended: the loop continues, the supervisor does not.
#include <chrono>
#include <memory>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>

#include "engine/base/file_descriptor.h"
#include "launcher/supervision/supervisor.h"

namespace dstrain::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kEnd{10};    // of the process
constexpr milliseconds kWatch{20};  // the supervisor's first look

class TimedProcess final : public Process {
 public:
  TimedProcess(asio::io_context& loop, ProcessEvents events)
      : events_(std::move(events)), timer_(loop, kEnd) {
    timer_.async_wait([this](const asio::error_code&) { events_.on_exit({}); });
  }
  [[nodiscard]] long pid() const override { return 1; }
  void signal(int /*number*/) noexcept override {}

 private:
  ProcessEvents events_;
  asio::steady_timer timer_;
};

class TimedSpawner final : public Spawner {
 public:
  explicit TimedSpawner(asio::io_context& loop) : loop_(loop) {}
  std::unique_ptr<Process> start(const ProcessSpec& /*spec*/, ProcessEvents events) override {
    return std::make_unique<TimedProcess>(loop_, std::move(events));
  }

 private:
  asio::io_context& loop_;
};

TEST_CASE("a look at the ranks that was due when the last one ended is not taken",
          "[launcher][supervisor]") {
  asio::io_context loop;
  const FileDescriptor null(open("/dev/null", O_RDWR));
  Job job;
  job.processes.push_back({.host = "here", .argv = {"rank"}});
  LogMux log(job, {.stdout_fd = null.get(), .stderr_fd = null.get()});
  TimedSpawner spawner(loop);
  Supervisor supervisor(loop, spawner, log, {.watch_interval = kWatch});
  // Both timers expire while the loop is busy, and are called one after the other.
  asio::post(loop, [] { std::this_thread::sleep_for(3 * kWatch); });
  CHECK(supervisor.run(job).exit_code == 0);
  // The look would take another one in a moment, and so on.
  loop.restart();
  CHECK(loop.run_for(5 * kWatch) <= 2);  // the look that was due, and the signals' end
}

}  // namespace
}  // namespace dstrain::launcher
