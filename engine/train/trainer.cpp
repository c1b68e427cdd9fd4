#include "engine/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/durable_files.h"
#include "engine/config/config_error.h"
#include "engine/optim/lr_schedule.h"
#include "engine/train/accelerators.h"
#include "engine/train/evaluation.h"
#include "engine/train/initial_weights.h"
#include "engine/train/rank_report.h"
#include "kernels/core/caller_stream.h"

namespace dstrain {
namespace {

std::filesystem::path output_dir(const Config& config) {
  return config.training.output_dir;
}

void write_resolved_config(const LoadedConfig& loaded) {
  const DurableFiles files;
  const std::filesystem::path path = output_dir(loaded.config) / "config.resolved.json";
  const std::filesystem::path temporary = path.string() + ".tmp";
  files.write_file(temporary, fmt::format("{}\n", to_json(loaded)));
  files.rename(temporary, path);
}

/// In one line, of all files that cannot show that they are as they were written.
void tell_of_missing_hashes(const BatchLoader& train, const BatchLoader* validation) {
  std::vector<std::string> prefixes = train.without_hashes();
  if (validation != nullptr) {
    const std::vector<std::string>& more = validation->without_hashes();
    prefixes.insert(prefixes.end(), more.begin(), more.end());
  }
  if (!prefixes.empty()) {
    spdlog::info(
        "no hashes beside the token files {}{}: a changed byte in them would go unnoticed; "
        "prepare-data writes hashes",
        fmt::join(prefixes.begin(),
                  prefixes.begin() + std::min<std::ptrdiff_t>(3, std::ssize(prefixes)), ", "),
        prefixes.size() > 3 ? fmt::format(" and {} others", prefixes.size() - 3) : "");
  }
}

/// Only fp16 needs one.
LossScaleConfig loss_scale_of(const Config& config) {
  return config.precision == Precision::kF16 ? config.loss_scale
                                             : LossScaleConfig{.static_scale = 1.0};
}

bool scales_dynamically(const Config& config) {
  return config.precision == Precision::kF16 && config.loss_scale.static_scale == 0.0;
}

/// Ranks' devices being alike. Data sheets are of 16-bit products.
double peak_flops(const Config& config, Engine& engine) {
  const std::optional<Accelerator> one = accelerator_of_model(engine.device().model());
  return one && config.precision != Precision::kF32 ? one->flops * engine.world().size() : 0.0;
}

}  // namespace

Trainer::Trainer(const LoadedConfig& loaded,
                 Engine& engine,
                 const TrainOptions& options,
                 const RunOwner* owner,
                 std::int64_t overhead_bytes)
    : loaded_(loaded),
      config_(loaded.config),
      engine_(engine),
      options_(options),
      owner_(owner),
      overhead_bytes_(overhead_bytes),
      peak_flops_(peak_flops(config_, engine)),
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
      checkpoints_(output_dir(config_) / "checkpoints", options.disk_probe),
      scaler_(loss_scale_of(config_), config_.zero.stage) {
  if (!config_.data.validation.empty()) {
    validation_data_.emplace(config_.data.validation, config_.data.sequence_length,
                             config_.model.vocab_size, config_.training.seed);
  }
  checkpoints_.set_owner(owner);
  if (is_rank0_) {
    tell_of_missing_hashes(train_data_, validation_data_ ? &*validation_data_ : nullptr);
  }
  state_.seed = config_.training.seed;
  state_.config = to_json(loaded);
  const TokenizerMismatch mismatch =
      options.allow_tokenizer_mismatch ? TokenizerMismatch::kWarn : TokenizerMismatch::kRefuse;
  const bool trains = options.goal == RunGoal::kTrain;
  const auto from = resume_run(loaded, engine_, checkpoints_, mismatch, options.goal);
  if (trains && from && is_done(config_, from->training)) {
    if (is_rank0_) {
      spdlog::info("{}", describe_done(config_, *from));
    }
    state_.step = from->training.step;
    is_done_ = true;
    return;
  }
  if (from) {
    take_up(from->training);
  } else {
    agree_on_tokenizer(config_, mismatch, engine_.world());
    if (!config_.initial_weights.empty()) {
      start_from_weights(config_, engine_);
    }
  }
  if (!trains) {
    return;
  }
  remember_tokenizer(from);
  saves_ = std::make_unique<RunSaves>(config_.checkpoint, engine_, checkpoints_,
                                      from ? state_.step : -1);
  replicas_.emplace(engine_, config_.training.replica_check_interval, state_.step);
  if (is_rank0_) {
    if (owner_ == nullptr) {
      throw CheckpointError(fmt::format(
          "{} had all steps a moment ago, and has not now: somebody else changes it; start again",
          output_dir(config_).string()));
    }
    const RunOwner::Hold hold = owner_->hold();
    write_resolved_config(loaded);
    metrics_ =
        std::make_unique<MetricsFiles>(output_dir(config_), state_.step, config_.training.steps);
  }
  look_at_memory();
}

void Trainer::take_up(const TrainingState& resumed) {
  TrainingState state = resumed;
  state.seed = state_.seed;
  state.config = state_.config;
  state_ = std::move(state);
  engine_.restore_fp8(state_.fp8_amax);
  if (config_.fp8.enabled && state_.fp8_amax.empty() && is_rank0_) {
    spdlog::info(
        "the checkpoint has no history of fp8's scales: they are measured in the first step");
  }
  scaler_.restore({.scale = state_.loss_scale,
                   .iteration = state_.scaler_iteration,
                   .last_overflow = state_.last_overflow,
                   .hysteresis = state_.hysteresis});
}

void Trainer::remember_tokenizer(const std::optional<ResumedFrom>& from) {
  nlohmann::json told;
  if (is_rank0_) {
    RunTokenizer run = tokenizer_of_run(config_, from ? &*from : nullptr);
    told = {{"data", run.data}};
    if (run.identity) {
      told["tokenizer"] = to_json(*run.identity);
    }
    checkpoints_.set_companions(std::move(run.files));
  }
  // Every rank writes its own share of a manifest, and these must say the same.
  told = nlohmann::json::parse(broadcast_text(
      told.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 0, engine_.world()));
  told.at("data").get_to(state_.data);
  state_.tokenizer = parse_tokenizer_identity(told.value("tokenizer", nlohmann::json()));
}

TrainResult Trainer::evaluate_alone() {
  const PhaseScope phase(options_.activity, RunPhase::kEvaluating);
  const double loss =
      validation_loss(engine_, validation_data_.value(), config_.training.eval_batches);
  if (is_rank0_) {
    const bool is_untrained = state_.step == 0 && config_.initial_weights.empty();
    spdlog::info("evaluated at step {}{}, validation loss {:.4f} nats per token", state_.step,
                 is_untrained ? ", of weights that are as they were drawn" : "", loss);
  }
  return {.step = state_.step};
}

TrainResult Trainer::run() {
  if (options_.goal == RunGoal::kEvaluate) {
    return evaluate_alone();
  }
  if (is_done_) {
    return {.step = state_.step};
  }
  const std::int64_t total = config_.training.steps;
  tell_phase(RunPhase::kTraining);
  ProgressLine progress(is_rank0_ ? options_.progress : Progress::kNone, state_.step, total,
                        config_.steps_per_print);
  while (state_.step < total && signal_ == 0) {
    StepMetrics metrics = train_one();
    evaluate_if_due(metrics);
    write(metrics);
    progress.after_step(metrics);
    if (options_.activity != nullptr) {
      options_.activity->finish_step(state_.step);
    }
    if (save_has_ended_) {
      const PhaseScope phase(options_.activity, RunPhase::kSaving);
      saves_->finish();
    }
    const std::int64_t interval = config_.checkpoint.interval;
    save_is_due_ = save_is_due_ || (interval > 0 && state_.step % interval == 0);
    // Gradients that are not finite say nothing good of the parameters: wait for better ones.
    if (save_is_due_ && state_.consecutive_skips == 0) {
      const PhaseScope phase(options_.activity, RunPhase::kSaving);
      check_state();
      state_.fp8_amax = engine_.fp8_state();
      saves_->save(state_);
      save_is_due_ = false;
      look_at_memory();
    }
  }
  tell_phase(RunPhase::kSaving);
  if (saves_->saved_step() != state_.step) {
    check_state();
  }
  state_.fp8_amax = engine_.fp8_state();
  saves_->save_last(state_);
  if (owner_ != nullptr) {
    static_cast<void>(owner_->hold());  // where the last save was of an earlier step's end, too
  }
  tell_phase(RunPhase::kEnding);
  const std::vector<RankMemory> memory = agree(/*local_loss_sum=*/0.0).memory;
  if (is_rank0_) {
    spdlog::info("{} at step {}{}", signal_ != 0 ? "stopped" : "finished", state_.step,
                 last_validation_loss_ ? fmt::format(", validation loss {:.4f} nats per token",
                                                     *last_validation_loss_)
                                       : "");
    spdlog::info("memory      {}", memory_text(memory));
    if (saves_->failed_saves() > 0) {
      spdlog::warn("{} saves failed on the way; the last one, of step {}, did not",
                   saves_->failed_saves(), saves_->saved_step());
    }
    spdlog::info("metrics     {}", (output_dir(config_) / "metrics.jsonl").string());
    spdlog::info("checkpoint  {}", checkpoints_.latest().value_or("none").string());
    spdlog::info("config      {}", (output_dir(config_) / "config.resolved.json").string());
  }
  return {.step = state_.step, .stopped_by = signal_, .failed_saves = saves_->failed_saves()};
}

StepMetrics Trainer::train_one() {
  const auto start = std::chrono::steady_clock::now();
  const BatchPlan& batch = engine_.plan().batch;
  const StepParams params = params_of_next_step();
  const double checkpoint_seconds = saves_->take_pause_seconds();
  const bool saving = saves_->under_way();
  if (options_.waits != nullptr) {
    static_cast<void>(options_.waits->take_seconds());  // of evaluation and saves
  }
  const std::int64_t number = state_.step + 1;
  const EngineStep step =
      engine_.train_step(load_train_, state_.consumed_samples, params, [this, number] {
        if (replicas_->is_due(number)) replicas_->check(number, saves_->saved_step());
      });
  Agreement agreement = agree(step.local_loss_sum);
  if (step.stats.updated && !std::isfinite(agreement.loss)) {
    give_up(fmt::format("the loss is {} though its gradients are finite", agreement.loss),
            "This is not a matter of the learning rate: please report it");
  }
  if (step.stats.updated) {
    static_cast<void>(scaler_.after_step(/*overflow=*/false));
    state_.optimizer_step += 1;
    state_.scheduler_step += 1;
    state_.consecutive_skips = 0;
  } else {
    skip(params, agreement.loss, step.stats.grad_norm);
  }
  state_.step += 1;
  state_.consumed_samples += batch.global_samples();
  state_.loss_scale = scaler_.state().scale;
  state_.scaler_iteration = scaler_.state().iteration;
  state_.last_overflow = scaler_.state().last_overflow;
  state_.hysteresis = scaler_.state().hysteresis;
  signal_ = agreement.signal;
  save_has_ended_ = agreement.save_has_ended;

  const std::optional<double> waited =
      options_.waits == nullptr ? std::nullopt : std::optional(options_.waits->take_seconds());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  replicas_->add_step(seconds);
  const double tokens_per_second = static_cast<double>(batch.global_tokens()) / seconds;
  const double flops_per_second = tokens_per_second * config_.model.flops_per_token(batch.sequence);
  if (is_rank0_ && config_.wall_clock_breakdown && state_.step % config_.steps_per_print == 0) {
    spdlog::info("step {} ms: data {:.1f}  forward {:.1f}  backward {:.1f}  optimizer {:.1f}",
                 state_.step, step.times.data * 1e3, step.times.forward * 1e3,
                 step.times.backward * 1e3, step.times.optimizer * 1e3);
  }
  return {.step = state_.step,
          .tokens = state_.consumed_samples * batch.sequence,
          .loss = agreement.loss,
          .validation_loss = {},
          .learning_rate = params.learning_rate,
          .grad_norm = step.stats.grad_norm,
          .loss_scale = params.loss_scale,
          .skipped = !step.stats.updated,
          .step_seconds = seconds,
          .phases = {.data = step.times.data,
                     .forward = step.times.forward,
                     .backward = step.times.backward,
                     .optimizer = step.times.optimizer,
                     .communication = waited},
          .checkpoint_seconds = checkpoint_seconds,
          .saving = saving,
          .tokens_per_second = tokens_per_second,
          .model_flops_per_second = flops_per_second,
          .model_flops_utilization =
              peak_flops_ > 0.0 ? std::optional(flops_per_second / peak_flops_) : std::nullopt,
          .memory = std::move(agreement.memory),
          .devices = std::move(agreement.devices)};
}

StepParams Trainer::params_of_next_step() const {
  const std::int64_t update = state_.scheduler_step + 1;
  const std::optional<CycledBetas> betas = betas_of_update(config_.scheduler, update);
  return {.learning_rate =
              learning_rate_of_update(config_.scheduler, config_.optimizer.learning_rate, update),
          .beta1 = betas ? std::optional(betas->beta1) : std::nullopt,
          .beta2 = betas ? std::optional(betas->beta2) : std::nullopt,
          .update = state_.optimizer_step + 1,
          .gradient_clipping = config_.gradient_clipping,
          .loss_scale = scaler_.scale(),
          .seed = config_.training.seed};
}

void Trainer::skip(const StepParams& params, double loss, double grad_norm) {
  const std::int64_t limit = config_.training.max_consecutive_skips.value_or(1);
  state_.skipped_steps += 1;
  state_.consecutive_skips += 1;
  const bool at_minimum = scaler_.after_step(/*overflow=*/true) == ScaleOutcome::kAtMinimum;
  const std::string what = fmt::format("loss {} and gradient norm {} at loss scale {:g}", loss,
                                       grad_norm, params.loss_scale);
  if (at_minimum) {
    give_up(
        fmt::format("{}, the smallest allowed (fp16.min_loss_scale), {}", what, culprit(params)),
        "Use bf16, lower the learning rate, or clip gradients");
  }
  if (!engine_.parameters_are_finite()) {
    give_up(fmt::format("{}, {}: the parameters themselves are no longer finite", what,
                        culprit(params)),
            "Lower the learning rate, or clip gradients");
  }
  if (state_.consecutive_skips >= limit) {
    give_up(fmt::format("{}, {}: {} steps in a row could not be used "
                        "(training.max_consecutive_skips)",
                        what, culprit(params), state_.consecutive_skips),
            "Lower the learning rate, clip gradients, or look at the data of this step");
  }
  // With a dynamic scale an overflow is how the scale is found: no reason to look for a culprit.
  const bool expected = scales_dynamically(config_);
  const std::string found = expected ? "" : ", " + culprit(params);
  if (is_rank0_) {
    spdlog::log(expected ? spdlog::level::info : spdlog::level::warn,
                "step {} is skipped, {} in a row: {}{}{}", state_.step + 1,
                state_.consecutive_skips, what, found,
                scaler_.scale() != params.loss_scale
                    ? fmt::format("; the scale is {:g} from now on", scaler_.scale())
                    : "");
  }
}

std::string Trainer::culprit(const StepParams& params) {
  const auto bad = engine_.find_bad_gradient(load_train_, state_.consumed_samples, params);
  return bad ? fmt::format("first in the gradient of {} on rank {}, micro-batch {}", bad->tensor,
                           bad->rank, bad->micro_batch)
             : "with finite gradients on every rank, whose sum overflows";
}

void Trainer::give_up(const std::string& what, const std::string& advice) const {
  throw NumericalError(
      fmt::format("step {}: {}; this step is not saved, {}. {}", state_.step + 1, what,
                  saves_->saved_step() < 0
                      ? "and there is no checkpoint yet"
                      : fmt::format("the newest checkpoint is of step {}", saves_->saved_step()),
                  advice));
}

Trainer::Agreement Trainer::agree(double local_loss_sum) {
  const int signal = options_.stop_signal != nullptr ? options_.stop_signal->load() : 0;
  const RankReport mine{.loss_sum = local_loss_sum,
                        .signal = signal,
                        .save_has_ended = saves_->has_ended(),
                        .memory = look_at_memory(),
                        .device = engine_.device().readings()};
  CallerStream host;
  Agreement agreement{.save_has_ended = true};
  double loss_sum = 0.0;
  for (const RankReport& report : gather_reports(mine, engine_.world(), host)) {
    loss_sum += report.loss_sum;
    agreement.signal = std::max(agreement.signal, report.signal);
    agreement.save_has_ended = agreement.save_has_ended && report.save_has_ended;
    if (!is_rank0_) continue;  // who writes them
    agreement.memory.push_back(report.memory);
    if (report.device) agreement.devices.push_back(*report.device);
  }
  agreement.loss = engine_.objective().mean_loss(loss_sum);
  return agreement;
}

RankMemory Trainer::look_at_memory() {
  const ResidentMemory resident = resident_memory();
  const std::optional<DeviceReadings> device = engine_.device().readings();
  const std::int64_t now = device ? device->used_bytes : resident.own_bytes;
  peak_bytes_ = std::max({peak_bytes_, now, device ? device->peak_bytes : 0});
  return {.planned_bytes = engine_.arena().bytes(),
          .overhead_bytes = overhead_bytes_,
          .measured_bytes = now,
          .peak_bytes = peak_bytes_,
          .resident_peak_bytes = resident.peak_bytes};
}

void Trainer::evaluate_if_due(StepMetrics& metrics) {
  const std::int64_t interval = config_.training.eval_interval;
  const bool last = state_.step == config_.training.steps;
  const bool due = last || (interval > 0 && state_.step % interval == 0);
  if (validation_data_ && due && config_.training.eval_batches > 0) {
    const PhaseScope phase(options_.activity, RunPhase::kEvaluating);
    const auto start = std::chrono::steady_clock::now();
    last_validation_loss_ =
        validation_loss(engine_, *validation_data_, config_.training.eval_batches);
    metrics.validation_loss = last_validation_loss_;
    metrics.evaluation_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    look_at_memory();
  }
}

void Trainer::write(const StepMetrics& metrics) {
  if (!metrics_) {
    return;
  }
  owner_->require();  // not only where a line is written: a save may be far
  const bool was_late = metrics_->has_unwritten();
  const bool is_last = state_.step == config_.training.steps || signal_ != 0;
  try {
    metrics_->write(metrics, is_last);
  } catch (const StorageError& error) {
    if (config_.checkpoint.on_save_failure == SaveFailure::kStop || is_last) {
      throw;
    }
    if (!was_late) {
      spdlog::error("{}; the run goes on, the line waits until it can", error.what());
    }
  }
}

void Trainer::tell_phase(RunPhase phase) const {
  if (options_.activity != nullptr) {
    options_.activity->begin_phase(phase);
  }
}

void Trainer::check_state() {
  if (!engine_.parameters_are_finite()) {
    give_up("the parameters are no longer finite", "Lower the learning rate, or clip gradients");
  }
  replicas_->check(state_.step, saves_->saved_step());
}

}  // namespace dstrain
