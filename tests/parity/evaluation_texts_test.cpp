// Texts that a run continues at its evaluations: they are those that its checkpoint generates,
// whichever ranks share them, beside adapters, weights in 4 bits and experts.
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/weights_source.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "engine/generate/loaded_model.h"
#include "engine/generate/text_generator.h"
#include "engine/train/records/sampled_texts.h"
#include "kernels/backend.h"
#include "tests/parity/adapted_runs.h"
#include "tests/parity/tiny_family.h"

namespace dstrain::test {
namespace {

using nlohmann::json;

// Ids below the tiny model's vocabulary.
const std::vector<std::string> kPrompts = {"!", "\" #", "$%&'()*+,-./"};
constexpr std::int64_t kTokens = 5;

json with_prompts(const json& changes) {
  return merged(changes, {{"training", {{"eval_prompts", kPrompts}, {"eval_tokens", kTokens}}},
                          {"data", {{"tokenizer", "bytes"}, {"sequence_length", 20}}}});
}

/// The lines of samples.jsonl.
std::vector<json> texts_of(const std::string& run) {
  std::ifstream file(run + "/" + SampledTexts::kFile);
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

/// The text that the run's newest checkpoint generates.
std::string generated(const std::string& run, const std::string& prompt) {
  WeightsSource weights = open_weights(run);
  merge_adapters(weights, {});
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  GenerationRequest request{.prompt = {}, .max_tokens = kTokens, .sampling = {.temperature = 0.0}};
  tokenizer->encode(prompt, request.prompt);
  const GenerationPlan plan =
      plan_generation(weights.model, {.compute = DType::kF32, .positions = 20, .chunk_tokens = 3});
  const Backend backend = make_cpu_backend(1);
  LoadedModel model(plan, *backend.ops, *backend.device, *weights.tensors);
  return generate_text(model, *tokenizer, request, {}).text;
}

void check_texts(const AdaptedRuns& runs, const std::string& name, int ranks, const json& changes) {
  INFO(name);
  runs.train(name, 4, ranks, merged(with_prompts(changes), {{"training", {{"eval_interval", 2}}}}));
  const std::vector<json> lines = texts_of(runs.path(name));
  REQUIRE(lines.size() == 2 * kPrompts.size());
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    CHECK(lines[i].at("step") == 2);
    const json& last = lines[kPrompts.size() + i];
    CHECK(last.at("step") == 4);
    CHECK(last.at("prompt") == kPrompts[i]);
    CHECK(last.at("text") == generated(runs.path(name), kPrompts[i]));
  }
}

TEST_CASE("a run continues texts as its checkpoint does", "[parity][generate]") {
  const AdaptedRuns runs;
  const json faster = {{"optimizer", {{"params", {{"lr", 0.02}}}}}};
  check_texts(runs, "plain", 1, faster);
  check_texts(runs, "zero2", 2, merged(faster, {{"zero_optimization", {{"stage", 2}}}}));
  check_texts(runs, "zero3", 2, merged(faster, {{"zero_optimization", {{"stage", 3}}}}));
  check_texts(runs, "tp2-zero3", 4,
              merged(faster, {{"zero_optimization", {{"stage", 3}}},
                              {"tensor_parallel", {{"size", 2}, {"sequence_parallel", true}}}}));
  check_texts(runs, "recomputed", 1,
              merged(faster, {{"activation_checkpointing", {{"granularity", "full"}}}}));
  check_texts(runs, "adapters", 2, merged(runs.adapters(), faster));
  check_texts(runs, "magnitudes", 1,
              merged(merged(runs.adapters(), faster),
                     {{"peft", {{"use_dora", true}, {"lora_dropout", 0.5}}}}));
  json own = faster;
  own["model"] = {
      {"model_type", "gpt2"}, {"intermediate_size", nullptr}, {"num_key_value_heads", nullptr}};
  check_texts(runs, "gpt2", 1, own);
  // Its router has biases that training moves, and that are no parameters.
  own["model"] = json::parse(model_json(tiny_experts("deepseek_v3").model.value()));
  check_texts(runs, "deepseek_v3", 2, own);
}

TEST_CASE("texts are sampled beside weights in 4 bits, and do not change what is trained",
          "[parity][generate]") {
  const AdaptedRuns runs;
  const json coded = merged(
      with_prompts(runs.adapters()),
      {{"quantization_config", {{"load_in_4bit", true}}}, {"training", {{"eval_interval", 1}}}});
  const std::vector<json> lines = runs.train("coded", 4, 2, coded);
  CHECK(texts_of(runs.path("coded")).size() == 4 * kPrompts.size());
  json silent = coded;
  silent["training"].erase("eval_prompts");
  silent["data"].erase("tokenizer");
  CHECK(runs.train("silent", 4, 2, silent) == lines);
}

TEST_CASE("texts of steps that are trained again are written once", "[parity][generate]") {
  const AdaptedRuns runs;
  const json changes = merged(with_prompts(json::object()), {{"training", {{"eval_interval", 1}}}});
  runs.train("straight", 8, 1, changes);
  runs.train("stopped", 4, 1, changes);
  runs.train("stopped", 8, 1, changes);
  CHECK(texts_of(runs.path("stopped")) == texts_of(runs.path("straight")));
  CHECK(texts_of(runs.path("stopped")).size() == 8 * kPrompts.size());
}

TEST_CASE("texts that cannot be continued are refused", "[parity][generate]") {
  const AdaptedRuns runs;
  const auto why_not = [&](int ranks, const json& changes) {
    try {
      runs.train("refused", 2, ranks, merged(with_prompts(json::object()), changes));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(why_not(1, {{"training", {{"eval_prompts", {std::string(16, '!')}}}}}),
             Contains("has 16 tokens") && Contains("room for 15"));
  CHECK_THAT(why_not(1, {{"training", {{"eval_prompts", {"\xc3\xbc"}}}}}),
             Contains("is outside the model's vocabulary"));
  CHECK_THAT(why_not(2, {{"pipeline", {{"stages", 2}}}}), Contains("pipeline cuts"));
  CHECK_THAT(why_not(1, {{"training", {{"eval_tokens", 20}}}}),
             Contains("do not fit in data.sequence_length 20"));
}

}  // namespace
}  // namespace dstrain::test
