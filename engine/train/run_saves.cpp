#include "engine/train/run_saves.h"

#include <chrono>
#include <utility>

#include <spdlog/spdlog.h>

#include "engine/config/config.h"
#include "engine/train/training_state.h"

namespace dstrain {
namespace {

/// Adds the time since construction to the pauses, also when an exception ends it.
class Pause {
 public:
  explicit Pause(double& seconds) : seconds_(seconds) {}
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  ~Pause() { seconds_ += so_far(); }
  [[nodiscard]] double so_far() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

RunSaves::RunSaves(const CheckpointConfig& config,
                   Engine& engine,
                   CheckpointStore& checkpoints,
                   std::int64_t resumed_step)
    : config_(config), engine_(engine), checkpoints_(checkpoints), saved_step_(resumed_step) {
  if (engine.plan().saves_in_background()) {
    snapshot_.emplace(engine);
    background_.emplace(checkpoints, engine.checkpoint_group());
  }
}

void RunSaves::finish() {
  attempt(background_->step(), [this] { background_->collect(); });
}

void RunSaves::save(const TrainingState& state) {
  const Pause pause(pause_seconds_);
  engine_.settle();
  if (!background_) {
    attempt(state.step, [&] { save_now(state); });
    return;
  }
  if (background_->under_way()) {
    const std::int64_t before = background_->step();
    const bool is_late = !background_->has_ended();
    finish();
    if (is_late && engine_.world().rank() == 0) {
      spdlog::warn("saving step {} waited {:.2f} s for the save of step {}", state.step,
                   pause.so_far(), before);
    }
  }
  background_->start(state, snapshot_->take(state.optimizer_step), config_.keep);
  if (engine_.world().rank() == 0) {
    spdlog::info("step {} is being saved beside training, which paused for {:.2f} s", state.step,
                 pause.so_far());
  }
}

void RunSaves::save_last(const TrainingState& state) {
  engine_.settle();
  if (under_way()) {
    finish();
  }
  if (saved_step_ != state.step) {
    save_now(state);  // nothing is left to compute meanwhile
    saved_step_ = state.step;
  }
}

double RunSaves::take_pause_seconds() {
  return std::exchange(pause_seconds_, 0.0);
}

void RunSaves::save_now(const TrainingState& state) {
  const OwnStates own = OwnStates::after(engine_.plan(), state.optimizer_step);
  checkpoints_.save(state, state_tensors(engine_, StateExtent::kMySlice, own), config_.keep,
                    engine_.world());
}

/// Failures other than of storage always stop the run.
void RunSaves::attempt(std::int64_t step, const std::function<void()>& write) {
  try {
    write();
    saved_step_ = step;
  } catch (const StorageError& error) {
    if (config_.on_save_failure == SaveFailure::kStop) {
      throw;
    }
    ++failed_saves_;
    if (engine_.world().rank() == 0) {
      spdlog::error(
          "step {} could not be saved: {}; the run continues and tries again in {} steps, {}", step,
          error.what(), config_.interval,
          saved_step_ < 0 ? "without any checkpoint yet"
                          : fmt::format("its newest checkpoint is of step {}", saved_step_));
    }
  }
}

}  // namespace dstrain
