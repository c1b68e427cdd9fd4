#include "engine/train/records/open_records.h"

#include <filesystem>

#include <spdlog/spdlog.h>

#include "engine/checkpoint/durable_files.h"
#include "engine/train/records/csv_files.h"
#include "engine/train/records/metrics_files.h"
#include "engine/train/records/monitor_folder.h"
#include "engine/train/records/recent_ranks.h"
#include "engine/train/records/rollouts_file.h"
#include "engine/train/records/run_description.h"
#include "engine/train/records/sampled_texts.h"
#include "engine/train/records/tensorboard.h"
#include "engine/train/records/wandb_run.h"

namespace dstrain {

std::vector<std::unique_ptr<StepRecords>> open_records(const LoadedConfig& loaded,
                                                       const RunPosition& resumed) {
  const Config& config = loaded.config;
  const std::filesystem::path output = config.training.output_dir;
  std::vector<std::unique_ptr<StepRecords>> records;
  records.push_back(std::make_unique<MetricsFiles>(output, resumed.step, config.training.steps,
                                                   config.model.experts.count > 0));
  records.push_back(std::make_unique<RecentRanks>(output));
  if (!config.training.eval_prompts.empty()) {
    records.push_back(std::make_unique<SampledTexts>(output, resumed.step));
  }
  if (config.policy.enabled()) {
    records.push_back(std::make_unique<RolloutsFile>(output, resumed.step));
  }
  const MonitorConfig& monitors = config.monitors;
  const RunDescription description = describe_run(loaded);
  if (monitors.tensorboard.enabled) {
    const auto folder =
        own_monitor_folder(monitors.tensorboard, "tensorboard", output, "tensorboard");
    records.push_back(std::make_unique<TensorBoard>(folder, resumed, description));
    spdlog::info("curves for TensorBoard in {}", folder.string());
  }
  if (monitors.csv.enabled) {
    const auto folder = own_monitor_folder(monitors.csv, "csv_monitor", output, "csv");
    records.push_back(std::make_unique<CsvFiles>(folder, resumed));
    spdlog::info("curves as CSV in {}", folder.string());
  }
  if (monitors.wandb.enabled) {
    const auto folder = output / "wandb";
    DurableFiles().make_folder(folder);
    auto run = std::make_unique<WandbRun>(folder, resumed, description, monitors.wandb);
    spdlog::info("curves for Weights & Biases in {}; `wandb sync` sends them",
                 run->folder().string());
    records.push_back(std::move(run));
  }
  return records;
}

}  // namespace dstrain
