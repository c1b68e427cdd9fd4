// How many cores a process may use: its mask, and the quotas of the control groups around it.
#include "engine/base/usable_cores.h"

#include <numeric>
#include <optional>

#include <catch2/catch.hpp>
#include <sched.h>

#include "tests/unit/kernels/fake_root.h"

namespace dstrain {
namespace {

std::optional<double> quota_in(const FakeRoot& root) {
  return usable_cores(root.path()).quota;
}

/// The files of a machine with a given number of cores.
int count_of(int cores, std::optional<double> quota) {
  UsableCores usable{.ids = std::vector<int>(static_cast<std::size_t>(cores)), .quota = quota};
  std::iota(usable.ids.begin(), usable.ids.end(), 0);
  CHECK(usable.quota_is_tighter() == (quota && *quota < cores));
  return usable.count();
}

/// Lets this thread run on one core only while it exists.
class OneCore {
 public:
  explicit OneCore(int core) {
    REQUIRE(sched_getaffinity(0, sizeof before_, &before_) == 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(core), &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;
  ~OneCore() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

TEST_CASE("without control groups the usable cores are those of the affinity mask",
          "[kernels][cores]") {
  const FakeRoot root;
  cpu_set_t mask;
  REQUIRE(sched_getaffinity(0, sizeof mask, &mask) == 0);
  const UsableCores all = usable_cores(root.path());
  CHECK(static_cast<int>(all.ids.size()) == CPU_COUNT(&mask));
  for (const int core : all.ids)
    CHECK(CPU_ISSET(static_cast<std::size_t>(core), &mask));
  CHECK_FALSE(all.quota);
  CHECK(all.count() == CPU_COUNT(&mask));
  const OneCore bound(all.ids.back());
  CHECK(usable_cores(root.path()).ids == std::vector<int>{all.ids.back()});
}

TEST_CASE("a container's quota is how many cores it may keep busy", "[kernels][cores]") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/cpu.max", "200000 100000\n");  // docker run --cpus 2
  CHECK(quota_in(root) == 2.0);
  root.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  CHECK_FALSE(quota_in(root));
  root.write("sys/fs/cgroup/cpu.max", "50000 20000\n");
  CHECK(quota_in(root) == 2.5);
}

TEST_CASE("the tightest of the groups around a process counts", "[kernels][cores]") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/job/step/task\n");
  root.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  root.write("sys/fs/cgroup/job/step/cpu.max", "400000 100000\n");
  root.write("sys/fs/cgroup/job/step/task/cpu.max", "max 100000\n");
  root.write("sys/fs/cgroup/other/cpu.max", "10000 100000\n");
  CHECK(quota_in(root) == 1.5);
  root.write("sys/fs/cgroup/job/step/task/cpu.max", "50000 100000\n");
  CHECK(quota_in(root) == 0.5);
}

TEST_CASE("a version 1 quota counts, with its controller under one name or several",
          "[kernels][cores]") {
  const FakeRoot root;
  root.write("proc/self/cgroup", "5:cpuset:/a\n3:cpu,cpuacct:/docker/abc\n2:memory:/m\n0::/\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us",
             "300000\n");  // as a container sees its own group
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpuset/a/cpu.cfs_quota_us", "100000\n");  // no file of that controller
  root.write("sys/fs/cgroup/cpuset/a/cpu.cfs_period_us", "100000\n");
  CHECK(quota_in(root) == 3.0);
  root.write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "250000\n");  // as the host sees it
  root.write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
  CHECK(quota_in(root) == 2.5);
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "-1\n");
  CHECK_FALSE(quota_in(root));
}

TEST_CASE("a quota is rounded to whole threads, and never to none", "[kernels][cores]") {
  CHECK(count_of(64, std::nullopt) == 64);
  CHECK(count_of(64, 2.0) == 2);
  CHECK(count_of(64, 1.9) == 2);
  CHECK(count_of(64, 2.1) == 2);
  CHECK(count_of(64, 2.5) == 3);
  CHECK(count_of(64, 0.25) == 1);
  CHECK(count_of(2, 8.0) == 2);
  CHECK(count_of(2, 1.6) == 2);
  CHECK(UsableCores{}.count() == 1);
}

}  // namespace
}  // namespace dstrain
