#include "engine/train/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include <spdlog/spdlog.h>

#include "engine/optim/lr_schedule.h"
#include "engine/spec/config_error.h"
#include "engine/train/evaluation.h"
#include "engine/train/training_state.h"

namespace dstrain {
namespace {

std::filesystem::path output_dir(const Config& config) {
  return config.training.output_dir;
}

void write_resolved_config(const LoadedConfig& loaded) {
  const std::filesystem::path path = output_dir(loaded.config) / "config.resolved.json";
  std::ofstream out(path, std::ios::trunc);
  out << to_json(loaded) << '\n';
  if (!out.flush()) {
    throw StorageError(fmt::format("{}: cannot be written", path.string()));
  }
}

/// A checkpoint of another model must not be resumed in part.
void refuse_foreign_tensors(const Engine& engine, const std::filesystem::path& checkpoint) {
  std::set<std::string> known;
  for (const UnitDecl& unit : engine.plan().blueprint.units()) {
    for (const ParamDecl& param : unit.params) {
      known.insert(param.name);
    }
  }
  for (const auto& entry : CheckpointStore::contents(checkpoint)) {
    if (!known.contains(entry.tensor)) {
      throw CheckpointError(fmt::format(
          "{} holds {}, which this config's model does not have: give training.output_dir another "
          "folder, set checkpoint.resume to \"never\", or restore the model that was trained",
          checkpoint.string(), entry.tensor));
    }
  }
}

}  // namespace

Trainer::Trainer(const LoadedConfig& loaded, Engine& engine, const TrainOptions& options)
    : loaded_(loaded),
      config_(loaded.config),
      engine_(engine),
      options_(options),
      is_rank0_(engine.world().rank() == 0),
      train_data_(config_.data.train,
                  config_.data.sequence_length,
                  config_.model.vocab_size,
                  config_.training.seed),
      load_train_([this](std::int64_t first_sample,
                         std::span<std::int32_t> inputs,
                         std::span<std::int32_t> targets) {
        train_data_.load(first_sample, inputs, targets);
      }),
      checkpoints_(output_dir(config_) / "checkpoints") {
  if (!config_.data.validation.empty()) {
    validation_data_.emplace(config_.data.validation, config_.data.sequence_length,
                             config_.model.vocab_size, config_.training.seed);
  }
  state_.seed = config_.training.seed;
  state_.config = to_json(loaded);
  resume();
  if (is_rank0_) {
    std::filesystem::create_directories(output_dir(config_));
    write_resolved_config(loaded);
    metrics_ = std::make_unique<MetricsFile>(output_dir(config_) / "metrics.jsonl", state_.step);
  }
}

void Trainer::resume() {
  const std::optional<std::filesystem::path> from = choose_checkpoint();
  if (!from) {
    return;
  }
  refuse_foreign_tensors(engine_, *from);
  TrainingState state =
      CheckpointStore::load(*from, state_tensors(engine_, StateExtent::kEverything));
  engine_.refresh_parameters();
  if (state.seed != state_.seed) {
    spdlog::warn(
        "resuming with seed {} a run that began with seed {}: the order of samples changes",
        state_.seed, state.seed);
  }
  state.seed = state_.seed;
  state.config = state_.config;
  state_ = std::move(state);
  saved_step_ = state_.step;
  if (is_rank0_) {
    spdlog::info("resumed at step {} from {}", state_.step, from->string());
  }
}

std::optional<std::filesystem::path> Trainer::choose_checkpoint() {
  constexpr std::size_t kMaxPath = 4096;
  std::vector<std::int32_t> path(kMaxPath, 0);  // characters, ended by a 0
  if (is_rank0_) {
    std::string chosen;
    if (config_.checkpoint.resume == ResumeMode::kPath) {
      chosen = config_.checkpoint.resume_path;
    } else if (config_.checkpoint.resume == ResumeMode::kAuto) {
      chosen = checkpoints_.latest().value_or("").string();
    }
    check(chosen.size() < kMaxPath, "the path of a checkpoint is {} characters long",
          chosen.size());
    std::copy(chosen.begin(), chosen.end(), path.begin());
  }
  Stream& compute = engine_.context().compute;
  engine_.world().broadcast({path.data(), DType::kI32, Shape{kMaxPath}}, 0, Purpose::kControl,
                            compute);
  compute.synchronize();
  const std::string chosen(path.begin(), std::find(path.begin(), path.end(), 0));
  return chosen.empty() ? std::nullopt : std::optional<std::filesystem::path>(chosen);
}

TrainResult Trainer::run() {
  const std::int64_t total = config_.training.steps;
  ProgressLine progress(is_rank0_ ? options_.progress : Progress::kNone, state_.step, total,
                        config_.steps_per_print);
  while (state_.step < total && signal_ == 0) {
    StepMetrics metrics = train_one();
    evaluate_if_due(metrics);
    if (metrics_) {
      metrics_->write(metrics);
    }
    progress.after_step(metrics);
    const std::int64_t interval = config_.checkpoint.interval;
    if (interval > 0 && state_.step % interval == 0) {
      save();
    }
  }
  if (saved_step_ != state_.step) {
    save();
  }
  if (is_rank0_) {
    spdlog::info("{} at step {}{}", signal_ != 0 ? "stopped" : "finished", state_.step,
                 last_validation_loss_ ? fmt::format(", validation loss {:.4f} nats per token",
                                                     *last_validation_loss_)
                                       : "");
    spdlog::info("metrics     {}", (output_dir(config_) / "metrics.jsonl").string());
    spdlog::info("checkpoint  {}", checkpoints_.latest().value_or("none").string());
    spdlog::info("config      {}", (output_dir(config_) / "config.resolved.json").string());
  }
  return {.step = state_.step, .stopped_by = signal_};
}

StepMetrics Trainer::train_one() {
  const auto start = std::chrono::steady_clock::now();
  const BatchPlan& batch = engine_.plan().batch;
  const StepParams params{
      .learning_rate = learning_rate_of_update(config_.scheduler, config_.optimizer.learning_rate,
                                               state_.scheduler_step + 1),
      .update = state_.optimizer_step + 1,
      .gradient_clipping = config_.gradient_clipping};
  const EngineStep step = engine_.train_step(load_train_, state_.consumed_samples, params);
  const Agreement agreement = agree(step.local_loss_sum);
  if (!step.stats.updated || !std::isfinite(agreement.loss)) {
    const auto bad = engine_.find_bad_gradient(load_train_, state_.consumed_samples, params);
    const std::string tensor = bad ? bad->tensor : "";
    throw NumericalError(fmt::format(
        "step {}: loss {} and gradient norm {} are not both finite{}; this step is not saved, {}. "
        "Lower the learning rate, or clip gradients",
        state_.step + 1, agreement.loss, step.stats.grad_norm,
        tensor.empty() ? "" : fmt::format(", first in the gradient of {}", tensor),
        saved_step_ < 0 ? "and there is no checkpoint yet"
                        : fmt::format("the newest checkpoint is of step {}", saved_step_)));
  }
  state_.step += 1;
  state_.optimizer_step += 1;
  state_.scheduler_step += 1;
  state_.consumed_samples += batch.global_samples();
  signal_ = agreement.signal;

  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double tokens_per_second = static_cast<double>(batch.global_tokens()) / seconds;
  if (is_rank0_ && config_.wall_clock_breakdown && state_.step % config_.steps_per_print == 0) {
    spdlog::info("step {} ms: data {:.1f}  forward {:.1f}  backward {:.1f}  optimizer {:.1f}",
                 state_.step, step.times.data * 1e3, step.times.forward * 1e3,
                 step.times.backward * 1e3, step.times.optimizer * 1e3);
  }
  return {
      .step = state_.step,
      .tokens = state_.consumed_samples * batch.sequence,
      .loss = agreement.loss,
      .validation_loss = {},
      .learning_rate = params.learning_rate,
      .grad_norm = step.stats.grad_norm,
      .step_seconds = seconds,
      .tokens_per_second = tokens_per_second,
      .model_flops_per_second = tokens_per_second * config_.model.flops_per_token(batch.sequence),
      .memory = agreement.memory};
}

Trainer::Agreement Trainer::agree(double local_loss_sum) {
  constexpr std::int64_t kFields = 4;  // loss sum, signal, planned bytes, resident bytes
  Communicator& world = engine_.world();
  const int signal = options_.stop_signal != nullptr ? options_.stop_signal->load() : 0;
  std::array<double, kFields> mine{local_loss_sum, static_cast<double>(signal),
                                   static_cast<double>(engine_.arena().bytes()),
                                   static_cast<double>(resident_bytes())};
  std::vector<double> all(static_cast<std::size_t>(world.size() * kFields));
  Stream& compute = engine_.context().compute;
  world.all_gather({mine.data(), DType::kF64, Shape{kFields}},
                   {all.data(), DType::kF64, Shape{world.size() * kFields}}, Purpose::kMetric,
                   compute);
  compute.synchronize();
  Agreement agreement;
  double loss_sum = 0.0;
  for (std::size_t at = 0; at < all.size(); at += kFields) {
    loss_sum += all[at];
    agreement.signal = std::max(agreement.signal, static_cast<int>(all[at + 1]));
    agreement.memory.push_back(
        {static_cast<std::int64_t>(all[at + 2]), static_cast<std::int64_t>(all[at + 3])});
  }
  agreement.loss = loss_sum / static_cast<double>(engine_.plan().batch.global_tokens());
  return agreement;
}

void Trainer::evaluate_if_due(StepMetrics& metrics) {
  const std::int64_t interval = config_.training.eval_interval;
  const bool last = state_.step == config_.training.steps;
  const bool due = last || (interval > 0 && state_.step % interval == 0);
  if (validation_data_ && due && config_.training.eval_batches > 0) {
    last_validation_loss_ =
        validation_loss(engine_, *validation_data_, config_.training.eval_batches);
    metrics.validation_loss = last_validation_loss_;
  }
}

void Trainer::save() {
  checkpoints_.save(state_, state_tensors(engine_, StateExtent::kMySlice), config_.checkpoint.keep,
                    engine_.world());
  saved_step_ = state_.step;
}

}  // namespace dstrain
