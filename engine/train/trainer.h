// Trainer: the loop. Step after step it trains, agrees with the other ranks on loss and signals,
// evaluates, saves, and tells the user.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/data/batch_loader.h"
#include "engine/train/engine.h"
#include "engine/train/metrics.h"
#include "engine/train/progress.h"
#include "engine/train/run_training.h"

namespace dstrain {

class Trainer {
 public:
  /// Opens and checks the data, resumes where the config says so. `loaded` must outlive it.
  Trainer(const LoadedConfig& loaded, Engine& engine, const TrainOptions& options);

  /// Until training.steps, or until a signal: the last step is saved either way.
  TrainResult run();

 private:
  /// What the ranks tell each other after every step.
  struct Agreement {
    double loss = 0.0;
    int signal = 0;
    std::vector<RankMemory> memory;
  };

  void resume();
  /// Rank 0 chooses, so that no two ranks can resume from different ones.
  std::optional<std::filesystem::path> choose_checkpoint();
  StepMetrics train_one();
  Agreement agree(double local_loss_sum);
  void evaluate_if_due(StepMetrics& metrics);
  void save();

  const LoadedConfig& loaded_;
  const Config& config_;
  Engine& engine_;
  TrainOptions options_;
  bool is_rank0_;
  BatchLoader train_data_;
  LoadBatch load_train_;
  std::optional<BatchLoader> validation_data_;
  CheckpointStore checkpoints_;
  TrainingState state_;
  std::int64_t saved_step_ = -1;
  int signal_ = 0;
  std::unique_ptr<MetricsFile> metrics_;
  std::optional<double> last_validation_loss_;
};

}  // namespace dstrain
