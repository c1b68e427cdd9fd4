#include "kernels/cuda/timing.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/cuda_check.h"

namespace dstrain {
namespace {

/// A point of a stream at which the GPU notes the time.
class TimedPoint {
 public:
  TimedPoint() {
    cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDefault), "cudaEventCreate");
  }
  TimedPoint(const TimedPoint&) = delete;
  TimedPoint& operator=(const TimedPoint&) = delete;
  ~TimedPoint() { (void)cudaEventDestroy(event_); }

  void record(cudaStream_t stream) {
    cuda_check(cudaEventRecord(event_, stream), "cudaEventRecord of a timing");
  }
  /// Waits for this point.
  [[nodiscard]] double microseconds_since(const TimedPoint& start) const {
    constexpr double kOfAMillisecond = 1000.0;
    float milliseconds = 0.0F;
    cuda_check(cudaEventSynchronize(event_), "cudaEventSynchronize of a timing");
    cuda_check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
    return kOfAMillisecond * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::vector<double> microseconds_of(const std::vector<std::function<void()>>& ways,
                                    cudaStream_t stream) {
  constexpr int kBursts = 3;
  constexpr int kRunsOfABurst = 3;  // so that starting to launch does not count for much
  for (const auto& way : ways) {
    way();  // loads its kernels
  }
  std::vector<double> best(ways.size(), std::numeric_limits<double>::infinity());
  TimedPoint start;
  TimedPoint end;
  for (int burst = 0; burst < kBursts; ++burst) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      start.record(stream);
      for (int run = 0; run < kRunsOfABurst; ++run) {
        ways[i]();
      }
      end.record(stream);
      best[i] = std::min(best[i], end.microseconds_since(start) / kRunsOfABurst);
    }
  }
  return best;
}

}  // namespace dstrain
