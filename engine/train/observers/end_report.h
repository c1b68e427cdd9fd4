// Logs how a run has ended, and where to find what it leaves behind.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/config/data_config.h"
#include "engine/train/observers/run_observer.h"

namespace dstrain {

class EndReport final : public RunObserver {
 public:
  EndReport(std::filesystem::path folder, std::vector<DataSource> sources);

  void on_end(const EndOfRun& end) override;

 private:
  std::filesystem::path folder_;
  std::vector<DataSource> sources_;
};

/// "1.31 epochs of data/web, 0.20 of data/code"; for many sources, the first ones and the extremes
/// of all.
std::string epochs_text(const std::vector<DataSource>& sources, const std::vector<double>& epochs);

/// "planned 2.06 GiB + 0.06 GiB overhead, measured peak 2.11 GiB on rank 3, which holds most".
std::string memory_text(const std::vector<RankMemory>& by_rank);

}  // namespace dstrain
