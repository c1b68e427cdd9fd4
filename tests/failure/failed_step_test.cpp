// A rank whose step fails does not wait for peers that do not come to what it has begun.
#include "tests/harness/failed_step.h"

#include <catch2/catch.hpp>

#include "tests/harness/local_rendezvous.h"
#include "tests/harness/wire_here.h"

namespace dstrain::test {
namespace {

using namespace std::chrono_literals;

const RankDevices kOnCpu{
    .backend = [](int) { return make_cpu_backend(1); },
    .rendezvous = [](Rendezvous&, Device&) { return nullptr; },
};

TEST_CASE("a rank that fails beside a collective over sockets is gone long before its deadline",
          "[failure]") {
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Rendezvous>> world;
  for (int rank = 0; rank < 2; ++rank) {
    world.push_back(
        make_process_rendezvous(rank, 2, *store, {.wire = wire_here(), .timeout = 30s}));
  }
  CHECK(seconds_to_end_failed_step(std::move(world), kOnCpu) < 10.0);
}

TEST_CASE("so it is between threads of a process", "[failure]") {
  CHECK(seconds_to_end_failed_step(make_local_rendezvous(2, 30s), kOnCpu) < 10.0);
}

}  // namespace
}  // namespace dstrain::test
