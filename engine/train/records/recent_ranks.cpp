#include "engine/train/records/recent_ranks.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include "engine/train/records/metrics_files.h"

namespace dstrain {

RecentRanks::RecentRanks(const std::filesystem::path& output_dir) : path_(output_dir / kFile) {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

void RecentRanks::write(const StepMetrics& metrics, bool is_last) {
  constexpr std::chrono::milliseconds kApart{500};
  constexpr int kShareOfTime = 200;  // a line of thousands of ranks takes milliseconds
  if (metrics.times.empty()) return;
  if (!steps_.empty() && steps_.front().size() != metrics.times.size()) steps_.clear();
  if (steps_.size() == kSteps) {
    std::rotate(steps_.begin(), steps_.begin() + 1, steps_.end());
    steps_.back() = metrics.times;
  } else {
    steps_.push_back(metrics.times);
  }
  const Clock::time_point begin = Clock::now();
  if (begin < next_ && !is_last) return;
  const std::filesystem::path temporary = path_.string() + ".tmp";
  std::ofstream(temporary) << ranks_line(metrics, steps_, std::chrono::system_clock::now()) << '\n';
  std::error_code ignored;
  std::filesystem::rename(temporary, path_, ignored);
  const Clock::time_point end = Clock::now();
  next_ = end + std::max<Clock::duration>(kApart, kShareOfTime * (end - begin));
}

}  // namespace dstrain
