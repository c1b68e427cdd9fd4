// Logs how a run has ended, and where what it leaves behind is.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/train/observers/run_observer.h"

namespace dstrain {

class EndReport final : public RunObserver {
 public:
  explicit EndReport(std::filesystem::path folder);

  void on_end(const EndOfRun& end) override;

 private:
  std::filesystem::path folder_;
};

/// "planned 2.06 GiB + 0.06 GiB overhead, measured peak 2.11 GiB on rank 3, which holds most".
std::string memory_text(const std::vector<RankMemory>& by_rank);

}  // namespace dstrain
