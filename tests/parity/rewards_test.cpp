// Training on rewards of what the model answers ("grpo", "ppo"): programs of rewards are obeyed and
// their failures told, every layout samples and trains what one rank does, a resume goes on as if
// there had been no stop, and rewards grow. The formulas: reward_objectives_test.cpp. What runs
// equal from outside: scripts/check_rewards, scripts/check_ppo.
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
#include "engine/train/policy/reward_program.h"
#include "engine/train/records/rollouts_file.h"
#include "engine/train/run_data.h"
#include "tests/parity/adapted_runs.h"

namespace dstrain::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

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
  // Nor can a divergence that they were not measured for, or groups of another size; without a
  // divergence they do.
  runs.train("other", 4, 1, runs.values({{"kl_coef", 0}}));
  runs.train("bare", 3, 1, runs.values({{"kl_coef", 0}}));
  CHECK_THROWS_WITH(runs.train("bare", 4, 1, values), Contains("are not those of such a run"));
  const auto in_groups = [&](int of) {
    return runs.rewards({{"grpo", {{"num_iterations", 2}, {"num_generations", of}}}});
  };
  runs.train("groups", 3, 1, in_groups(4));
  CHECK_THROWS_WITH(runs.train("groups", 4, 1, in_groups(2)),
                    Contains("are not those of such a run"));
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
  // A resume would read a reference that has gone on.
  no_adapters["zero_optimization"] = {{"stage", 0}};
  no_adapters["model"]["initial_weights"] = runs.path("one");
  CHECK_THROWS_WITH(runs.train("refused", 2, 1, no_adapters),
                    Contains("is a run's") && Contains("a folder of their own"));
  CHECK_THAT(why_not(2, {{"grpo", {{"reward_command", "exit 4"}}}}),
             Contains("ended with status 4 after 0 of 8 rewards"));
}

}  // namespace
}  // namespace dstrain::test
