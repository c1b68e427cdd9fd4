// `dstrain launch` over hosts that may not be logged in to: all are told at once, with what to do.
#include <chrono>
#include <string>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::FleetRun;

constexpr seconds kPatience{60};

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Host keys and logins that fail, each on a host of its own; the last host is all right.
void refuse_each(FleetRun& run) {
  std::string known;
  const std::string kept = run.cluster().launcher().read("/mnt/home/.ssh/known_hosts");
  for (size_t begin = 0; begin < kept.size();) {
    const size_t end = kept.find('\n', begin) + 1;
    const std::string line = kept.substr(begin, end - begin);
    if (!line.starts_with("w0,")) known += line;
    begin = end;
  }
  run.cluster().launcher().write("/mnt/home/.ssh/known_hosts", known);
  run.host(1).change_host_key();
  run.host(2).write("/mnt/home/.ssh/authorized_keys", "");
}

TEST_CASE(
    "F17 F18 F19: hosts that may not be logged in to are reported in one table, nothing starts",
    "[cluster][launch]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(4, 1);
  refuse_each(run);

  const Stopwatch watch;
  const auto launch = run.launch();
  REQUIRE(launch->wait(kPatience));
  const double took = watch.seconds();
  INFO(launch->err());
  CHECK(launch->wait(seconds{0}) == 3);
  CHECK_THAT(launch->err(), Contains("3 of 4 hosts cannot be used") && Contains("w0  host key") &&
                                Contains("is not known") && Contains("--accept-new-host-keys") &&
                                Contains("w1  host key") && Contains("HAS CHANGED") &&
                                Contains("w2  authentication") &&
                                Contains("id_ed25519: not accepted"));
  CHECK(run.nothing_is_left(seconds{5}));
  CHECK(took < 10);
  WARN(fmt::format("F17 F18 F19: refused after {:.2f} s", took));

  // New keys are taken where that is asked for; changed ones are not.
  const auto accepting = run.launch({"--accept-new-host-keys"});
  REQUIRE(accepting->wait(kPatience));
  INFO(accepting->err());
  CHECK(accepting->wait(seconds{0}) == 3);
  CHECK_THAT(accepting->err(), Contains("2 of 4 hosts cannot be used") && Contains("HAS CHANGED"));
  CHECK_THAT(run.cluster().launcher().read("/mnt/home/.ssh/known_hosts"),
             Contains("\nw0 ssh-ed25519 "));
}

TEST_CASE("F17 F18 F19: what OpenSSH's client is refused is reported in the same table",
          "[cluster][launch][openssh]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(4, 1);
  refuse_each(run);
  const Stopwatch watch;
  const auto launch = run.launch({"--launcher", "openssh"});
  REQUIRE(launch->wait(kPatience));
  const double took = watch.seconds();
  INFO(launch->err());
  CHECK(launch->wait(seconds{0}) == 3);
  CHECK_THAT(launch->err(),
             Contains("3 of 4 hosts cannot be used") &&
                 Contains("w0  host key        ssh: Host key verification failed.") &&
                 Contains("--accept-new-host-keys") && Contains("ssh -v w0 true") &&
                 Contains("w1  host key") && Contains("HAS CHANGED") &&
                 Contains("Offending ED25519 key in /mnt/home/.ssh/known_hosts:") &&
                 Contains("w2  authentication  ssh: root@w2: Permission denied (publickey)"));
  CHECK(run.nothing_is_left(seconds{5}));
  CHECK(took < 10);
  WARN(fmt::format("F17 F18 F19, openssh: refused after {:.2f} s", took));

  const auto accepting = run.launch({"--launcher", "openssh", "--accept-new-host-keys"});
  REQUIRE(accepting->wait(kPatience));
  INFO(accepting->err());
  CHECK(accepting->wait(seconds{0}) == 3);
  CHECK_THAT(accepting->err(), Contains("2 of 4 hosts cannot be used") && Contains("HAS CHANGED") &&
                                   Contains("host=w0 new_host_key: accepted by ssh"));
}

}  // namespace
}  // namespace dstrain
