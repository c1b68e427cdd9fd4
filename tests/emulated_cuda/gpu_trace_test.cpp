// A GPU's own work in a rank's trace.
#include "kernels/cuda/gpu_trace.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/cuda/cuda_device.h"
#include "tests/emulated_cuda/emulated_cupti.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a trace has a track for each of a GPU's streams, on the host's clock", "[trace]") {
  TraceLog log;
  const TraceLog::Thread bound(&log, "compute");
  const CudaDevice device(0);
  for (int window = 0; window < 2; ++window) {
    const std::int64_t before = TraceLog::now() - 10'000;
    CHECK(log.start().empty());
    const std::vector<TraceTrack> tracks = log.stop();
    REQUIRE(tracks.size() == 3);
    CHECK(tracks[0].thread == "compute");
    CHECK(tracks[1].thread == "GPU, stream 7");
    REQUIRE(tracks[1].events.size() == 1);  // one of two has no times
    const TraceEvent& kernel = tracks[1].events[0];
    CHECK(kernel.kind == TraceKind::kKernel);
    CHECK(kernel.name == "dstrain::cuda::add(float*, int)");
    CHECK(kernel.end_ns - kernel.begin_ns == 1000);
    CHECK(kernel.begin_ns > before);
    CHECK(kernel.end_ns < TraceLog::now());
    CHECK(tracks[2].thread == "GPU, stream 13");
    REQUIRE(tracks[2].events.size() == 1);
    CHECK(tracks[2].events[0].name == "Memcpy HtoD");
    CHECK(tracks[2].events[0].bytes == 4096);
  }
}

TEST_CASE("where a GPU cannot be listened to, the trace says why and has the rest", "[trace]") {
  TraceLog log;
  const TraceLog::Thread bound(&log, "compute");
  const CudaDevice device(0);
  test::EmulatedCupti& cupti = test::emulated_cupti();
  const auto reasons = [&] {
    const std::vector<std::string> said = log.start();
    CHECK(log.stop().size() == 1);
    return said;
  };
  cupti.is_missing = true;
  std::vector<std::string> said = reasons();
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Contains("libcupti, which did not open"));
  cupti = {.is_missing = false, .refuses = true};
  said = reasons();
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0], Contains("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"));
  cupti = {};
}

}  // namespace
}  // namespace dstrain
