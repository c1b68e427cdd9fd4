// Generation against the training forward and against PyTorch (tests/golden): what the cached path
// computes for a position is what a forward over the whole sequence computes for it.
//
// B sequences, T positions, V vocabulary
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/config/arch/model_counts.h"
#include "engine/generate/loaded_model.h"
#include "engine/generate/text_generator.h"
#include "engine/tokenizer/whole_characters.h"
#include "engine/train/engine.h"
#include "engine/train/make_run_plan.h"
#include "kernels/backend.h"
#include "tests/harness/golden_model.h"
#include "tests/harness/local_rendezvous.h"

namespace dstrain::test {
namespace {

const std::vector<std::string> kModels{
    "gpt2-tiny",       "llama-tiny",       "qwen2-tiny",      "llama3-rope-tiny", "qwen3-tiny",
    "olmo2-tiny",      "mistral-tiny",     "olmo3-tiny",      "smollm3-tiny",     "phi3-tiny",
    "starcoder2-tiny", "gemma2-tiny",      "gemma3-tiny",     "gpt-neox-tiny",    "opt-tiny",
    "bloom-tiny",      "baichuan2-tiny",   "mixtral-tiny",    "qwen3-moe-tiny",   "olmoe-tiny",
    "gpt-oss-tiny",    "deepseek-v2-tiny", "deepseek-v3-tiny"};

/// A golden model's weights, held in memory.
class GoldenSource final : public TensorSource {
 public:
  explicit GoldenSource(const GoldenModel& golden, const Blueprint& blueprint) {
    for (const UnitDecl& unit : blueprint.units()) {
      for (const ParamDecl& param : unit.params) {
        values_[param.name] = golden.weight(param);
        entries_.push_back({.tensor = param.name, .state = "parameter", .shape = param.shape});
      }
    }
    for (const UntrainedDecl& tensor : blueprint.untrained()) {
      values_[tensor.name] = golden.weight(tensor);
      entries_.push_back({.tensor = tensor.name, .state = "parameter", .shape = tensor.shape});
    }
  }
  [[nodiscard]] std::span<const Entry> entries() const override { return entries_; }
  void read(const std::string& state, const Piece& piece, Tensor out) const override {
    REQUIRE(state == "parameter");
    REQUIRE(piece.box_extent == piece.shape);
    const std::vector<float>& whole = values_.at(piece.tensor);
    for (std::int64_t i = 0; i < piece.flat.size(); ++i) {
      const float value = whole.at(static_cast<std::size_t>(piece.flat.begin + i));
      if (out.dtype() == DType::kF32) {
        out.as<float>()[static_cast<std::size_t>(i)] = value;
      } else {
        out.as<BF16>()[static_cast<std::size_t>(i)] = to_bf16(value);
      }
    }
  }

 private:
  std::map<std::string, std::vector<float>> values_;
  std::vector<Entry> entries_;
};

/// One of the models, ready to read tokens.
struct Lab {
  explicit Lab(const std::string& name,
               DType compute = DType::kF32,
               std::int64_t chunk_tokens = 5,
               int threads = 1,
               std::int64_t texts = 1)
      : golden(name),
        config(golden.config("fp32").config),
        plan(plan_generation(config.model,
                             {.compute = compute,
                              .positions = config.model.max_positions,
                              .texts = texts,
                              .chunk_tokens = chunk_tokens})),
        backend(make_cpu_backend(threads)),
        model(plan, *backend.ops, *backend.device, GoldenSource(golden, plan.blueprint)) {}

  [[nodiscard]] std::vector<std::int32_t> sequence(std::int64_t row) const {
    const std::vector<std::int32_t> all = golden.inputs(0);
    const std::int64_t length = config.data.sequence_length;
    return {all.begin() + row * length, all.begin() + (row + 1) * length};
  }

  GoldenModel golden;
  Config config;
  GenerationPlan plan;
  Backend backend;
  LoadedModel model;
};

double loss_of(std::span<const float> logits, std::int32_t target) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (const float logit : logits) {
    total += std::exp(static_cast<double>(logit) - largest);
  }
  return largest + std::log(total) - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

/// Mean loss of batch 0, a token at a time.
double mean_loss(Lab& lab) {
  const std::vector<std::int32_t> inputs = lab.golden.inputs(0);
  const std::vector<std::int32_t> targets = lab.golden.targets(0);
  double sum = 0.0;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (static_cast<std::int64_t>(n) % lab.config.data.sequence_length == 0) {
      lab.model.rewind(0);
    }
    sum += loss_of(lab.model.extend({&inputs[n], 1}), targets[n]);
  }
  return sum / static_cast<double>(inputs.size());
}

/// Logits of batch 0, from the forward that trains: [B·T, V].
std::vector<float> training_logits(const Lab& lab) {
  const auto world = make_local_rendezvous(1);
  Engine engine(make_run_plan(lab.config, 1, 0), *world[0], make_cpu_backend(1), 1);
  lab.golden.load_into(engine);
  engine.evaluate(
      [&](std::int64_t, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
        const auto x = lab.golden.inputs(0);
        const auto y = lab.golden.targets(0);
        std::copy(x.begin(), x.end(), inputs.begin());
        std::copy(y.begin(), y.end(), targets.begin());
      },
      0);
  // An evaluation leaves them: all tokens are one chunk of logits here.
  const Blueprint& blueprint = engine.plan().blueprint;
  const auto found = std::find_if(blueprint.buffers().begin(), blueprint.buffers().end(),
                                  [](const BufferDecl& b) { return b.name == "logits"; });
  REQUIRE(found != blueprint.buffers().end());
  REQUIRE(found->shape[0] == static_cast<std::int64_t>(lab.golden.inputs(0).size()));
  const auto logits = engine.arena()
                          .buffer(BufferRef{static_cast<int>(found - blueprint.buffers().begin())})
                          .as<float>();
  return {logits.begin(), logits.end()};
}

/// The largest distance, relative to the largest magnitude.
double distance(std::span<const float> got, std::span<const float> expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0.0;
  double largest = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst =
        std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return worst / largest;
}

std::int32_t likeliest(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

TEST_CASE("the loss a token at a time is PyTorch's", "[parity][generate]") {
  const std::string name = GENERATE(from_range(kModels));
  INFO(name);
  Lab wide(name);
  CHECK(mean_loss(wide) == Approx(wide.golden.losses()[0]).epsilon(1e-5).margin(0));
  // bf16 keeps 8 bits; averaged over the batch the loss is far closer than one product.
  Lab narrow(name, DType::kBF16);
  CHECK(mean_loss(narrow) == Approx(wide.golden.losses()[0]).epsilon(5e-3).margin(0));
}

TEST_CASE("past an attention window the logits are transformers'", "[parity][generate]") {
  const nlohmann::json golden =
      nlohmann::json::parse(std::ifstream("tests/golden/attention-windows.json"));
  REQUIRE(golden.size() == 2);
  for (const nlohmann::json& row : golden) {
    const std::string folder = "tests/golden/huggingface/" + row.at("folder").get<std::string>();
    CAPTURE(folder);
    WeightsSource weights = open_weights(folder);
    const auto window = row.at("window").get<std::int64_t>();
    if (weights.model.attention_window == 0) {  // the golden gave it one
      weights.model.attention_window = window;
      weights.model.first_window_layer = row.at("first_layer").get<std::int64_t>();
    }
    CHECK(weights.model.attention_window == window);
    const auto tokens = row.at("tokens").get<std::vector<std::int32_t>>();
    const auto logits_of = [&](const ModelSpec& model, std::size_t part) {
      const GenerationPlan plan =
          plan_generation(model, {.compute = DType::kF32,
                                  .positions = static_cast<std::int64_t>(tokens.size()),
                                  .chunk_tokens = 7});
      const Backend backend = make_cpu_backend(1);
      LoadedModel reader(plan, *backend.ops, *backend.device, *weights.tensors);
      std::vector<float> logits;
      for (std::size_t t = 0; t < tokens.size(); t += part) {
        const auto last =
            reader.extend(std::span(tokens).subspan(t, std::min(part, tokens.size() - t)));
        logits.assign(last.begin(), last.end());
      }
      return logits;
    };
    const auto expected = row.at("logits").get<std::vector<float>>();
    CHECK(distance(logits_of(weights.model, 1), expected) < 1e-5);
    CHECK(distance(logits_of(weights.model, tokens.size()), expected) < 1e-5);
    ModelSpec unlimited = weights.model;
    unlimited.attention_window = 0;
    CHECK(distance(logits_of(unlimited, 1), row.at("logits_without").get<std::vector<float>>()) <
          1e-5);
    CHECK(distance(logits_of(unlimited, 1), expected) > 1e-2);
  }
}

TEST_CASE("the logits of every position are those of the training forward", "[parity][generate]") {
  const std::string name = GENERATE(from_range(kModels));
  INFO(name);
  Lab lab(name);
  const std::vector<float> expected = training_logits(lab);
  const auto vocabulary = static_cast<std::size_t>(lab.config.model.vocab_size);
  const std::int64_t length = lab.config.data.sequence_length;
  double worst_by_token = 0.0;
  double worst_by_chunk = 0.0;
  for (std::int64_t row = 0; row < lab.golden.batch(); ++row) {
    const std::vector<std::int32_t> sequence = lab.sequence(row);
    const auto expected_at = [&](std::int64_t t) {
      return std::span(expected).subspan(static_cast<std::size_t>(row * length + t) * vocabulary,
                                         vocabulary);
    };
    lab.model.rewind(0);
    for (std::int64_t t = 0; t < length; ++t) {
      const auto logits = lab.model.extend({&sequence[static_cast<std::size_t>(t)], 1});
      worst_by_token = std::max(worst_by_token, distance(logits, expected_at(t)));
    }
    // The same in calls of 7, which forwards of 5 cut again.
    lab.model.rewind(0);
    for (std::int64_t t = 0; t < length; t += 7) {
      const std::int64_t count = std::min<std::int64_t>(7, length - t);
      const auto part =
          std::span(sequence).subspan(static_cast<std::size_t>(t), static_cast<std::size_t>(count));
      worst_by_chunk =
          std::max(worst_by_chunk, distance(lab.model.extend(part), expected_at(t + count - 1)));
    }
  }
  CHECK(worst_by_token < 1e-5);
  CHECK(worst_by_chunk < 1e-5);
}

TEST_CASE("a text that grows beyond LongRoPE's original positions is read again",
          "[parity][generate]") {
  Lab lab("longrope-tiny");
  const std::int64_t original = lab.config.model.rope_scaling.original_max_positions;
  const std::vector<std::int32_t> sequence = lab.sequence(0);
  REQUIRE(original == 16);
  REQUIRE(sequence.size() > 20);
  ModelSpec never_long = lab.config.model;
  never_long.rope_scaling.long_factors = never_long.rope_scaling.short_factors;
  const GenerationPlan short_plan = plan_generation(never_long, lab.plan.sizes);
  LoadedModel short_model(short_plan, *lab.backend.ops, *lab.backend.device,
                          GoldenSource(lab.golden, short_plan.blueprint));
  const std::vector<float> all_long = training_logits(lab);
  const auto vocabulary = static_cast<std::size_t>(lab.config.model.vocab_size);
  double worst = 0.0;
  double apart = 0.0;  // how far the two rotations are
  for (std::size_t t = 0; t < sequence.size(); ++t) {
    const auto logits = lab.model.extend({&sequence[t], 1});
    const auto of_short = short_model.extend({&sequence[t], 1});
    const auto of_long = std::span(all_long).subspan(t * vocabulary, vocabulary);
    const bool is_long = static_cast<std::int64_t>(t) >= original;
    worst = std::max(worst, distance(logits, is_long ? of_long : of_short));
    apart = std::max(apart, distance(of_short, of_long));
  }
  CHECK(worst < 1e-5);
  CHECK(apart > 1e-2);
  CHECK(lab.model.position() == std::ssize(sequence));
  lab.model.rewind(5);
  short_model.rewind(5);
  CHECK(distance(lab.model.extend({&sequence[5], 1}), short_model.extend({&sequence[5], 1})) <
        1e-5);
  // A prompt that is longer at once is read once.
  lab.model.rewind(0);
  CHECK(distance(lab.model.extend(sequence),
                 std::span(all_long).subspan((sequence.size() - 1) * vocabulary, vocabulary)) <
        1e-5);
}

TEST_CASE("texts that grow beyond LongRoPE's original positions come one after the other",
          "[parity][generate]") {
  Lab lab("longrope-tiny");
  const auto bytes = Tokenizer::make("bytes");
  const GenerationRequest request{
      .prompt = {3, 1, 4, 1, 5, 9}, .max_tokens = 18, .sampling = {.temperature = 0.0}};
  std::vector<std::int32_t> expected = request.prompt;  // greedily, without a cache
  while (expected.size() < 24) {
    lab.model.rewind(0);
    expected.push_back(likeliest(lab.model.extend(expected)));
  }
  expected.erase(expected.begin(), expected.begin() + 6);
  lab.model.rewind(0);
  std::vector<GeneratedText> made;
  generate_texts(lab.model, *bytes, {request, request},
                 {.on_end = [&](std::size_t, GeneratedText text) { made.push_back(text); }});
  REQUIRE(made.size() == 2);
  CHECK(made[0].tokens == expected);
  CHECK(made[1].tokens == expected);
}

TEST_CASE("greedy text with the cache is greedy text without", "[parity][generate]") {
  const std::string name = GENERATE(from_range(kModels));
  const DType compute = GENERATE(DType::kF32, DType::kBF16);
  INFO(name << " in " << name_of(compute));
  Lab lab(name, compute);
  const std::vector<std::int32_t> prompt{3, 1, 4, 1, 5, 9};
  constexpr std::size_t kTokens = 30;
  std::vector<std::int32_t> cached = prompt;
  std::int32_t next = likeliest(lab.model.extend(prompt));
  while (cached.size() < prompt.size() + kTokens) {
    cached.push_back(next);
    next = likeliest(lab.model.extend({&cached.back(), 1}));
  }
  std::vector<std::int32_t> repeated = prompt;
  while (repeated.size() < cached.size()) {
    lab.model.rewind(0);
    repeated.push_back(likeliest(lab.model.extend(repeated)));
  }
  CHECK(cached == repeated);
}

TEST_CASE("texts that are read side by side are what each is alone", "[parity][generate]") {
  const std::string name = GENERATE(from_range(kModels));
  INFO(name);
  Lab alone(name);
  Lab together(name, DType::kF32, 5, 1, 3);
  const auto bytes = Tokenizer::make("bytes");
  // Some prompts follow their like, some come again; one ends with its first token.
  std::vector<GenerationRequest> requests;
  const std::vector<std::int32_t> prompts[] = {{3, 1, 4, 1, 5, 9},
                                               {3, 1, 4, 1, 5, 9},
                                               {2, 7},
                                               {3, 1, 4, 1, 5, 9},
                                               {2, 7},
                                               {2, 7},
                                               {6},
                                               {6},
                                               {6},
                                               {6},
                                               {6}};
  for (const std::vector<std::int32_t>& prompt : prompts) {
    const auto count = std::ssize(requests);
    requests.push_back({.prompt = prompt,
                        .max_tokens = 4 + count % 5 * 3,
                        .sampling = {.top_k = 30, .seed = 10 + static_cast<std::uint64_t>(count)}});
  }
  std::vector<GeneratedText> expected;
  for (GenerationRequest& request : requests) {
    alone.model.rewind(0);
    expected.push_back(generate_text(alone.model, *bytes, request, {}));
    const auto count = std::ssize(expected);
    if (count % 4 != 0 && count != 6) continue;
    request.ends = {expected.back().tokens[count == 6 ? 0 : 2]};
    alone.model.rewind(0);
    expected.back() = generate_text(alone.model, *bytes, request, {});
  }
  int forwards = 0;
  std::vector<GeneratedText> made(requests.size());
  generate_texts(together.model, *bytes, requests,
                 {.before_forward = [&] { ++forwards; },
                  .on_end = [&](std::size_t i, GeneratedText text) { made[i] = std::move(text); }});
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    INFO(i);
    CHECK(made[i].tokens == expected[i].tokens);
    CHECK(made[i].text == expected[i].text);
    CHECK(made[i].end == expected[i].end);
    CHECK(made[i].reason == expected[i].reason);
    tokens += expected[i].tokens.size();
  }
  CHECK(static_cast<std::size_t>(forwards) < tokens / 2);
  // The logits, where texts have different lengths.
  for (std::int64_t text = 0; text < 3; ++text) {
    together.model.rewind(0, text);
  }
  const std::vector<std::int32_t> sequence = together.sequence(0);
  together.model.extend(
      std::span(sequence).first(9), [] { return true; }, 1);
  together.model.extend(
      std::span(sequence).first(4), [] { return true; }, 0);
  together.model.copy(1, 2, 7);
  const std::vector<std::int32_t> next[] = {{5, 3}, {8}, {5, 1}};
  const std::int64_t lengths[] = {4, 9, 7};
  const CachedModel::Next all[] = {{2, next[2]}, {0, next[0]}, {1, next[1]}};
  together.model.extend_each(all);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto text = static_cast<std::size_t>(all[i].text);
    std::vector<std::int32_t> whole(sequence.begin(), sequence.begin() + lengths[text]);
    whole.insert(whole.end(), next[text].begin(), next[text].end());
    alone.model.rewind(0);
    CHECK(distance(together.model.logits(i), alone.model.extend(whole)) < 1e-5);
    CHECK(together.model.position(all[i].text) == std::ssize(whole));
  }
}

TEST_CASE("more threads compute the same bits for a token", "[parity][generate]") {
  Lab one("llama-tiny", DType::kBF16, 1, 1);
  Lab two("llama-tiny", DType::kBF16, 1, 2);
  const std::vector<std::int32_t> tokens = one.sequence(0);
  const auto first = one.model.extend(tokens);
  const auto second = two.model.extend(tokens);
  CHECK(std::equal(first.begin(), first.end(), second.begin()));
}

TEST_CASE("what is planned is what is allocated", "[parity][generate]") {
  Lab lab("qwen2-tiny", DType::kBF16);
  const ModelSpec& model = lab.config.model;
  CHECK(lab.model.allocated_bytes() == lab.plan.memory.bytes());
  CHECK(lab.plan.blueprint.num_parameters() == num_parameters(model));
  // Each buffer is rounded up to 64 bytes: a position of this model takes a multiple of them.
  CHECK(lab.plan.memory.region(RegionKind::kCache).bytes == model.num_layers * model.max_positions *
                                                                2 * model.num_key_value_heads *
                                                                model.head_dim * 2);
}

TEST_CASE("text comes in parts that make up the whole, until something ends it",
          "[parity][generate]") {
  Lab lab("llama-tiny");
  const auto bytes = Tokenizer::make("bytes");
  std::string heard;
  const auto generate = [&](GenerationRequest request, std::int64_t stop_after = 1000) {
    lab.model.rewind(0);
    heard.clear();
    request.prompt = {65, 66, 67};
    request.max_tokens = 25;
    return generate_text(lab.model, *bytes, request,
                         {.on_text = [&](std::string_view text) { heard += text; },
                          .stop_requested = [&] { return stop_after-- == 0; }});
  };
  const GeneratedText whole = generate({.sampling = {.seed = 4}});
  CHECK(whole.reason == EndReason::kMaxTokens);
  CHECK(whole.tokens.size() == 25);
  CHECK(whole.text == as_utf8(bytes->decode(whole.tokens)));
  CHECK(heard == whole.text);
  CHECK(generate({.sampling = {.seed = 4}}).tokens == whole.tokens);
  CHECK(generate({.sampling = {.seed = 5}}).tokens != whole.tokens);

  const std::int32_t end = whole.tokens[7];
  const auto first = std::find(whole.tokens.begin(), whole.tokens.end(), end);
  const GeneratedText ended = generate({.sampling = {.seed = 4}, .ends = {end}});
  CHECK(ended.reason == EndReason::kEndOfText);
  CHECK(ended.tokens == std::vector<std::int32_t>(whole.tokens.begin(), first));

  std::size_t ascii = 4;  // one from the middle that is a character by itself
  while (whole.tokens[ascii] >= 128) {
    ++ascii;
  }
  const std::string stop(1, static_cast<char>(whole.tokens[ascii]));
  const GeneratedText stopped = generate({.sampling = {.seed = 4}, .stops = {stop}});
  CHECK(stopped.reason == EndReason::kStopText);
  CHECK(stopped.text == whole.text.substr(0, whole.text.find(stop)));
  CHECK(heard == stopped.text);

  const GeneratedText asked = generate({.sampling = {.seed = 4}}, 6);
  CHECK(asked.reason == EndReason::kAsked);
  CHECK(asked.tokens.size() == 5);  // it is asked once before the prompt too
}

TEST_CASE("text of a tokenizer.json comes in whole characters, whatever bytes a model draws",
          "[parity][generate]") {
  // Its first tokens are the bytes, of which the model, which knows nothing, makes some characters.
  const std::string json = std::string(DSTRAIN_UNPACKED) + "/tokenizers/gpt2.json";
  const auto tokenizer = Tokenizer::make(json);
  Lab lab("gpt2-tiny");
  int characters = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    lab.model.rewind(0);
    std::string heard;
    const GeneratedText made = generate_text(
        lab.model, *tokenizer,
        {.prompt = {37}, .max_tokens = 30, .sampling = {.temperature = 3.0F, .seed = seed}},
        {.on_text = [&](std::string_view text) {
          CHECK(is_utf8(text));
          heard += text;
        }});
    CHECK(made.tokens.size() == 30);
    CHECK(heard == as_utf8(tokenizer->decode(made.tokens)));
    for (std::size_t at = 0; at < heard.size(); ++at) {
      characters += (static_cast<unsigned char>(heard[at]) & 0xE0U) == 0xC0U ? 1 : 0;
    }
  }
  CHECK(characters > 0);  // of two bytes, and so of two tokens
}

TEST_CASE("weights that are not there are a sentence", "[parity][generate]") {
  struct Empty final : TensorSource {
    std::vector<Entry> moments{{.tensor = "embedding.token.weight", .state = "exp_avg"}};
    [[nodiscard]] std::span<const Entry> entries() const override { return moments; }
    void read(const std::string&, const Piece&, Tensor) const override {}
  };
  const Lab lab("gpt2-tiny");
  CHECK_THROWS_AS(LoadedModel(lab.plan, *lab.backend.ops, *lab.backend.device, Empty()),
                  CheckpointError);
  CHECK_THROWS_WITH(LoadedModel(lab.plan, *lab.backend.ops, *lab.backend.device, Empty()),
                    Catch::Contains("holds no parameters"));
}

}  // namespace dstrain::test
