// Was it the kernel's out-of-memory killer? With the kernel's files made up, and once for real.
#include "launcher/supervision/oom_watch.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "launcher/process/local_process.h"
#include "tests/harness/processes.h"
#include "tests/harness/skip.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

/// A /proc and a /sys/fs/cgroup of files.
struct MadeUpKernel {
  testing::TemporaryFolder folder;
  [[nodiscard]] std::string path(const std::string& name) const { return folder.path() / name; }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
  }
  /// Process 7 in cgroup /a/b of version 2, of which /a has a limit.
  MadeUpKernel() {
    write("proc/self/mountinfo", "31 25 0:26 / " + path("sys") + " rw - cgroup2 cgroup2 rw\n");
    write("proc/vmstat", "pgfault 5\noom_kill 3\n");
    write("proc/7/cgroup", "0::/a/b\n");
    write("proc/8/cgroup", "0::/\n");
    write("sys/a/b/memory.max", "max\n");
    write("sys/a/memory.max", "8589934592\n");
    write("sys/a/memory.peak", "8589930000\n");
    write("sys/a/b/memory.events", "low 0\noom 4\noom_kill 2\n");
  }
};

TEST_CASE("a kill that the process's cgroup counts is explained with the limit that was hit",
          "[launcher][oom]") {
  const MadeUpKernel kernel;
  OomWatch watch(kernel.path("proc"));
  watch.started(7);
  CHECK(watch.explain_kill(7).empty());  // the two of before
  kernel.write("sys/a/b/memory.events", "low 0\noom 5\noom_kill 3\n");
  CHECK(watch.explain_kill(7) ==
        "killed by the kernel's out-of-memory killer: memory cgroup /a, limit 8.00 GiB, peak 8.00 "
        "GiB");
  CHECK(watch.explain_kill(7).empty());  // one count, one death
}

TEST_CASE("without a cgroup's counter the machine's is asked", "[launcher][oom]") {
  const MadeUpKernel kernel;
  OomWatch watch(kernel.path("proc"));
  watch.started(8);
  CHECK(watch.explain_kill(8).empty());
  kernel.write("proc/vmstat", "oom_kill 4\n");
  CHECK_THAT(watch.explain_kill(8), Contains("out-of-memory killer struck on this machine"));
  CHECK(watch.explain_kill(8).empty());
}

TEST_CASE("in version 1 the cgroup in which a process was started counts", "[launcher][oom]") {
  const MadeUpKernel kernel;
  kernel.write("proc/self/mountinfo",
               "35 31 0:32 / " + kernel.path("v1") + " rw - cgroup cgroup rw,cpu,memory\n");
  kernel.write("proc/9/cgroup", "4:cpu,memory:/job\n");
  kernel.write("v1/job/memory.oom_control", "under_oom 0\noom_kill 1\n");
  kernel.write("v1/job/memory.limit_in_bytes", "33554432\n");
  OomWatch watch(kernel.path("proc"));
  watch.started(9);
  kernel.write("proc/9/cgroup", "4:cpu,memory:/\n");  // as the kernel shows a dead process
  CHECK(watch.explain_kill(9).empty());
  kernel.write("v1/job/memory.oom_control", "under_oom 0\noom_kill 2\n");
  CHECK(watch.explain_kill(9) ==
        "killed by the kernel's out-of-memory killer: memory cgroup /job, limit 32.0 MiB");
}

TEST_CASE("where the kernel tells nothing, nothing is claimed", "[launcher][oom]") {
  const testing::TemporaryFolder nothing;
  OomWatch watch(nothing.path());
  watch.started(7);
  CHECK(watch.explain_kill(7).empty());
}

/// A memory cgroup of version 1 with a small limit, which goes away.
class SmallCgroup {
 public:
  SmallCgroup()
      : folder_(fs::path("/sys/fs/cgroup/memory") / ("dstrain-" + std::to_string(getpid()))) {
    std::error_code error;
    fs::create_directory(folder_, error);
    std::ofstream limit(folder_ / "memory.limit_in_bytes");
    limit << (std::int64_t{32} << 20) << std::flush;
    usable_ = !error && limit.good();
  }
  ~SmallCgroup() {
    testing::becomes_true([&] { return rmdir(folder_.c_str()) == 0 || errno == ENOENT; },
                          std::chrono::seconds{5});
  }
  [[nodiscard]] bool usable() const { return usable_; }
  [[nodiscard]] std::string procs() const { return folder_ / "cgroup.procs"; }

 private:
  fs::path folder_;
  bool usable_ = false;
};

/// Runs the shell script under a LocalSpawner until it ends.
ExitStatus run_shell(const std::string& script) {
  asio::io_context loop;
  LocalSpawner spawner(loop);
  std::optional<ExitStatus> status;
  const auto process = spawner.start({.executable = "/bin/sh", .argv = {"sh", "-c", script}},
                                     {.on_output = [](OutputStream, std::string_view) {},
                                      .on_exit = [&](const ExitStatus& s) { status = s; }});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  while (!status && std::chrono::steady_clock::now() < deadline)
    loop.run_one_until(deadline);
  REQUIRE(status);
  return *status;
}

TEST_CASE("a process that the kernel kills for memory says so in its exit status",
          "[launcher][oom]") {
  const SmallCgroup cgroup;
  if (!cgroup.usable()) {
    testing::skip("no memory cgroup of version 1 can be made here");
    return;
  }
  const ExitStatus grown =
      run_shell("echo $$ > " + cgroup.procs() + "; x=xxxx; while :; do x=$x$x; done");
  CHECK(grown.signal == SIGKILL);
  CHECK_THAT(grown.detail, Contains("out-of-memory killer"));
  const ExitStatus killed = run_shell("kill -9 $$");
  CHECK(killed.signal == SIGKILL);
  CHECK(killed.detail.empty());
}

}  // namespace
}  // namespace dstrain::launcher
