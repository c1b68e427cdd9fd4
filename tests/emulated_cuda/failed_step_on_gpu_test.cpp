// Like tests/failure/failed_step_test.cpp, with a GPU for each rank: here a kernel of NCCL's does
// not end, and the stream and every release of memory wait for it.
#include <cstdlib>

#include <catch2/catch.hpp>

#include "engine/comm/device_rendezvous.h"
#include "tests/harness/failed_step.h"
#include "tests/harness/local_rendezvous.h"

namespace dstrain::test {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a rank that fails beside a collective over NCCL is gone long before its deadline",
          "[failure][nccl]") {
  setenv("DSTRAIN_EMULATED_GPUS", "2", 1);
  REQUIRE(find_cuda_devices().names.size() == 2);
  const auto store = make_memory_store();
  const double seconds = seconds_to_end_failed_step(
      make_local_rendezvous(2, 30s), {.backend = [](int rank) { return make_cuda_backend(rank); },
                                      .rendezvous =
                                          [&](Rendezvous& host, Device& device) {
                                            return make_device_rendezvous(host, *store, device,
                                                                          {.timeout = 30s});
                                          }});
  CHECK(seconds < 10.0);
}

}  // namespace
}  // namespace dstrain::test
