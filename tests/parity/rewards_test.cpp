// Training on rewards of what the model answers ("grpo", "ppo"): advantages and gradients are those
// of the formulas, programs of rewards are obeyed and their failures told, every layout samples and
// trains what one rank does, a resume goes on as if there had been no stop, and rewards grow. What
// runs equal from outside: scripts/check_rewards, scripts/check_ppo.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/config/config_error.h"
#include "engine/train/library_overhead.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/objective/policy_gradient.h"
#include "engine/train/objective/proximal_policy.h"
#include "engine/train/policy/reward_program.h"
#include "engine/train/records/rollouts_file.h"
#include "engine/train/run_data.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/adapted_runs.h"

namespace dstrain::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

std::vector<Rollout> rewarded(const std::vector<double>& rewards) {
  std::vector<Rollout> rollouts;
  for (const double reward : rewards) {
    rollouts.push_back({.ids = {1, 2, 3}, .prompt_tokens = 1, .reward = reward});
  }
  return rollouts;
}

TEST_CASE("advantages are rewards beside those of the same prompt", "[rewards]") {
  const auto advantages = [](RewardScale scale) {
    std::vector<Rollout> rollouts = rewarded({1.0, 3.0, 5.0, 5.0});
    set_advantages(rollouts, 2, scale);
    std::vector<double> found;
    for (const Rollout& rollout : rollouts) {
      found.push_back(rollout.advantage);
    }
    return found;
  };
  CHECK(advantages(RewardScale::kNone) == std::vector<double>{-1.0, 1.0, 0.0, 0.0});
  const double deviation = std::sqrt(2.0) + 1e-4;
  CHECK(advantages(RewardScale::kGroup) ==
        std::vector<double>{-1.0 / deviation, 1.0 / deviation, 0.0, 0.0});
  const double of_batch = std::sqrt(11.0 / 3.0) + 1e-4;
  CHECK(advantages(RewardScale::kBatch)[1] == Approx(1.0 / of_batch).epsilon(1e-12));
}

/// A step of two prompts with two completions each, whose losses are `nats`.
struct Step {
  PolicyConfig config{.reward_command = "true", .completion_tokens = 6, .generations = 2};
  std::vector<Rollout> rollouts;
  std::vector<float> nats;  // of 4 sequences of 8 tokens
  std::vector<float> values;

  Step() {
    for (int i = 0; i < 4; ++i) {
      Rollout rollout{.ids = std::vector<std::int32_t>(static_cast<std::size_t>(5 + i % 3), 1),
                      .prompt_tokens = 2,
                      .is_truncated = i == 3,
                      .advantage = 0.5 * i - 0.7};
      for (std::int64_t token = 0; token < rollout.completion_tokens(); ++token) {
        rollout.reference_nats.push_back(0.9F + 0.1F * static_cast<float>(token + i));
      }
      rollouts.push_back(rollout);
    }
    for (int i = 0; i < 32; ++i) {
      nats.push_back(1.0F + 0.05F * static_cast<float>(i % 7));
      values.push_back(0.3F - 0.04F * static_cast<float>(i % 5));
    }
  }

  /// Makes completions those of a model that has been trained since.
  void age() {
    for (Rollout& rollout : rollouts) {
      for (std::int64_t token = 0; token < rollout.completion_tokens(); ++token) {
        rollout.old_nats.push_back(0.8F + 0.13F * static_cast<float>((token * 3) % 5));
        rollout.old_values.push_back(0.35F - 0.05F * static_cast<float>(token));
      }
    }
  }

  static RunPlan plan() {
    TinyOptions options;
    options.sequence = 8;
    options.micro_batch = 4;
    return make_run_plan(tiny_config(options, 1), 1, 0);
  }

  /// The sums, and the derivative by each loss and value.
  ObjectiveSums weigh(RolloutObjective& objective,
                      std::vector<float>& weights,
                      std::vector<float>& by_values,
                      const std::vector<float>& at,
                      const std::vector<float>& values_at) const {
    objective.begin_step(0, 4);
    weights.assign(32, 7.0F);
    by_values.assign(32, 7.0F);
    objective.weigh({.use = BatchUse::kTraining,
                     .first_sample = 0,
                     .counted_samples = 4,
                     .found = {.nats_BT = at, .values_BT = values_at}},
                    {.nats_BT = weights, .values_BT = by_values});
    return objective.take_sums();
  }
  ObjectiveSums weigh(std::vector<float>& weights, const std::vector<float>& at) const {
    PolicyObjective objective(plan(), config, rollouts);
    std::vector<float> ignored;
    return weigh(objective, weights, ignored, at, values);
  }
};

/// Whether a position of the sequences holds a loss of a completion's token.
bool is_of_completion(const Rollout& rollout, std::size_t position) {
  const auto at = static_cast<std::int64_t>(position) + 1;
  return at >= rollout.prompt_tokens && at < std::ssize(rollout.ids);
}

TEST_CASE("completions weigh as their loss's derivative says", "[rewards]") {
  for (const PolicyLoss loss : {PolicyLoss::kDapo, PolicyLoss::kGrpo, PolicyLoss::kDrGrpo}) {
    for (const bool mask : {false, true}) {
      Step step;
      step.config.loss = loss;
      step.config.beta = 0.3;
      step.config.mask_truncated = mask;
      step.config.unbiased_divergence = !mask;
      CAPTURE(static_cast<int>(loss), mask);
      std::vector<float> weights;
      const ObjectiveSums sums = step.weigh(weights, step.nats);
      const double tokens = mask ? 3 + 4 + 5 : 3 + 4 + 5 + 3;
      CHECK(sums[1] == (loss == PolicyLoss::kDapo   ? tokens
                        : loss == PolicyLoss::kGrpo ? 4.0
                                                    : 4.0 * 6.0));
      std::vector<float> ignored;
      for (std::size_t i = 0; i < 32; ++i) {
        const std::size_t row = i / 8;
        const auto at = static_cast<std::int64_t>(i % 8) + 1;
        const Rollout& rollout = step.rollouts[row];
        const bool is_trained = at >= 2 && at < std::ssize(rollout.ids) && !(mask && row == 3);
        // The ratio is 1, and its derivative by the loss -1: the divergence alone is felt here.
        constexpr float kStep = 1e-2F;
        std::vector<float> moved = step.nats;
        moved[i] += kStep;
        const double above = step.weigh(ignored, moved)[0];
        moved[i] -= 2 * kStep;
        const double below = step.weigh(ignored, moved)[0];
        const double share = loss == PolicyLoss::kGrpo
                                 ? 1.0 / static_cast<double>(rollout.completion_tokens())
                                 : 1.0;
        double expected = is_trained ? (above - below) / (2 * static_cast<double>(kStep)) +
                                           share * rollout.advantage
                                     : 0.0;
        if (is_trained && step.config.unbiased_divergence) {
          const double d = static_cast<double>(step.nats[i]) -
                           static_cast<double>(rollout.reference_nats[i % 8 - 1]);
          expected -= share * step.config.beta * (std::exp(d) - d - 1.0);
        }
        CHECK(static_cast<double>(weights[i]) == Approx(expected).margin(2e-5));
      }
    }
  }
}

TEST_CASE("completions that are trained again weigh as far as their ratio counts", "[rewards]") {
  for (const bool unbiased : {false, true}) {
    Step step;
    step.age();
    step.config.beta = 0.3;
    step.config.clip_low = 0.15;
    step.config.clip_high = 0.25;
    step.config.unbiased_divergence = unbiased;
    CAPTURE(unbiased);
    std::vector<float> weights;
    std::vector<float> ignored;
    const ObjectiveSums sums = step.weigh(weights, step.nats);
    double loss = 0.0;
    double clipped = 0.0;
    for (std::size_t i = 0; i < 32; ++i) {
      const Rollout& rollout = step.rollouts[i / 8];
      if (!is_of_completion(rollout, i % 8)) {
        CHECK(weights[i] == 0.0F);
        continue;
      }
      const auto nats = static_cast<double>(step.nats[i]);
      const double ratio = std::exp(static_cast<double>(rollout.old_nats[i % 8 - 1]) - nats);
      const double held = std::clamp(ratio, 0.85, 1.25);
      const double d = nats - static_cast<double>(rollout.reference_nats[i % 8 - 1]);
      loss -= std::min(ratio * rollout.advantage, held * rollout.advantage);
      loss += 0.3 * (std::exp(d) - d - 1.0) * (unbiased ? ratio : 1.0);
      clipped += held * rollout.advantage < ratio * rollout.advantage ? 1.0 : 0.0;
      constexpr float kStep = 1e-3F;
      std::vector<float> moved = step.nats;
      moved[i] += kStep;
      const double above = step.weigh(ignored, moved)[0];
      moved[i] -= 2 * kStep;
      const double below = step.weigh(ignored, moved)[0];
      CHECK(static_cast<double>(weights[i]) ==
            Approx((above - below) / (2 * static_cast<double>(kStep))).margin(1e-3));
    }
    CHECK(sums[0] == Approx(loss).epsilon(1e-6));
    CHECK(clipped >= 2.0);
    CHECK(RolloutObjective::means_of(sums).clipped == Approx(clipped / sums[1]).epsilon(1e-12));
  }
}

TEST_CASE("advantages of tokens are what came beyond their values", "[rewards]") {
  Step step;
  step.age();
  for (Rollout& rollout : step.rollouts) {
    rollout.reward = 0.4 * static_cast<double>(rollout.ids.size()) - 2.0;
  }
  for (const DivergenceEstimate estimate : {DivergenceEstimate::kK1, DivergenceEstimate::kK3}) {
    const PpoConfig config{.beta = 0.2,
                           .estimate = estimate,
                           .discount = 0.9,
                           .lambda = 0.7,
                           .missing_end_penalty = 0.5};
    std::vector<Rollout> rollouts = step.rollouts;
    set_token_advantages(rollouts, config);
    std::vector<double> unwhitened;
    std::vector<double> found;
    for (const Rollout& rollout : rollouts) {
      const auto length = static_cast<std::size_t>(rollout.completion_tokens());
      REQUIRE(rollout.advantages.size() == length);
      const auto value = [&](std::size_t token) {
        return token < length ? static_cast<double>(rollout.old_values[token]) : 0.0;
      };
      const auto surprise = [&](std::size_t token) {
        const double d = static_cast<double>(rollout.old_nats[token]) -
                         static_cast<double>(rollout.reference_nats[token]);
        const double divergence = estimate == DivergenceEstimate::kK1 ? -d : std::exp(d) - d - 1.0;
        double reward = -0.2 * divergence;
        if (token + 1 == length) reward += rollout.reward - (rollout.is_truncated ? 0.5 : 0.0);
        return reward + 0.9 * value(token + 1) - value(token);
      };
      for (std::size_t token = 0; token < length; ++token) {
        double advantage = 0.0;
        for (std::size_t later = token; later < length; ++later) {
          advantage += std::pow(0.9 * 0.7, static_cast<double>(later - token)) * surprise(later);
        }
        CHECK(static_cast<double>(rollout.returns[token]) ==
              Approx(advantage + value(token)).epsilon(1e-6));
        unwhitened.push_back(advantage);
        found.push_back(static_cast<double>(rollout.advantages[token]));
      }
    }
    double mean = 0.0;
    double squares = 0.0;
    for (const double advantage : unwhitened) {
      mean += advantage / static_cast<double>(unwhitened.size());
    }
    for (const double advantage : unwhitened) {
      squares += std::pow(advantage - mean, 2.0) / static_cast<double>(unwhitened.size() - 1);
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i] == Approx((unwhitened[i] - mean) / std::sqrt(squares)).margin(1e-6));
    }
  }
}

TEST_CASE("tokens and values weigh as their loss's derivatives say", "[rewards]") {
  Step step;
  step.age();
  const PpoConfig config{.clip = 0.15, .value_weight = 0.4, .value_clip = 0.06};
  set_token_advantages(step.rollouts, config);
  ProximalPolicyObjective objective(Step::plan(), config, step.rollouts);
  std::vector<float> weights;
  std::vector<float> by_values;
  const ObjectiveSums sums = step.weigh(objective, weights, by_values, step.nats, step.values);
  CHECK(sums[1] == 3 + 4 + 5 + 3);
  std::vector<float> ignored;
  int held = 0;
  for (std::size_t i = 0; i < 32; ++i) {
    const bool is_trained = is_of_completion(step.rollouts[i / 8], i % 8);
    constexpr float kStep = 1e-3F;
    const auto slope = [&](std::vector<float> Step::*what) {
      Step moved = step;
      const auto loss = [&](float by) {
        (moved.*what)[i] += by;
        return step.weigh(objective, ignored, ignored, moved.nats, moved.values)[0];
      };
      const double above = loss(kStep);
      return (above - loss(-2 * kStep)) / (2 * static_cast<double>(kStep));
    };
    CHECK(static_cast<double>(weights[i]) == Approx(slope(&Step::nats)).margin(1e-3));
    CHECK(static_cast<double>(by_values[i]) == Approx(slope(&Step::values)).margin(1e-3));
    held += is_trained && by_values[i] == 0.0F ? 1 : 0;
  }
  CHECK(held >= 2);
}

TEST_CASE("a program rewards lines, and says how it failed", "[rewards]") {
  RewardProgram lengths("while read -r line; do echo ${#line}; done");
  CHECK(lengths.rewards({"abc", "", "12345"}) == std::vector<double>{3.0, 0.0, 5.0});
  // More than pipes hold, both ways.
  const std::vector<std::string> many(20'000, std::string(30, 'x'));
  CHECK(lengths.rewards(many) == std::vector<double>(many.size(), 30.0));
  RewardProgram objects("while read -r line; do echo '{\"reward\": -1.5, \"why\": 1}'; done");
  CHECK(objects.rewards({"a"}) == std::vector<double>{-1.5});

  const auto why_not = [](const std::string& command) {
    try {
      RewardProgram program(command);
      program.rewards({"a", "b"});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(why_not("read line; echo 1; exit 3"), Contains("ended with status 3 after 1 of 2"));
  CHECK_THAT(why_not("exec 2>/dev/null; nonsense-command"), Contains("ended with status 127"));
  CHECK_THAT(why_not("kill -9 $$"), Contains("was ended by signal 9"));
  CHECK_THAT(why_not("while read -r line; do echo good; done"),
             Contains("answered \"good\", expected a number"));
  CHECK_THAT(why_not("read -r line; printf '1\\n2\\n3\\n'; cat"), Contains("more lines"));
}

std::vector<json> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

class RewardedRuns : public AdaptedRuns {
 public:
  RewardedRuns() {
    std::ofstream file(path("prompts.jsonl"));
    for (const char* const prompt : {"#", "$ $", "%&", "(((", ")"}) {
      file << json{{"prompt", prompt}, {"answer", 3}}.dump() << "\n";
    }
  }
  /// The more of ()*+,-./ a completion has, the better it is.
  [[nodiscard]] json rewards(const json& more = json::object()) const {
    json changes = {
        {"model", {{"initial_weights", path("base")}}},
        {"data",
         {{"train", path("prompts.jsonl")}, {"tokenizer", "bytes"}, {"sequence_length", 16}}},
        {"grpo",
         {{"reward_command",
           R"(while IFS= read -r line; do end=${line##*completion}; marks=$(printf %s "$end" | tr -dc '(-/'); echo ${#marks}; done)"},
          {"num_generations", 4},
          {"max_completion_length", 8}}}};
    json all = merged(adapters(), changes);
    all["data"]["validation"] = nullptr;
    all.merge_patch(more);
    return all;
  }
  /// The same with "ppo".
  [[nodiscard]] json values(const json& policy) const {
    json all = rewards();
    all["ppo"] =
        merged({{"reward_command", all["grpo"]["reward_command"]}, {"response_length", 8}}, policy);
    all.erase("grpo");
    return all;
  }
  [[nodiscard]] std::vector<json> rollouts(const std::string& run) const {
    return lines_of(path(run) + "/" + RolloutsFile::kFile);
  }
};

TEST_CASE("what is sampled is rewarded and trained, and rewards grow", "[parity][rewards]") {
  const RewardedRuns runs;
  json changes = runs.rewards({{"optimizer", {{"params", {{"lr", 0.02}}}}}});
  changes["scheduler"] = nullptr;
  changes.erase("peft");
  const std::vector<json> lines = runs.train("learning", 30, 1, changes);
  const auto mean = [&](std::size_t begin, std::size_t end) {
    double sum = 0.0;
    for (std::size_t i = begin; i < end; ++i) {
      sum += lines[i].at("reward").get<double>() / static_cast<double>(end - begin);
    }
    return sum;
  };
  INFO(mean(0, 5) << " to " << mean(25, 30));
  CHECK(mean(25, 30) > mean(0, 5) + 1.0);
  // What made the prompts' ids is known to whoever reads the checkpoint.
  const auto tokenizer =
      CheckpointStore::training(runs.path("learning/checkpoints/step-00000030")).tokenizer;
  REQUIRE(tokenizer.has_value());
  CHECK(tokenizer->kind == "bytes");
  const std::vector<json> rollouts = runs.rollouts("learning");
  REQUIRE(rollouts.size() == 30U * 8);
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    const json& rollout = rollouts[i];
    CHECK(rollout.at("prompt") == rollouts[i / 4 * 4].at("prompt"));
    const std::string text = rollout.at("completion");
    const auto marks =
        std::count_if(text.begin(), text.end(), [](unsigned char c) { return c >= 40 && c <= 47; });
    CHECK(rollout.at("reward") == static_cast<double>(marks));
    CHECK(rollout.at("completion_ids").size() <= 8);
  }
}

TEST_CASE("every layout samples and trains what one rank does", "[parity][rewards]") {
  const RewardedRuns runs;
  const json values = {{"num_ppo_epochs", 2}, {"num_mini_batches", 2}, {"kl_coef", 0.1}};
  json from_begin = runs.rewards({{"grpo", {{"beta", 0.2}}}});
  from_begin.erase("peft");
  const std::pair<std::string, json> kinds[] = {
      {"plain", runs.rewards()},
      {"reference", from_begin},
      {"divergence", runs.rewards({{"grpo", {{"beta", 0.2}, {"loss_type", "grpo"}}}})},
      {"again", runs.rewards({{"grpo", {{"num_iterations", 2}, {"num_mini_batches", 2}}}})},
      {"coded", runs.rewards({{"quantization_config", {{"load_in_4bit", true}}}})},
      {"values", runs.values(values)}};
  for (const auto& [kind, changes] : kinds) {
    const std::vector<json> single = runs.train(kind, 4, 1, changes);
    const struct {
      const char* name;
      int ranks;
      json changes;
    } layouts[] = {{"dp2", 2, json::object()},
                   {"zero2", 2, {{"zero_optimization", {{"stage", 2}}}}},
                   {"cp2", 2, {{"context_parallel", {{"size", 2}}}}},
                   {"recomputed", 1, {{"activation_checkpointing", {{"granularity", "full"}}}}},
                   {"zero1", 2, {{"zero_optimization", {{"stage", 1}}}}},
                   {"zero3", 2, {{"zero_optimization", {{"stage", 3}}}}},
                   {"tp2", 2, {{"tensor_parallel", {{"size", 2}}}}},
                   {"tp2-zero3",
                    4,
                    {{"zero_optimization", {{"stage", 3}}},
                     {"tensor_parallel", {{"size", 2}, {"sequence_parallel", true}}}}}};
    for (const auto& layout : layouts) {
      const std::string name = kind + layout.name;
      INFO(name);
      if (kind == "reference" && std::string_view(layout.name).ends_with("zero3")) continue;
      const std::vector<json> lines =
          runs.train(name, 4, layout.ranks, merged(changes, layout.changes));
      REQUIRE(lines.size() == single.size());
      const std::vector<json> sampled = runs.rollouts(name);
      const std::vector<json> expected = runs.rollouts(kind);
      REQUIRE(sampled.size() == expected.size());
      for (std::size_t i = 0; i < sampled.size(); ++i) {
        CHECK(sampled[i].at("completion_ids") == expected[i].at("completion_ids"));
      }
      for (std::size_t i = 0; i < lines.size(); ++i) {
        CHECK(lines[i].at("loss").get<double>() ==
              Approx(single[i].at("loss").get<double>()).epsilon(1e-5).margin(1e-6));
        CHECK(lines[i].at("grad_norm").get<double>() ==
              Approx(single[i].at("grad_norm").get<double>()).epsilon(1e-4).margin(1e-7));
      }
    }
  }
}

/// A run's model that scores, made on pairs.
json scoring(const RewardedRuns& runs, const json& more = json::object()) {
  json changes = runs.rewards();
  changes.erase("grpo");
  changes.erase("peft");
  changes["scheduler"] = nullptr;
  return merged(
      merged(
          changes,
          {{"model",
            {{"initial_weights", nullptr}, {"vocab_size", 256}, {"max_position_embeddings", 64}}},
           {"preferences", {{"loss_type", "reward"}}},
           {"optimizer", {{"params", {{"lr", 0.02}}}}},
           {"data", {{"train", runs.path("pairs.jsonl")}, {"stop_token", ")"}}}}),
      more);
}

TEST_CASE("a model's scores are rewards, and what a command makes of them is",
          "[parity][rewards]") {
  const RewardedRuns runs;
  const auto write_pair = [&](const char* file, const std::string& prompt,
                              const std::string& chosen) {
    std::ofstream(runs.path(file))
        << json{{"prompt", prompt}, {"chosen", chosen}, {"rejected", ")"}}.dump() << "\n";
  };
  write_pair("pairs.jsonl", "#", "(((");
  const auto train_scorer = [&](const std::string& name, int steps, const json& changes) {
    LoadedConfig config = runs.config(name, steps, 1, changes);
    config.config.data = with_prepared_samples(config.config, [] { return false; });
    run(config, 1);
    return lines_of(runs.path(name) + "/metrics.jsonl").back();
  };
  train_scorer("scorer", 4, scoring(runs));
  const json by_model =
      runs.rewards({{"grpo",
                     {{"reward_model", runs.path("scorer/checkpoints/step-00000004")},
                      {"reward_command", nullptr}}}});
  const std::vector<json> alone = runs.train("scored", 2, 1, by_model);
  const std::vector<json> rollouts = runs.rollouts("scored");
  REQUIRE(rollouts.size() == 16);
  // What the head says of a pair as it is trained, it says of a completion.
  for (std::size_t i = 0; i < rollouts.size(); i += 3) {
    INFO(rollouts[i].dump());
    CHECK(rollouts[i].at("reward") == rollouts[i].at("score"));
    write_pair("asked.jsonl", rollouts[i].at("prompt"), rollouts[i].at("completion"));
    const json line = train_scorer(
        "asked" + std::to_string(i), 1,
        scoring(runs,
                {{"model", {{"initial_weights", runs.path("scorer")}}},
                 {"data", {{"validation", runs.path("asked.jsonl")}, {"sequence_length", 48}}},
                 {"optimizer", {{"params", {{"lr", 1e-30}}}}}}));
    CHECK(rollouts[i].at("score").get<double>() ==
          Approx(line.at("validation_chosen_reward").get<double>()).epsilon(1e-5));
  }
  CHECK(runs.train("scored2", 2, 2, by_model)[1].at("reward").get<double>() ==
        Approx(alone[1].at("reward").get<double>()).epsilon(1e-5));

  // A command is given the scores: this one answers with them.
  const json by_both = merged(
      by_model, {{"grpo", {{"reward_command", R"(sed -u 's/.*"score":\(.*\)}/-\1/; s/--//')"}}}});
  runs.train("both", 1, 2, by_both);
  for (const json& rollout : runs.rollouts("both")) {
    CHECK(rollout.at("reward").get<double>() == -rollout.at("score").get<double>());
  }

  const LoadedConfig planned = runs.config("planned", 2, 1, by_model);
  const RunPlan plan = make_run_plan(planned.config, 1, 0);
  const std::vector<Overhead> parts = cpu_library_overhead(plan, 1);
  CHECK(std::any_of(parts.begin(), parts.end(), [&](const Overhead& part) {
    return part.what == "reward model" && part.bytes == plan.scoring->memory.bytes();
  }));
}

std::vector<json> without_clocks(std::vector<json> lines) {
  for (json& line : lines) {
    line.erase("sampling_seconds");
    line.erase("reward_seconds");
  }
  return lines;
}

TEST_CASE("a run of rewards goes on as if it had not stopped", "[parity][rewards]") {
  const RewardedRuns runs;
  const json half = {{"bf16", {{"enabled", true}}}, {"zero_optimization", {{"stage", 2}}}};
  const json changes = merged(runs.rewards({{"grpo", {{"beta", 0.1}}}}), half);
  json all_weights = changes;
  all_weights.erase("peft");
  for (const auto& [kind, of_kind] :
       {std::pair<std::string, json>{"adapters", changes}, {"all", all_weights}}) {
    INFO(kind);
    const auto straight = without_clocks(runs.train(kind, 8, 2, of_kind));
    CHECK(straight.back().at("divergence").get<double>() > 0.0);
    runs.train(kind + "-stopped", 4, 2, of_kind);
    CHECK(without_clocks(runs.train(kind + "-stopped", 8, 2, of_kind)) == straight);
    CHECK(runs.rollouts(kind + "-stopped") == runs.rollouts(kind));
  }
}

TEST_CASE("a run that stops between steps of the same completions goes on with these",
          "[parity][rewards]") {
  const RewardedRuns runs;
  const json half = {{"bf16", {{"enabled", true}}}, {"zero_optimization", {{"stage", 2}}}};
  const std::pair<std::string, json> kinds[] = {
      {"again",
       merged(runs.rewards(
                  {{"grpo", {{"beta", 0.1}, {"num_iterations", 2}, {"num_mini_batches", 2}}}}),
              half)},
      {"values", merged(runs.values({{"num_ppo_epochs", 3}, {"kl_coef", 0.1}}), half)}};
  for (const auto& [kind, changes] : kinds) {
    INFO(kind);
    const auto straight = without_clocks(runs.train(kind, 8, 2, changes));
    runs.train(kind + "-stopped", 5, 2, changes);
    const std::filesystem::path checkpoint = runs.path(kind + "-stopped/checkpoints/step-00000005");
    CHECK(std::filesystem::exists(checkpoint / "rollouts.json"));
    const std::string copy = runs.path(kind + "-damaged");
    std::filesystem::copy(runs.path(kind + "-stopped"), copy,
                          std::filesystem::copy_options::recursive);
    CHECK(without_clocks(runs.train(kind + "-stopped", 8, 2, changes)) == straight);
    CHECK(runs.rollouts(kind + "-stopped") == runs.rollouts(kind));
    // Rollouts are written before the steps that train them first.
    const std::int64_t steps = kind == "again" ? 4 : 3;
    for (const json& rollout : runs.rollouts(kind)) {
      CHECK(rollout.at("step").get<std::int64_t>() % steps == 1);
    }
    // Where they are damaged, an older checkpoint is taken.
    std::ofstream(std::filesystem::path(copy) / "checkpoints/step-00000005/rollouts.json",
                  std::ios::app)
        << " ";
    CHECK(without_clocks(runs.train(kind + "-damaged", 8, 2, changes)) == straight);
  }
  // Steps of another size cannot go on with them.
  const json values = runs.values({{"kl_coef", 0.1}});
  runs.train("other", 3, 1, values);
  CHECK_THROWS_WITH(runs.train("other", 4, 1,
                               merged(values, {{"train_batch_size", 4},
                                               {"gradient_accumulation_steps", nullptr}})),
                    Contains("between two steps that train the same 8 completions"));
}

TEST_CASE("a head of values stays with the run", "[parity][rewards]") {
  const RewardedRuns runs;
  json changes = runs.values({{"kl_coef", 0}});
  changes.erase("peft");
  const std::vector<json> lines = runs.train("values", 4, 1, changes);
  CHECK(lines[0].at("value_loss").get<double>() > 0.0);
  const auto has_head = [&](const std::string& checkpoint) {
    const auto contents = CheckpointStore::contents(checkpoint);
    return std::any_of(contents.begin(), contents.end(), [](const CheckpointEntry& entry) {
      return entry.tensor == "value_head.weight";
    });
  };
  CHECK(has_head(runs.path("values/checkpoints/step-00000004")));
  // Other formats have no such head, and a run without one starts from the weights all the same.
  convert_checkpoint({.from = runs.path("values"),
                      .to = runs.path("converted"),
                      .format = TargetFormat::kHuggingFace},
                     {});
  const auto started = [&](const std::string& name, const std::string& from) {
    json of_rewards = runs.rewards({{"model", {{"initial_weights", from}}}});
    of_rewards.erase("peft");
    return runs.train(name, 2, 1, of_rewards)[1].at("loss").get<double>();
  };
  CHECK(started("from-run", runs.path("values")) == started("from-folder", runs.path("converted")));
  CHECK_FALSE(has_head(runs.path("from-run/checkpoints/step-00000002")));
  // One with a head goes on with it.
  json again = changes;
  again["model"]["initial_weights"] = runs.path("values");
  const double begun = runs.train("again", 1, 1, again)[0].at("value_loss").get<double>();
  again["model"]["initial_weights"] = runs.path("converted");
  CHECK(begun != runs.train("anew", 1, 1, again)[0].at("value_loss").get<double>());
}

TEST_CASE("rewards that cannot be had are refused", "[parity][rewards]") {
  const RewardedRuns runs;
  const auto why_not = [&](int ranks, const json& changes) {
    try {
      runs.train("refused", 2, ranks, runs.rewards(changes));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(why_not(1, {{"grpo", {{"num_generations", 3}}}}), Contains("is no multiple of it"));
  CHECK_THAT(why_not(1, {{"grpo", {{"temperature", 0.7}}}}), Contains("own probabilities"));
  CHECK_THAT(why_not(1, {{"grpo", {{"reward_command", nullptr}}}}),
             Contains("grpo.reward_command: missing"));
  CHECK_THAT(why_not(1, {{"grpo", {{"max_completion_length", 16}}}}), Contains("do not fit"));
  CHECK_THAT(why_not(1, {{"grpo", {{"reward_model", runs.path("base")}}}}),
             Contains("grpo.reward_model") && Contains("expected a model that scores"));
  CHECK_THAT(why_not(1, {{"grpo", {{"reward_model", runs.path("nowhere")}}}}),
             Contains("grpo.reward_model") && Contains("there is no folder"));
  CHECK_THAT(why_not(1, {{"grpo", {{"beta", 0.1}}}, {"peft", {{"modules_to_save", {"lm_head"}}}}}),
             Contains("without its adapters"));
  CHECK_THAT(why_not(1, {{"grpo", {{"max_completion_length", 14}}}}),
             Contains("prompts.jsonl:") && Contains("has a prompt of 3 tokens, expected 1 to 2"));
  CHECK_THAT(why_not(2, {{"pipeline", {{"stages", 2}}}}), Contains("pipeline cuts"));
  CHECK_THAT(why_not(1, {{"ppo", {{"lam", 0.9}}}}), Contains("leave one of them out"));
  CHECK_THAT(why_not(1, {{"model", {{"value_head", true}}}}), Contains("what \"ppo\" trains"));
  json no_adapters = runs.values({{"kl_coef", 0.1}});
  no_adapters.erase("peft");
  no_adapters["zero_optimization"] = {{"stage", 3}};
  CHECK_THROWS_WITH(runs.train("refused", 2, 2, no_adapters),
                    Contains("ppo.kl_coef") && Contains("of which each rank keeps a copy"));
  CHECK_THAT(why_not(2, {{"grpo", {{"reward_command", "exit 4"}}}}),
             Contains("ended with status 4 after 0 of 8 rewards"));
}

}  // namespace
}  // namespace dstrain::test
