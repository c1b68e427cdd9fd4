// Which rank is blamed for the end of a job, and in which words. The ends are made up; real ones
// are in supervisor_test.cpp.
#include "launcher/supervision/blame.h"

#include <csignal>

#include <catch2/catch.hpp>

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

constexpr int kPeerLost = 14;
const BlameRules kRules{.peer_lost_code = kPeerLost};

class Ends {
 public:
  Ends() {
    for (int rank = 0; rank < 4; ++rank) {
      specs_[rank].host = rank < 2 ? "w0" : "w1";
      specs_[rank].rank = rank;
      specs_[rank].local_rank = rank % 2;
    }
  }
  // One more rank, the next one, has ended.
  RankEnd& exited(int code) { return add(ExitStatus{code, 0, {}}); }
  RankEnd& killed(int signal, const std::string& detail = "") {
    return add(ExitStatus{0, signal, detail});
  }
  RankEnd& lost(const std::string& why) {
    RankEnd& end = add(ExitStatus{0, 0, {}});
    end.lost = why;
    return end;
  }
  std::vector<RankEnd> ends;

 private:
  RankEnd& add(const ExitStatus& status) {
    RankEnd& end = ends.emplace_back();
    end.spec = &specs_[ends.size() - 1];
    end.order = static_cast<int>(ends.size());
    end.pid = 77;
    end.status = status;
    return end;
  }
  ProcessSpec specs_[4];
};

TEST_CASE("a rank lost with its host is blamed before those killed and those that lost a peer",
          "[launcher][blame]") {
  Ends ends;
  ends.exited(kPeerLost);
  ends.killed(SIGKILL);
  ends.lost("no word from its host w1 for 5 s");
  ends.lost("no word from its host w1 for 5 s");
  const RankEnd* const cause = find_cause(ends.ends, kRules);
  REQUIRE(cause != nullptr);
  CHECK(describe(*cause, kRules, "step 12") ==
        "rank 2 (local rank 0) on w1, pid 77, was lost: no word from its host w1 for 5 s; its last "
        "words: step 12");
  CHECK(describe_briefly(*cause, kRules) ==
        "rank 2 on w1 was lost: no word from its host w1 for 5 s");
  CHECK(exit_code_of(*cause, kRules) == 1);
}

TEST_CASE("a host that is lost while the job is being stopped is not the cause",
          "[launcher][blame]") {
  Ends ends;
  ends.killed(SIGSEGV);
  ends.lost("connection reset").was_told = true;
  CHECK(find_cause(ends.ends, kRules)->spec->rank == 0);
  CHECK(exit_code_of(*find_cause(ends.ends, kRules), kRules) == 139);
}

TEST_CASE("where all say that they lost a peer, one that left with success is the cause",
          "[launcher][blame]") {
  Ends ends;
  ends.exited(0);
  ends.exited(kPeerLost);
  ends.exited(kPeerLost);
  const RankEnd* const cause = find_cause(ends.ends, kRules);
  REQUIRE(cause->spec->rank == 0);
  CHECK(describe_briefly(*cause, kRules) ==
        "rank 0 on w0 ended with exit code 0 before the others were done, which lost it");
  CHECK(exit_code_of(*cause, kRules) == 1);
  ends.exited(7);  // says more
  CHECK(find_cause(ends.ends, kRules)->spec->rank == 3);
}

TEST_CASE("one that left with success is the cause though its end is observed last",
          "[launcher][blame]") {
  Ends ends;
  ends.exited(kPeerLost);
  ends.exited(0).was_told = true;  // told to stop for the loss: an effect
  CHECK(find_cause(ends.ends, kRules)->spec->rank == 0);
  ends.exited(0);
  ends.exited(0);
  CHECK(find_cause(ends.ends, kRules)->spec->rank == 2);
}

TEST_CASE("what else is known of an end is said", "[launcher][blame]") {
  Ends ends;
  const std::string oom =
      "killed by the kernel's out-of-memory killer: memory cgroup /x, limit 8 GiB";
  const RankEnd end = ends.killed(SIGKILL, oom);
  CHECK_THAT(describe(end, kRules, ""), EndsWith("was killed by SIGKILL (signal 9): " + oom));
  CHECK_THAT(describe_briefly(end, kRules), EndsWith(oom));
  const RankEnd plain = ends.killed(SIGKILL);
  CHECK_THAT(describe(plain, kRules, ""), Contains("when memory runs out"));
  CHECK(describe_briefly(plain, kRules) == "rank 1 on w0 was killed by SIGKILL");
}

}  // namespace
}  // namespace dstrain::launcher
