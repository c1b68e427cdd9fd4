// Low-rank adapters: they begin as the model without them, alone are trained, and every layout
// follows one rank. What they equal from outside: scripts/check_adapters.
#include "engine/config/arch/adapters.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/conversion.h"
#include "engine/checkpoint/foreign/huggingface/adapter.h"
#include "engine/config/config_error.h"
#include "engine/train/trained_part.h"
#include "tests/harness/resumable_run.h"
#include "tests/harness/tiny_model.h"
#include "tests/parity/partly_trained.h"
#include "tests/parity/tiny_family.h"
#include "tests/parity/zero_ladder.h"

namespace dstrain::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

AdapterConfig all_linear() {
  return {.rank = 4, .alpha = 6.0, .target_modules = {kAllLinear}};
}

TinyOptions with_adapters(TinyOptions options) {
  options.adapters = all_linear();
  return options;
}

TEST_CASE("adapters alone are trained, from the model as it was", "[parity][adapters]") {
  for (const std::string& family : kFamilies) {
    INFO(family);
    TinyOptions options = tiny_family(family);
    options.steps = 4;
    const TinyRun plain = train_tiny(options);
    const TinyRun run = train_tiny(with_adapters(options));
    options.learning_rate = 0.0;
    const TinyRun still = train_tiny(with_adapters(options));
    check_plan({run});
    CHECK(run.losses.front() == plain.losses.front());
    CHECK(run.losses.back() != plain.losses.back());
    std::map<std::string, std::vector<float>> before;
    for (const HeldPiece& held : still.held) {
      if (held.state == "parameter") before[held.piece.tensor] = held.values;
    }
    int adapters = 0;
    for (const HeldPiece& held : run.held) {
      INFO(held.piece.tensor);
      const bool trains = is_adapter(held.piece.tensor);
      if (held.state != "parameter") {
        CHECK(trains);
        continue;
      }
      adapters += trains ? 1 : 0;
      CHECK((held.values != before.at(held.piece.tensor)) == trains);
    }
    CHECK(adapters > 0);
  }
}

TEST_CASE("some modules, and the stabilised scale", "[parity][adapters]") {
  TinyOptions options;
  options.steps = 3;
  options.adapters = {.rank = 4, .alpha = 4.0, .target_modules = {"q_proj", "v_proj", "down_proj"}};
  const TinyRun run = train_tiny(options);
  std::map<std::string, Shape> found;
  for (const HeldPiece& held : run.held) {
    if (held.state == "parameter" && is_adapter(held.piece.tensor)) {
      found[held.piece.tensor] = held.piece.shape;
    }
  }
  CHECK(found.size() == 2U * 3 * 2);
  CHECK(found.at("blocks.1.attention.value.lora_a")[0] == 4);
  CHECK_FALSE(found.contains("blocks.1.attention.key.lora_a"));
  // alpha / √r = 2 · alpha / r
  options.adapters.rank_stabilised = true;
  const TinyRun stabilised = train_tiny(options);
  options.adapters.rank_stabilised = false;
  options.adapters.alpha = 8.0;
  CHECK(train_tiny(options).losses == stabilised.losses);
  CHECK(stabilised.losses != run.losses);
}

TEST_CASE("what is trained of a model, and what that saves, is counted", "[adapters]") {
  LayerShape shape{.model = ModelSpec(tiny_model(Family::kLlama))};
  const std::int64_t all = trained_parameters(shape);
  CHECK(left_out_flops_per_token(shape) == 0.0);
  // A frozen matrix saves two FLOPs of six; the gradient of a look-up table has none to save.
  shape.frozen = {{"blocks.0.attention.output.*", "embedding.*"}};
  const double output = 40.0 * 40.0;
  const auto table = static_cast<double>(shape.model.vocab_size * shape.model.hidden_size);
  CHECK(left_out_flops_per_token(shape) == 2.0 * output);
  CHECK(static_cast<double>(all - trained_parameters(shape)) == output + table);
  // Each number of an adapter takes six.
  shape.frozen = {{"*"}};
  const double frozen = left_out_flops_per_token(shape);
  shape.frozen = {};
  shape.adapters = {
      .modules = modules_named(linear_modules(tiny_model(Family::kLlama)), {"o_proj"}), .rank = 3};
  CHECK(trained_parameters(shape) == 2 * (3 * 40 + 40 * 3));
  CHECK(left_out_flops_per_token(shape) == frozen - 6.0 * 2 * (3 * 40 + 40 * 3));
}

TEST_CASE("ZeRO's stages have the same bits with adapters", "[parity][adapters]") {
  for (const Formats& formats : kFormats) {
    INFO(formats.name);
    TinyOptions options = with_adapters({});
    options.precision = formats.precision;
    options.formats = formats.formats;
    options.micro_batch = 2;
    options.steps = 3;
    // Stages 2 and 3 round after a wider wire, 0 and 1 before it.
    const bool wider_wire = formats.formats.communication == DType::kF32;
    std::vector<TinyRun> reference = train_ranks(2, options);
    check_plan(reference);
    for (const int stage : {1, 2, 3}) {
      INFO("stage " << stage);
      const std::vector<TinyRun> runs = train_ranks(2, with_stage(options, stage));
      check_plan(runs);
      if (stage == 2 && wider_wire) reference = runs;
      check_same_bits(runs, reference);
    }
  }
}

TEST_CASE("every layout follows one rank with adapters", "[parity][adapters]") {
  check_layouts(with_adapters({}));
  INFO("several matrices in one module");
  check_layouts(with_adapters({.family = Family::kGpt2}));
  TinyOptions phi3 = tiny_family("phi3");
  phi3.model->tied_embeddings = false;
  check_layouts(with_adapters(phi3));
}

TEST_CASE("every layout follows one rank with modules trained whole beside adapters",
          "[parity][adapters]") {
  // Not the table and the head, which one of the layouts ties.
  AdapterConfig adapters = all_linear();
  adapters.modules_to_save = {"model.norm", "post_attention_layernorm"};
  check_layouts({.adapters = adapters});
  adapters.modules_to_save = {"wte", "wpe", "ln_f"};
  TinyOptions options{.family = Family::kGpt2, .adapters = adapters};
  options.model = tiny_model(Family::kGpt2);
  check_layouts(options);
}

TEST_CASE("modules beside adapters move as they do where all is trained", "[parity][adapters]") {
  // A single step of SGD: what a tensor loses is its gradient, whoever else is trained.
  TinyOptions options{.optimizer = {.kind = OptimizerKind::kSgd}, .steps = 1};
  const auto masters_of = [](const TinyOptions& of) {
    std::map<std::string, std::vector<float>> masters;
    for (const HeldPiece& held : train_tiny(of).held) {
      if (held.state == "parameter") masters[held.piece.tensor] = held.values;
    }
    return masters;
  };
  const auto all = masters_of(options);
  options.adapters = all_linear();
  const auto still = masters_of(options);
  options.adapters.modules_to_save = {"embed_tokens", "lm_head", "model.norm"};
  const auto saved = masters_of(options);
  for (const auto& [tensor, values] : all) {
    INFO(tensor);
    const bool whole = tensor == "embedding.token.weight" || tensor == "head.weight" ||
                       tensor == "final_norm.weight";
    CHECK(saved.at(tensor) == (whole ? all : still).at(tensor));
    if (whole) CHECK(saved.at(tensor) != still.at(tensor));
  }
}

TEST_CASE("adapters beside experts on other ranks follow one rank", "[parity][adapters]") {
  TinyOptions options = with_adapters(tiny_experts("mixtral"));
  options.steps = 4;
  const TinyRun single = train_tiny(options);
  options.expert_parallel.size = 2;
  options.micro_batch /= 2;
  options.zero_stage = 3;
  const std::vector<TinyRun> runs = train_ranks(2, options);
  check_plan(runs);
  CHECK(worst_relative(runs[0].losses, single.losses) < 1e-5);
}

TEST_CASE("adapters beside 8-bit products begin as the model in 8 bits, and learn",
          "[parity][adapters][fp8]") {
  TinyOptions options;
  options.model = tiny_model_in_16s(Family::kLlama);
  options.sequence = 16;
  options.precision = Precision::kBF16;
  options.fp8 = {.enabled = true, .amax_history = 4};
  const TinyRun plain = train_tiny(options);
  const TinyRun run = train_tiny(with_adapters(options));
  check_plan({run});
  CHECK(run.losses.front() == plain.losses.front());
  CHECK(run.losses.back() < run.losses.front());
}

TEST_CASE("a run of adapters goes on as if it had not stopped", "[parity][adapters]") {
  const RunFolder folder;
  const json changes = {{"peft", {{"r", 4}, {"target_modules", {"q_proj", "v_proj"}}}},
                        {"zero_optimization", {{"stage", 3}}},
                        {"bf16", {{"enabled", true}}}};
  const auto train = [&](const std::string& output, int steps) {
    run(config_of(folder, output, steps, 2, changes), 2);
    return metrics_of(folder, output);
  };
  const std::vector<json> straight = train("straight", 8);
  train("stopped", 4);
  CHECK(train("stopped", 8) == straight);
}

TEST_CASE("adapters are merged where the plain model is asked for, and written as PEFT's",
          "[parity][adapters]") {
  const RunFolder folder;
  const auto train = [&](const std::string& output, int steps, const json& changes) {
    run(config_of(folder, output, steps, 1, changes), 1);
    return metrics_of(folder, output);
  };
  const auto convert = [&](const std::string& from, const std::string& to, TargetFormat format,
                           const std::string& adapter = "") {
    ConversionRequest request{
        .from = folder.path() / from, .to = folder.path() / to, .format = format};
    if (!adapter.empty()) request.merge_adapter = folder.path() / adapter;
    const auto summary = convert_checkpoint(request, {});
    REQUIRE(summary);
    return (folder.path() / to).string();
  };
  const json still = {{"optimizer", {{"params", {{"lr", 1e-30}, {"weight_decay", 0.0}}}}},
                      {"scheduler", nullptr}};
  const auto from = [&](const std::string& weights) {
    return json{{"model", {{"initial_weights", weights}}}};
  };
  train("base", 1, still);
  const std::string base = convert("base", "base-hf", TargetFormat::kHuggingFace);
  const json adapters =
      merged(from(base), {{"peft",
                           {{"r", 4},
                            {"use_rslora", true},
                            {"target_modules", {"q_proj", "down_proj"}},
                            {"modules_to_save", {"lm_head", "input_layernorm"}}}}});
  const double trained = train("lora", 4, adapters).back().at("validation_loss").get<double>();
  const double before = train("still", 1, merged(from(base), still)).back().at("validation_loss");
  CHECK(trained < before);

  const std::string merged_folder = convert("lora", "merged", TargetFormat::kHuggingFace);
  const double after =
      train("still-merged", 1, merged(from(merged_folder), still)).back().at("validation_loss");
  CHECK(after == Approx(trained).epsilon(1e-6).margin(0));
  // A run may start from a checkpoint with adapters as from any other.
  const double from_run =
      train("from-run", 1, merged(from((folder.path() / "lora").string()), still))
          .back()
          .at("validation_loss");
  CHECK(from_run == after);

  convert("lora", "adapter", TargetFormat::kPeft);
  convert("base-hf", "merged-too", TargetFormat::kHuggingFace, "adapter");
  CHECK(SafetensorsFile(folder.path() / "adapter" / kAdapterFile).tensors().size() ==
        2U * 2 * 2 + 1 + 2);
  const auto bytes = [&](const std::string& name) {
    std::ifstream file(folder.path() / name / "model.safetensors", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CHECK(bytes("merged-too").size() > 1000);
  CHECK(bytes("merged-too") == bytes("merged"));
  CHECK(bytes("merged-too") != bytes("base-hf"));

  // Cut for other ranks, adapters stay adapters.
  convert("lora", "recut", TargetFormat::kDstrain);
  convert("recut", "adapter-too", TargetFormat::kPeft);
  const auto why_not = [&](const std::string& from_run, TargetFormat format,
                           const std::string& adapter) {
    try {
      convert(from_run, "none", format, adapter);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(why_not("base-hf", TargetFormat::kPeft, ""), Contains("has no adapters"));
  CHECK_THAT(why_not("base-hf", TargetFormat::kPeft, "adapter"), Contains("leaves no adapter"));
  CHECK_THAT(why_not("lora", TargetFormat::kHuggingFace, "adapter"),
             Contains("has adapters of its own"));
}

TEST_CASE("beside weights that it started from, a run saves what it trains alone",
          "[parity][adapters]") {
  const RunFolder folder;
  const auto train = [&](const std::string& output, int steps, int ranks, const json& changes) {
    run(config_of(folder, output, steps, ranks, changes), ranks);
    return metrics_of(folder, output);
  };
  const auto convert = [&](const std::string& from, const std::string& to, TargetFormat format,
                           const std::string& base = "") {
    ConversionRequest request{
        .from = folder.path() / from, .to = folder.path() / to, .format = format};
    if (!base.empty()) request.base = folder.path() / base;
    convert_checkpoint(request, {});
    const SafetensorsFile file(
        folder.path() / to /
        (format == TargetFormat::kPeft ? kAdapterFile : std::string("model.safetensors")));
    std::ifstream bytes(file.path(), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(bytes), {});
  };
  const auto beside = [&](const std::string& weights) {
    return json{
        {"model", {{"initial_weights", (folder.path() / weights).string()}}},
        {"zero_optimization", {{"stage", 3}}},
        {"bf16", {{"enabled", true}}},
        {"peft",
         {{"r", 4}, {"target_modules", {"q_proj", "v_proj"}}, {"modules_to_save", {"lm_head"}}}}};
  };
  const auto why_not = [&](const auto& attempt) {
    try {
      attempt();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  train("one", 1, 1, json::object());
  train("other", 1, 1, {{"training", {{"seed", 77}}}});
  convert("one", "base", TargetFormat::kHuggingFace);
  convert("other", "other-base", TargetFormat::kHuggingFace);

  const std::vector<json> straight = train("straight", 8, 2, beside("base"));
  train("stopped", 4, 2, beside("base"));
  const auto newest = CheckpointStore(folder.path() / "stopped" / "checkpoints").latest();
  std::set<std::string> held;
  for (const CheckpointEntry& entry : CheckpointStore::contents(*newest)) {
    held.insert(entry.tensor);
    CHECK((is_adapter(entry.tensor) || entry.tensor == "head.weight"));
  }
  CHECK(held.size() == 2U * (2 + 2) + 1);
  CHECK(train("stopped", 8, 2, beside("base")) == straight);
  // Beside the weights of a run, which its later saves remove, a checkpoint holds everything.
  train("beside-a-run", 1, 2, beside("one"));
  const auto whole = CheckpointStore(folder.path() / "beside-a-run" / "checkpoints").latest();
  CHECK_FALSE(CheckpointStore::training(*whole).base);
  CHECK(CheckpointStore::contents(*whole).size() > held.size());
  // In another layout, with the weights in another place, which is what is saved from then on.
  const std::string merged_there = convert("stopped", "merged", TargetFormat::kHuggingFace);
  const std::string adapter = convert("stopped", "adapter", TargetFormat::kPeft);
  std::filesystem::rename(folder.path() / "base", folder.path() / "moved");
  CHECK(convert("stopped", "adapter-too", TargetFormat::kPeft) == adapter);
  CHECK(convert("stopped", "merged-too", TargetFormat::kHuggingFace, "moved") == merged_there);
  CHECK_THAT(why_not([&] { convert("stopped", "x", TargetFormat::kHuggingFace); }),
             Contains("is not there: say by --base where they are now"));
  CHECK_THAT(why_not([&] { convert("stopped", "x", TargetFormat::kHuggingFace, "other-base"); }),
             Contains("other-base holds others"));
  CHECK_THAT(why_not([&] { convert("moved", "x", TargetFormat::kDstrain, "moved"); }),
             Contains("leave --base out"));
  CHECK_THAT(why_not([&] { train("stopped", 9, 2, beside("other-base")); }),
             Contains("other-base holds others: say by model.initial_weights where they are now"));
  json alone = beside("moved");
  alone["zero_optimization"] = {{"stage", 0}};
  train("stopped", 9, 1, alone);
  CHECK(convert("stopped", "merged-later", TargetFormat::kHuggingFace).size() ==
        merged_there.size());
}

TEST_CASE("a folder of PEFT's that cannot be merged is refused", "[parity][adapters]") {
  const RunFolder folder;
  const ModelSpec model = tiny_model(Family::kLlama);
  const std::filesystem::path path = folder.path() / "adapter";
  std::filesystem::create_directories(path);
  const auto reason = [&](const json& config) {
    std::ofstream(path / kAdapterConfigFile) << config.dump();
    try {
      const PeftAdapter adapter(path, model);
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const json plain = {{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}};
  CHECK_THAT(reason(merged(plain, {{"peft_type", "IA3"}})), Contains("adapters are read of type"));
  CHECK_THAT(reason(merged(plain, {{"lora_bias", true}})), Contains("lora_bias true"));
  CHECK_THAT(reason(merged(plain, {{"r", nullptr}})), Contains("no rank"));
  CHECK_THAT(reason(json::array()), Contains("is no JSON object"));
  CHECK_THAT(reason(plain), Contains(kAdapterFile));  // which is not there
}

}  // namespace
}  // namespace dstrain::test
