// Which limit keeps a process from making another one: a made-up /proc and /sys.
#include "launcher/process/task_limits.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/harness/program.h"
#include "tests/harness/skip.h"

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;

class MadeUpRoot {
 public:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] std::string path() const { return folder_.path().string(); }

 private:
  testing::TemporaryFolder folder_;
};

TEST_CASE("the limit that is reached is named, with its value and what is in use",
          "[launcher][limits]") {
  const MadeUpRoot root;
  root.write("proc/sys/kernel/threads-max", "120000\n");
  root.write("proc/loadavg", "0.1 0.2 0.3 2/345 6789\n");
  SECTION("of a cgroup around the own one, version 2") {
    root.write("proc/self/cgroup", "0::/job/step\n");
    root.write("sys/fs/cgroup/job/step/pids.max", "max\n");
    root.write("sys/fs/cgroup/job/step/pids.current", "60\n");
    root.write("sys/fs/cgroup/job/pids.max", "64\n");
    root.write("sys/fs/cgroup/job/pids.current", "64\n");
    CHECK(describe_task_limits(root.path()) ==
          ": pids.max of the cgroup /job allows 64 processes and threads, and 64 are there");
  }
  SECTION("of a cgroup, version 1") {
    root.write("proc/self/cgroup", "9:memory:/a\n4:pids:/a\n");
    root.write("sys/fs/cgroup/pids/a/pids.max", "10\n");
    root.write("sys/fs/cgroup/pids/a/pids.current", "10\n");
    CHECK(describe_task_limits(root.path()) ==
          ": pids.max of the cgroup /a allows 10 processes and threads, and 10 are there");
  }
  SECTION("of the machine") {
    root.write("proc/loadavg", "0.1 0.2 0.3 2/119990 6789\n");
    CHECK_THAT(describe_task_limits(root.path()),
               Contains("kernel.threads-max of this machine allows 120000 processes and threads, "
                        "and 119990 are there"));
  }
}

TEST_CASE("dstrain names the limit of processes that stopped its start", "[launcher][limits]") {
  if (getuid() != 0) return testing::skip("only root can become a user with a limit");
  testing::Program train({"/bin/sh", "-c",
                          "exec setpriv --reuid 65534 --regid 65534 --clear-groups " +
                              std::filesystem::absolute(testing::dstrain_binary()).string() +
                              " train /no/such/config"},
                         {}, [] {
                           const rlimit limit{1, 1};
                           setrlimit(RLIMIT_NPROC, &limit);
                         });
  const auto code = train.wait(std::chrono::seconds{10});
  if (code == 126 || code == 127) return testing::skip("nobody cannot run dstrain, or no setpriv");
  INFO(train.err());
  CHECK(code == 1);
  CHECK_THAT(train.err(), Contains("a thread or process could not be made: RLIMIT_NPROC "
                                   "(ulimit -u) of this user allows 1 processes and threads"));
}

}  // namespace
}  // namespace dstrain::launcher
