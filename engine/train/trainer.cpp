#include "engine/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/checkpoint/durable_files.h"
#include "engine/config/arch/model_counts.h"
#include "engine/config/config_error.h"
#include "engine/train/accelerators.h"
#include "engine/train/evaluation.h"
#include "engine/train/host_name.h"
#include "engine/train/initial_weights.h"
#include "engine/train/observers/activity_teller.h"
#include "engine/train/observers/end_report.h"
#include "engine/train/observers/metrics_server.h"
#include "engine/train/observers/metrics_writer.h"
#include "engine/train/observers/phase_times.h"
#include "engine/train/observers/progress_line.h"
#include "engine/train/observers/routing_watch.h"
#include "engine/train/records/open_records.h"
#include "engine/train/records/run_description.h"
#include "engine/train/run_outline.h"
#include "engine/train/step_policy/synchronous_steps.h"
#include "engine/train/trained_part.h"
#include "kernels/core/trace_range.h"

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

/// Lists in one line all files that have no hash to show that they are unchanged.
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

void tell_of_packing(const BatchLoader& train, const BatchLoader* validation) {
  for (const BatchLoader* const data : {&train, validation}) {
    if (data == nullptr) continue;
    for (const std::string& line : data->reports()) {
      spdlog::info("{}", line);
    }
  }
}

/// Whom each group of the clock is for: by its name, those of the plan; any other, all.
std::vector<WaitFor> waits_by_group(const WaitClock& clock, const std::vector<GroupPlan>& groups) {
  std::vector<WaitFor> waits;
  for (const std::string& name : clock.groups()) {
    const auto found = std::find_if(groups.begin(), groups.end(),
                                    [&](const GroupPlan& group) { return group.name == name; });
    waits.push_back(found == groups.end() ? WaitFor::kAll : waits_for(found->id));
  }
  return waits;
}

/// Assumes that all ranks' devices are alike. Data sheets give 16-bit products.
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
      memory_(engine.device(), engine.arena().bytes(), overhead_bytes),
      peak_flops_(peak_flops(config_, engine)),
      left_out_flops_(left_out_flops_per_token(engine.plan().shape)),
      head_flops_(head_flops_per_token(engine.plan().shape.model) -
                  left_out_flops_of_head(engine.plan().shape)),
      is_rank0_(engine.world().rank() == 0),
      load_train_([this](std::int64_t first_sample,
                         std::span<std::int32_t> inputs,
                         std::span<std::int32_t> targets) {
        if (rewards_) return rewards_->load(first_sample, inputs, targets);
        train_data_->load(first_sample, inputs, targets);
      }),
      checkpoints_(output_dir(config_) / "checkpoints", options.disk_probe),
      policy_(std::make_unique<SynchronousSteps>(
          engine,
          OwnRank{.report = [this] { return report(); },
                  .saved_step = [this] { return saves_->saved_step(); }})) {
  if (!config_.policy.enabled()) {
    train_data_.emplace(require_document_end(config_.data), config_.data.train,
                        config_.model.vocab_size, config_.training.seed);
  }
  if (!config_.data.validation.empty()) {
    validation_data_.emplace(config_.data, config_.data.validation, config_.model.vocab_size,
                             config_.training.seed);
  }
  checkpoints_.set_owner(owner);
  if (options.waits != nullptr) {
    waits_for_ = waits_by_group(*options.waits, engine_.plan().groups);
  }
  if (is_rank0_ && train_data_) {
    const BatchLoader* const validation = validation_data_ ? &*validation_data_ : nullptr;
    tell_of_missing_hashes(*train_data_, validation);
    tell_of_packing(*train_data_, validation);
  }
  state_.seed = config_.training.seed;
  state_.config = to_json(loaded);
  const TokenizerMismatch mismatch =
      options.allow_tokenizer_mismatch ? TokenizerMismatch::kWarn : TokenizerMismatch::kRefuse;
  const bool trains = options.goal == RunGoal::kTrain;
  bool has_first_weights = false;
  const auto take_first_weights = [&] {
    agree_on_tokenizer(config_, mismatch, engine_.world());
    if (!config_.initial_weights.empty()) {
      start_from_weights(config_, engine_);
    } else {
      engine_.draw_parameters();
      engine_.refresh_parameters();
    }
    has_first_weights = true;
  };
  // Where there is nothing to do, rank 0 owns no folder.
  const bool has_work =
      !trains || !broadcast_text(owner_ != nullptr ? "work" : "", 0, engine_.world()).empty();
  if (config_.preferences.enabled() && has_work) {
    preferences_.emplace(config_, engine_, *train_data_,
                         validation_data_ ? &*validation_data_ : nullptr, options_);
    signal_ = preferences_->find_reference(take_first_weights);
    if (signal_ != 0) return;  // before the first step
    preferences_->set_objective();
  }
  if (trains && has_work && !engine_.plan().reference.empty()) {
    take_first_weights();  // a resume reads its own over them
    engine_.keep_reference();
  }
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
  } else if (!has_first_weights) {
    take_first_weights();
  }
  if (!config_.training.eval_prompts.empty()) texts_.emplace(config_, engine_);
  if (trains && config_.policy.enabled()) {
    rewards_.emplace(config_, engine_, options_);
    rewards_->take_up(state_.rollouts);
    rewards_->set_objective();
  }
  if (!trains) {
    add_observers();
    return;
  }
  remember_sources(from);
  trace_.emplace(config_.training.trace, output_dir(config_),
                 RunTrace::Rank{.host = host_name(),
                                .place = place_of_rank(engine_.plan().mesh, engine_.plan().rank),
                                .device = engine_.device().description()},
                 engine_.world(), TraceLog::of_this_thread());
  saves_ = std::make_unique<RunSaves>(config_.checkpoint, engine_, checkpoints_,
                                      from ? state_.step : -1);
  replicas_.emplace(engine_, config_.training.replica_check_interval, state_.step);
  if (is_rank0_) {
    if (owner_ == nullptr) {
      throw CheckpointError(
          fmt::format("{} had all steps a moment ago, and no longer does: somebody else is "
                      "changing it; start again",
                      output_dir(config_).string()));
    }
    const RunOwner::Hold hold = owner_->hold();
    write_resolved_config(loaded);
    observers_.push_back(std::make_unique<MetricsWriter>(
        open_records(loaded, {.step = state_.step, .samples = state_.consumed_samples}),
        config_.checkpoint.on_save_failure, *owner_));
  }
  add_observers();
  static_cast<void>(memory_.look());
}

void Trainer::add_observers() {
  if (is_rank0_ && options_.goal == RunGoal::kTrain) {
    if (config_.wall_clock_breakdown) {
      observers_.push_back(std::make_unique<PhaseTimes>(config_.steps_per_print));
    }
    observers_.push_back(std::make_unique<ProgressLine>(
        options_.progress, state_.step, config_.training.steps, config_.steps_per_print));
    if (config_.model.experts.count > 0) {
      observers_.push_back(std::make_unique<RoutingWatch>());
    }
    if (options_.metrics_at) {
      observers_.push_back(std::make_unique<MetricsServer>(
          *options_.metrics_at, run_name(output_dir(config_)), state_.step));
    }
    observers_.push_back(std::make_unique<EndReport>(output_dir(config_), config_.data.train));
  }
  if (options_.activity != nullptr) {
    observers_.push_back(std::make_unique<ActivityTeller>(*options_.activity));
  }
}

void Trainer::take_up(const TrainingState& resumed) {
  TrainingState state = resumed;
  state.seed = state_.seed;
  state.config = state_.config;
  state_ = std::move(state);
  tokens_ = engine_.plan().batch.tokens_after(state_.step, state_.consumed_samples);
  engine_.restore_fp8(state_.fp8_amax);
  engine_.restore_optimizer(state_.optimizer_numbers);
  if (config_.fp8.enabled && state_.fp8_amax.empty() && is_rank0_) {
    spdlog::info(
        "the checkpoint has no history of fp8's scales: they are measured in the first step");
  }
  policy_->take_up(state_);
}

void Trainer::remember_sources(const std::optional<ResumedFrom>& from) {
  nlohmann::json told;
  if (is_rank0_) {
    RunTokenizer run = tokenizer_of_run(config_, from ? &*from : nullptr);
    told = {{"data", run.data}};
    if (run.identity) {
      told["tokenizer"] = to_json(*run.identity);
    }
    if (!engine_.plan().saves_frozen) {
      const BaseWeights base = identify_weights(config_.initial_weights);
      told["base"] = {base.path, base.identity};
    }
    checkpoints_.set_companions(std::move(run.files));
  }
  // Every rank writes its own share of a manifest, and these must say the same.
  told = nlohmann::json::parse(broadcast_text(
      told.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 0, engine_.world()));
  told.at("data").get_to(state_.data);
  state_.tokenizer = parse_tokenizer_identity(told.value("tokenizer", nlohmann::json()));
  state_.base.reset();
  if (told.contains("base")) {
    state_.base = BaseWeights{.path = told["base"][0].get<std::string>(),
                              .identity = told["base"][1].get<std::string>()};
  }
}

TrainResult Trainer::evaluate_alone() {
  const ObservedPhase phase(observers_, RunPhase::kEvaluating);
  const SourceLoss found = validate();
  if (is_rank0_) {
    const bool is_untrained = state_.step == 0 && config_.initial_weights.empty();
    spdlog::info("evaluated at step {}{}, validation {}", state_.step,
                 is_untrained ? ", with untrained weights" : "",
                 config_.preferences.enabled()
                     ? describe(found, config_.preferences)
                     : fmt::format("loss {:.4f} nats per token, token accuracy {:.4f}", found.loss,
                                   found.accuracy()));
  }
  tell_texts();
  return {.step = state_.step};
}

SourceLoss Trainer::validate() {
  const std::int64_t batches = config_.training.eval_batches;
  if (preferences_) {
    preferences_->before_evaluation(
        num_validation_samples(engine_.plan().batch, *validation_data_, batches));
  }
  return validation_loss(engine_, *validation_data_, batches);
}

std::optional<PreferenceMetrics> Trainer::preferences_of(const ObjectiveSums& sums) const {
  return preferences_ ? PreferenceObjective::metrics_of(sums, config_.preferences) : std::nullopt;
}

TrainResult Trainer::evaluate_sources() {
  const ObservedPhase phase(observers_, RunPhase::kEvaluating);
  SourceLoss all;
  int source_index = 0;
  for (const DataSource& source : config_.data.validation) {
    const BatchLoader loader(config_.data, {source}, config_.model.vocab_size,
                             config_.training.seed);
    if (preferences_) {
      preferences_->set_objective_of_source(loader, source_index++);
      preferences_->before_evaluation(loader.sequences_per_epoch());
    }
    const SourceLoss one = whole_loss(engine_, loader);
    all.loss += one.loss * static_cast<double>(one.targets);
    all.hits += one.hits;
    all.targets += one.targets;
    for (std::size_t i = 0; i < all.sums.size(); ++i) {
      all.sums[i] += one.sums[i];
    }
    if (is_rank0_) {
      spdlog::info("{}: {}", source.prefix, describe(one, config_.preferences));
    }
  }
  all.loss /= static_cast<double>(std::max<std::int64_t>(all.targets, 1));
  if (is_rank0_) {
    const bool is_untrained = state_.step == 0 && config_.initial_weights.empty();
    spdlog::info("evaluated at step {}{}: {}", state_.step,
                 is_untrained ? ", with untrained weights" : "",
                 describe(all, config_.preferences));
  }
  tell_texts();
  return {.step = state_.step};
}

std::vector<SampledText> Trainer::tell_texts() {
  if (!texts_) return {};
  std::vector<SampledText> texts = texts_->sample();
  for (const SampledText& text : texts) {
    const auto quoted = [](const std::string& of) {
      return nlohmann::json(of).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    };
    spdlog::info("{} goes on: {}", quoted(text.prompt), quoted(text.text));
  }
  return texts;
}

TrainResult Trainer::run() {
  if (signal_ != 0) {
    return {.step = state_.step, .stopped_by = signal_};
  }
  if (options_.goal == RunGoal::kEvaluateSources) {
    return evaluate_sources();
  }
  if (options_.goal == RunGoal::kEvaluate) {
    return evaluate_alone();
  }
  if (is_done_) {
    return {.step = state_.step};
  }
  const std::int64_t total = config_.training.steps;
  enter(RunPhase::kTraining);
  while (state_.step < total && signal_ == 0) {
    trace_->begin_step(state_.step + 1);
    StepMetrics metrics = train_one();
    evaluate_if_due(metrics);
    tell_step(metrics);
    if (save_has_ended_) {
      const ObservedPhase phase(observers_, RunPhase::kSaving);
      saves_->finish();
    }
    const std::int64_t interval = config_.checkpoint.interval;
    save_is_due_ = save_is_due_ || (interval > 0 && state_.step % interval == 0);
    // Gradients that are not finite cast doubt on the parameters: wait for better ones.
    if (save_is_due_ && state_.consecutive_skips == 0) {
      const ObservedPhase phase(observers_, RunPhase::kSaving);
      const TraceRange range("save", state_.step);
      check_state();
      take_numbers();
      saves_->save(state_);
      save_is_due_ = false;
      static_cast<void>(memory_.look());
    }
    trace_->end_step(state_.step, trace_asked_);
  }
  trace_->end(state_.step);
  enter(RunPhase::kSaving);
  if (saves_->saved_step() != state_.step) {
    check_state();
  }
  take_numbers();
  saves_->save_last(state_);
  if (owner_ != nullptr) {
    static_cast<void>(owner_->hold());  // also where the last save was after an earlier step
  }
  enter(RunPhase::kEnding);
  tell_end();
  return {.step = state_.step, .stopped_by = signal_, .failed_saves = saves_->failed_saves()};
}

StepMetrics Trainer::train_one() {
  const BatchPlan& batch = engine_.plan().batch;
  const double checkpoint_seconds = saves_->take_pause_seconds();
  const bool saving = saves_->under_way();
  static_cast<void>(take_waits());  // of evaluation and saves
  if (options_.waits != nullptr) static_cast<void>(options_.waits->take_slow_peer());
  step_start_ = std::chrono::steady_clock::now();
  const std::int64_t number = state_.step + 1;
  const std::int64_t samples = batch.samples_at(state_.consumed_samples);
  const std::int64_t sequence = batch.sequence_at(number);
  tell_of_growth(samples, sequence);
  tokens_ += samples * sequence;
  if (preferences_) preferences_->before_step(state_.consumed_samples, samples);
  if (rewards_) rewards_->before_step(state_.consumed_samples, samples);
  StepOutcome outcome = policy_->step(state_, load_train_, [this, number] {
    if (replicas_->is_due(number)) replicas_->check(number, saves_->saved_step());
  });
  const EngineStep& step = outcome.engine;
  Agreement& agreement = outcome.agreement;
  signal_ = agreement.signal;
  save_has_ended_ = agreement.save_has_ended;
  trace_asked_ = agreement.trace_asked;

  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - step_start_).count();
  const bool counts_waits = options_.waits != nullptr;
  const auto sum = [](const std::array<double, kWaitsFor>& waits) {
    return std::accumulate(waits.begin(), waits.end(), 0.0);
  };
  // Those until this rank reported, and that for the others to report.
  const std::optional<double> waited =
      counts_waits ? std::optional(sum(own_waits_) + sum(take_waits())) : std::nullopt;
  std::optional<TimeSplit> split;
  if (counts_waits && is_rank0_) {
    split = split_time(engine_.plan().mesh, agreement.times, seconds);
  } else {
    agreement.times.clear();
  }
  replicas_->add_step(seconds);
  const auto tokens = static_cast<double>(samples * sequence);
  const double tokens_per_second = tokens / seconds;
  double flops = flops_per_token(config_.model, sequence) - left_out_flops_;
  // Where targets are weighed, not they are counted, but their groups.
  if (const LayerShape& shape = engine_.plan().shape;
      shape.skips_targets && !shape.weighs_targets) {
    flops -= head_flops_ * (1.0 - static_cast<double>(step.counted) / tokens);
  }
  const double flops_per_second = tokens_per_second * flops;
  return {.step = state_.step,
          .batch_size = samples,
          .sequence_length = sequence,
          .tokens = tokens_,
          .samples = state_.consumed_samples,
          .loss = agreement.loss,
          .preferences = preferences_of(agreement.sums),
          .policy = rewards_ ? std::optional(rewards_->metrics(agreement.sums)) : std::nullopt,
          .rollouts = rewards_ ? rewards_->rollouts() : std::vector<SampledRollout>{},
          .validation_loss = {},
          .learning_rate = outcome.params.learning_rate,
          .grad_norm = step.stats.grad_norm,
          .loss_scale = outcome.params.loss_scale,
          .routing = std::move(outcome.engine.routing),
          .skipped = !step.stats.updated,
          .step_seconds = seconds,
          .phases = {.data = step.times.data,
                     .forward = step.times.forward,
                     .backward = step.times.backward,
                     .optimizer = step.times.optimizer,
                     .communication = waited},
          .split = split,
          .checkpoint_seconds = checkpoint_seconds,
          .saving = saving,
          .offload = engine_.last_offloaded(),
          .tokens_per_second = tokens_per_second,
          .model_flops_per_second = flops_per_second,
          .model_flops_utilization =
              peak_flops_ > 0.0 ? std::optional(flops_per_second / peak_flops_) : std::nullopt,
          .memory = std::move(agreement.memory),
          .devices = std::move(agreement.devices),
          .times = std::move(agreement.times)};
}

/// Logs the size of a batch and its sequences where either grows: in the first step of a run or a
/// resume, and when one of them differs from the step before.
void Trainer::tell_of_growth(std::int64_t samples, std::int64_t sequence) {
  const BatchPlan& batch = engine_.plan().batch;
  const std::pair now(samples, sequence);
  if ((batch.ramp || batch.sequence_ramp) && now != told_size_ && is_rank0_) {
    spdlog::info("step {}: a batch of {} of {} tokens", state_.step + 1,
                 counted(samples, "sequence"), sequence);
  }
  told_size_ = now;
}

std::array<double, kWaitsFor> Trainer::take_waits() {
  std::array<double, kWaitsFor> waits{};
  if (options_.waits == nullptr) return waits;
  const std::span<const double> seconds = options_.waits->take_seconds();
  for (std::size_t group = 0; group < seconds.size(); ++group) {
    const WaitFor whom = group < waits_for_.size() ? waits_for_[group] : WaitFor::kAll;
    waits[static_cast<std::size_t>(whom)] += seconds[group];
  }
  return waits;
}

RankReport Trainer::report() {
  own_waits_ = take_waits();
  const std::chrono::duration<double> total = std::chrono::steady_clock::now() - step_start_;
  const WaitClock::SlowPeer slow =
      options_.waits != nullptr ? options_.waits->take_slow_peer() : WaitClock::SlowPeer();
  return {.signal = options_.stop_signal != nullptr ? options_.stop_signal->load() : 0,
          .save_has_ended = saves_->has_ended(),
          .trace_asked = trace_->is_asked(),
          .memory = memory_.look(),
          .time = {.total = total.count(),
                   .waits = own_waits_,
                   .slow_peer = slow.rank,
                   .slow_peer_seconds = slow.seconds},
          .device = engine_.device().readings()};
}

void Trainer::evaluate_if_due(StepMetrics& metrics) {
  const std::int64_t interval = config_.training.eval_interval;
  const bool last = state_.step == config_.training.steps;
  const bool due = last || (interval > 0 && state_.step % interval == 0);
  const bool validates = validation_data_ && config_.training.eval_batches > 0;
  if (!due || (!validates && !texts_)) return;
  const ObservedPhase phase(observers_, RunPhase::kEvaluating);
  const TraceRange range("evaluate", state_.step);
  const auto start = std::chrono::steady_clock::now();
  if (validates) {
    const SourceLoss found = validate();
    last_validation_loss_ = found.loss;
    metrics.validation_loss = found.loss;
    metrics.validation_preferences = preferences_of(found.sums);
    if (!preferences_) metrics.validation_token_accuracy = found.accuracy();
  }
  metrics.texts = tell_texts();
  metrics.evaluation_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  static_cast<void>(memory_.look());
}

void Trainer::enter(RunPhase phase) const {
  for (const auto& observer : observers_) {
    observer->on_phase(phase);
  }
}

void Trainer::tell_step(const StepMetrics& metrics) const {
  const bool is_last = state_.step == config_.training.steps || signal_ != 0;
  for (const auto& observer : observers_) {
    observer->on_step(metrics, is_last);
  }
}

void Trainer::tell_end() const {
  const EndOfRun end{.step = state_.step,
                     .signal = signal_,
                     .validation_loss = last_validation_loss_,
                     .by_pairs = preferences_.has_value(),
                     .memory = policy_->agree().memory,
                     .epochs = train_data_ ? train_data_->epochs(state_.consumed_samples)
                                           : rewards_->epochs(state_.consumed_samples),
                     .saved_step = saves_->saved_step(),
                     .failed_saves = saves_->failed_saves(),
                     .checkpoint = is_rank0_ ? checkpoints_.latest() : std::nullopt};
  for (const auto& observer : observers_) {
    observer->on_end(end);
  }
}

void Trainer::take_numbers() {
  state_.fp8_amax = engine_.fp8_state();
  state_.optimizer_numbers = engine_.optimizer_numbers();
  if (rewards_) state_.rollouts = rewards_->unfinished(state_.consumed_samples);
}

void Trainer::check_state() {
  if (!engine_.parameters_are_finite()) {
    give_up(state_.step + 1, saves_->saved_step(), "the parameters are no longer finite",
            "Lower the learning rate, or clip gradients");
  }
  replicas_->check(state_.step, saves_->saved_step());
}

}  // namespace dstrain
