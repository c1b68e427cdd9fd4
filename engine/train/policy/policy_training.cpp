#include "engine/train/policy/policy_training.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "engine/chat/chat_example.h"
#include "engine/checkpoint/agreement.h"
#include "engine/config/config_error.h"
#include "engine/data/permutation.h"
#include "engine/generate/text_generator.h"
#include "engine/train/objective/policy_gradient.h"
#include "engine/train/objective/proximal_policy.h"
#include "engine/train/objective/row_pass.h"
#include "kernels/core/trace_range.h"
#include "kernels/ignored_target.h"
#include "kernels/math/philox.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The seed that a sample of the run is drawn by.
std::uint64_t seed_of(std::uint64_t seed, std::int64_t sample) {
  constexpr std::uint64_t kStream = 0x726f6c6c6f7574;  // "rollout"
  const auto words = philox(seed, static_cast<std::uint64_t>(sample), kStream);
  return (std::uint64_t{words[0]} << 32) | words[1];
}

void fill_row(const Rollout& rollout,
              std::span<std::int32_t> inputs,
              std::span<std::int32_t> targets) {
  std::fill(inputs.begin(), inputs.end(), 0);
  std::fill(targets.begin(), targets.end(), kIgnoredTarget);
  const auto size = rollout.ids.size();
  std::copy(rollout.ids.begin(), rollout.ids.end(), inputs.begin());
  const auto prompt = static_cast<std::size_t>(rollout.prompt_tokens);
  for (std::size_t at = prompt; at < size; ++at) {
    targets[at - 1] = rollout.ids[at];
  }
}

}  // namespace

PolicyTraining::PolicyTraining(const Config& config, Engine& engine, const TrainOptions& options)
    : config_(config),
      engine_(engine),
      options_(options),
      encoder_(config),
      prompts_(config.data.train, config.training.seed),
      sampler_(engine) {
  check_prompts();
  const PolicyConfig& policy = config.policy;
  if (policy.scorer) model_.emplace(policy.reward_model, engine);
  if (engine.world().rank() == 0 && !policy.reward_command.empty()) {
    program_.emplace(policy.reward_command);
  }
}

std::vector<std::int32_t> PolicyTraining::prompt_in(std::int64_t line) const {
  const PolicyConfig& policy = config_.policy;
  try {
    std::vector<std::int32_t> ids = encoder_.ids_in(prompts_.line(line));
    const std::int64_t size = std::ssize(ids);
    const std::int64_t positions = engine_.plan().sampling->sizes.positions;
    const std::int64_t room = positions - policy.completion_tokens;
    if (size >= 1 && size <= room) return ids;
    throw ConfigError(fmt::format(
        "has a prompt of {} tokens, expected 1 to {}: data.sequence_length {} less {} {}", size,
        room, positions, policy.longest_key(), policy.completion_tokens));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}", prompts_.where(line), error.what()));
  }
}

/// The ranks share them out: a line that nobody can answer is found before hours of training.
void PolicyTraining::check_prompts() {
  Communicator& world = engine_.world();
  Outcome mine;
  try {
    for (std::int64_t line = world.rank(); line < prompts_.size(); line += world.size()) {
      static_cast<void>(prompt_in(line));
    }
  } catch (const ConfigError& error) {
    mine = {1, error.what()};
  }
  const Outcome worst = first_failure(std::move(mine), world);
  if (worst.code != 0) throw ConfigError(worst.text);
}

void PolicyTraining::set_objective() {
  const PolicyConfig& policy = config_.policy;
  if (policy.has_values()) {
    engine_.set_objective(
        std::make_unique<ProximalPolicyObjective>(engine_.plan(), policy.ppo, of_step_));
  } else {
    engine_.set_objective(std::make_unique<PolicyObjective>(engine_.plan(), policy, of_step_));
  }
}

PolicyTraining::Place PolicyTraining::place_of(std::int64_t start_sample,
                                               std::int64_t samples) const {
  const std::int64_t step = start_sample / samples % config_.policy.steps();
  return {.step = step, .first_sample = start_sample - step * samples};
}

void PolicyTraining::before_step(std::int64_t start_sample, std::int64_t samples) {
  const PolicyConfig& policy = config_.policy;
  const Place place = place_of(start_sample, samples);
  const std::int64_t completions = samples * policy.mini_batches;
  samples_now_ = place.step == 0 || rollouts_.empty();
  sampling_seconds_ = 0.0;
  reward_seconds_ = 0.0;
  if (samples_now_) {
    if (place.step != 0 && engine_.world().rank() == 0) {
      spdlog::warn(
          "the checkpoint does not have the completions that its last step trained: step {} of {} "
          "trains new ones",
          place.step + 1, policy.steps());
    }
    const Clock::time_point began = Clock::now();
    {
      const TraceRange range("sample", start_sample);
      sample(place.first_sample / policy.passes(), completions);
    }
    sampling_seconds_ = seconds_since(began);
    const Clock::time_point sampled = Clock::now();
    reward();
    reward_seconds_ = seconds_since(sampled);
    set_targets();
  } else if (std::ssize(rollouts_) != completions) {
    throw ConfigError(fmt::format(
        "train_batch_size: the checkpoint lies between two steps that train the same {} "
        "completions, and this run has {} of them trained, {} at a time: resume with the sizes of "
        "the run that saved it until its next completions are sampled",
        rollouts_.size(), completions, samples));
  }
  deal_out(start_sample, samples, place.step);
}

/// Sets what the losses of the steps to come are measured by.
void PolicyTraining::set_targets() {
  const PolicyConfig& policy = config_.policy;
  if (policy.needs_reference()) {
    engine_.use_reference(true);
    Found found = find();
    engine_.use_reference(false);
    for (std::size_t i = 0; i < rollouts_.size(); ++i) {
      rollouts_[i].reference_nats = std::move(found.nats[i]);
    }
  }
  if (policy.steps() > 1 || policy.has_values()) {
    Found found = find();
    for (std::size_t i = 0; i < rollouts_.size(); ++i) {
      rollouts_[i].old_nats = std::move(found.nats[i]);
      if (policy.has_values()) rollouts_[i].old_values = std::move(found.values[i]);
    }
  }
  set_advantages_of_all();
}

void PolicyTraining::set_advantages_of_all() {
  const PolicyConfig& policy = config_.policy;
  if (policy.has_values()) {
    set_token_advantages(rollouts_, policy.ppo);
  } else {
    set_advantages(rollouts_, policy.generations, policy.scale);
  }
}

/// The step's part of a pass. Where there are several, each pass cuts them anew.
void PolicyTraining::deal_out(std::int64_t start_sample, std::int64_t samples, std::int64_t step) {
  start_sample_ = start_sample;
  of_step_.clear();
  const std::int64_t parts = config_.policy.mini_batches;
  const auto pass = static_cast<std::uint64_t>(start_sample / samples / parts);
  for (std::int64_t i = 0; i < samples; ++i) {
    std::int64_t from = step % parts * samples + i;
    if (parts > 1) from = permuted(from, std::ssize(rollouts_), config_.training.seed, pass);
    of_step_.push_back(rollouts_[static_cast<std::size_t>(from)]);
  }
}

void PolicyTraining::sample(std::int64_t first, std::int64_t completions) {
  const PolicyConfig& policy = config_.policy;
  Communicator& world = engine_.world();
  CachedModel& model = sampler_.begin();
  rollouts_.assign(static_cast<std::size_t>(completions), {});
  texts_.assign(static_cast<std::size_t>(completions), {});
  const TextSampler::Readers readers = sampler_.readers();
  const Range share = readers.share(completions);
  for (std::int64_t i = 0; i < completions; ++i) {
    texts_[static_cast<std::size_t>(i)].line = prompts_.draw((first + i) / policy.generations);
  }
  std::vector<GenerationRequest> requests;  // of this rank's share
  for (std::int64_t i = share.begin; i < share.end; ++i) {
    requests.push_back({.prompt = prompt_in(texts_[static_cast<std::size_t>(i)].line),
                        .max_tokens = policy.completion_tokens,
                        .sampling = {.top_k = policy.top_k,
                                     .top_p = policy.top_p,
                                     .seed = seed_of(config_.training.seed, first + i)},
                        .ends = encoder_.ends()});
  }
  std::vector<GeneratedText> texts(requests.size());
  generate_texts(
      model, encoder_.tokenizer(), requests,
      {.before_forward =
           [this] {
             if (options_.activity != nullptr) options_.activity->begin_phase(RunPhase::kTraining);
           },
       .on_end = [&](std::size_t k, GeneratedText made) { texts[k] = std::move(made); }});
  Json mine = Json::array();
  for (std::size_t k = 0; readers.tells && k < texts.size(); ++k) {
    const GeneratedText& made = texts[k];
    std::vector<std::int32_t> completion = made.tokens;
    if (made.end) completion.push_back(*made.end);
    mine.push_back({share.begin + static_cast<std::int64_t>(k), requests[k].prompt, completion,
                    made.text, !made.end.has_value()});
  }
  Json all = Json::array();
  for (const std::string& of_rank : gather_texts(text_of(mine), world)) {
    all.push_back(Json::parse(of_rank));
  }
  for (const Json& of_rank : Json::parse(broadcast_text(text_of(all), 0, world))) {
    for (const Json& made : of_rank) {
      const auto i = made[0].get<std::size_t>();
      Rollout& rollout = rollouts_[i];
      rollout.ids = made[1].get<std::vector<std::int32_t>>();
      rollout.prompt_tokens = std::ssize(rollout.ids);
      for (const Json& id : made[2]) {
        rollout.ids.push_back(id.get<std::int32_t>());
      }
      rollout.is_truncated = made[4].get<bool>();
      texts_[i].text = made[3].get<std::string>();
    }
  }
}

std::string PolicyTraining::line_for_program(std::size_t rollout) const {
  Json line = Json::parse(prompts_.line(texts_[rollout].line));
  line["completion"] = texts_[rollout].text;
  if (model_) line["score"] = texts_[rollout].score;
  return text_of(line);
}

/// The ranks share out the scoring.
void PolicyTraining::score() {
  Communicator& world = engine_.world();
  std::vector<double> scores(rollouts_.size(), 0.0);
  std::string failure;
  for (auto i = static_cast<std::size_t>(world.rank()); i < scores.size() && failure.empty();
       i += static_cast<std::size_t>(world.size())) {
    if (options_.activity != nullptr) options_.activity->begin_phase(RunPhase::kTraining);
    const std::int64_t line = texts_[i].line;
    try {
      scores[i] = model_->score(std::get<ChatPrompt>(read_chat_prompt(prompts_.line(line))),
                                texts_[i].text);
    } catch (const ConfigError& error) {
      failure = fmt::format("{}: {}", prompts_.where(line), error.what());
    }
  }
  const Outcome worst = first_failure({failure.empty() ? 0 : 1, failure}, world);
  if (worst.code != 0) throw ConfigError(worst.text);
  add_over_ranks(scores, world);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    texts_[i].score = scores[i];
    rollouts_[i].reward = scores[i];
  }
}

void PolicyTraining::reward() {
  if (model_) score();
  if (config_.policy.reward_command.empty()) return;
  Json told;
  if (program_) {
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < rollouts_.size(); ++i) {
      lines.push_back(line_for_program(i));
    }
    try {
      told = {{"rewards", program_->rewards(lines)}};
    } catch (const ConfigError& error) {
      told = {{"failure", error.what()}};
    }
  }
  told = Json::parse(broadcast_text(text_of(told), 0, engine_.world()));
  if (told.contains("failure")) throw ConfigError(told["failure"].get<std::string>());
  for (std::size_t i = 0; i < rollouts_.size(); ++i) {
    rollouts_[i].reward = told["rewards"][i].get<double>();
  }
}

PolicyTraining::Found PolicyTraining::find() {
  const auto completions = std::ssize(rollouts_);
  const std::int64_t longest = config_.policy.completion_tokens;
  const std::int64_t kinds = config_.policy.has_values() ? 2 : 1;
  std::vector<double> numbers(static_cast<std::size_t>(kinds * completions * longest));
  const auto begin_of = [&](std::int64_t kind, std::int64_t row) {
    return numbers.begin() + (kind * completions + row) * longest;
  };
  pass_over_rows(
      engine_, completions,
      [&](std::int64_t row, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
        fill_row(rollouts_[static_cast<std::size_t>(row)], inputs, targets);
      },
      [&](std::int64_t row, const RowNumbers& found) {
        const Rollout& rollout = rollouts_[static_cast<std::size_t>(row)];
        const auto first = static_cast<std::size_t>(rollout.prompt_tokens - 1);
        const auto length = static_cast<std::size_t>(rollout.completion_tokens());
        const auto keep = [&](std::int64_t kind, std::span<const float> all_T) {
          const auto of_completion = all_T.subspan(first, length);
          std::copy(of_completion.begin(), of_completion.end(), begin_of(kind, row));
        };
        keep(0, found.nats_T);
        if (kinds > 1) keep(1, found.values_T);
      });
  add_over_ranks(numbers, engine_.world());
  Found found;
  for (std::int64_t row = 0; row < completions; ++row) {
    const std::int64_t length = rollouts_[static_cast<std::size_t>(row)].completion_tokens();
    found.nats.emplace_back(begin_of(0, row), begin_of(0, row) + length);
    if (kinds > 1) found.values.emplace_back(begin_of(1, row), begin_of(1, row) + length);
  }
  return found;
}

void PolicyTraining::load(std::int64_t first_sample,
                          std::span<std::int32_t> inputs,
                          std::span<std::int32_t> targets) const {
  const auto T = static_cast<std::size_t>(engine_.plan().batch.sequence);
  for (std::size_t row = 0; row * T < inputs.size(); ++row) {
    const auto at = static_cast<std::size_t>(first_sample - start_sample_) + row;
    fill_row(of_step_.at(at), inputs.subspan(row * T, T), targets.subspan(row * T, T));
  }
}

PolicyMetrics PolicyTraining::metrics(const ObjectiveSums& sums) const {
  const PolicyConfig& policy = config_.policy;
  const RolloutMeans means = RolloutObjective::means_of(sums);
  PolicyMetrics metrics{.sampling_seconds = sampling_seconds_, .reward_seconds = reward_seconds_};
  if (policy.needs_reference()) metrics.divergence = means.divergence;
  if (policy.steps() > 1) metrics.clipped = means.clipped;
  if (policy.has_values()) metrics.value_loss = means.value_loss;
  const auto count = static_cast<double>(rollouts_.size());
  const std::size_t together =
      policy.has_values() ? rollouts_.size() : static_cast<std::size_t>(policy.generations);
  for (std::size_t begin = 0; begin < rollouts_.size(); begin += together) {
    double mean = 0.0;
    double squares = 0.0;
    for (std::size_t i = begin; i < begin + together; ++i) {
      mean += rollouts_[i].reward / static_cast<double>(together);
    }
    for (std::size_t i = begin; i < begin + together; ++i) {
      squares += std::pow(rollouts_[i].reward - mean, 2.0);
      metrics.completion_tokens += static_cast<double>(rollouts_[i].completion_tokens()) / count;
      metrics.truncated += rollouts_[i].is_truncated ? 1.0 / count : 0.0;
    }
    const double groups = count / static_cast<double>(together);
    metrics.reward += mean / groups;
    metrics.reward_deviation +=
        std::sqrt(squares / static_cast<double>(std::max<std::size_t>(together, 2) - 1)) / groups;
  }
  return metrics;
}

std::vector<double> PolicyTraining::epochs(std::int64_t samples) const {
  const PolicyConfig& policy = config_.policy;
  const std::int64_t of_step = engine_.plan().batch.samples_at(0);
  const std::int64_t at_once = of_step * policy.mini_batches;
  const std::int64_t times =
      (samples + at_once * policy.passes() - 1) / (at_once * policy.passes());
  return prompts_.epochs(times * at_once / policy.generations);
}

std::vector<SampledRollout> PolicyTraining::rollouts() const {
  std::vector<SampledRollout> shown;
  const bool shows = samples_now_ && engine_.world().rank() == 0;
  for (std::size_t i = 0; shows && i < rollouts_.size(); ++i) {
    const Rollout& rollout = rollouts_[i];
    const Json line = Json::parse(prompts_.line(texts_[i].line));
    const auto completion = rollout.ids.begin() + rollout.prompt_tokens;
    shown.push_back({.prompt = text_of(line.contains("prompt") ? line["prompt"] : line["messages"]),
                     .text = texts_[i].text,
                     .prompt_ids = {rollout.ids.begin(), completion},
                     .ids = {completion, rollout.ids.end()},
                     .is_truncated = rollout.is_truncated,
                     .score = model_ ? std::optional(texts_[i].score) : std::nullopt,
                     .reward = rollout.reward,
                     .advantage = rollout.advantage});
  }
  return shown;
}

}  // namespace dstrain
