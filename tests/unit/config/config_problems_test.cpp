// All problems of a config at once, each with what mends it.
#include "engine/config/config_problems.h"

#include "engine/config/mend_config.h"
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

constexpr std::string_view kSixMistakes = R"({
  "train_batch_size": 12,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "gradient_cliping": 1.0,
  "zero_optimization": { "stage": 4, "legacy_stage1": true },
  "optimizer": { "type": "AdamW", "params": { "lr": -1, "momentum": 0.9 } },
  "model": {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128
  },
  "data": { "train": "data/train" }, // the rest is in the wiki
  "training": { "steps": 10 }
})";

/// "path: message" and the arguments, without the place.
std::vector<std::string> told(std::string_view text, const std::vector<std::string>& sets = {}) {
  const TemporaryFolder folder;
  ConfigProblems problems;
  const std::string file = folder.write("run.json", text);
  LoadedConfig loaded = load_config(file, {.overrides = sets}, problems);
  resolve_config(loaded, 2, {}, problems);
  std::vector<std::string> lines;
  for (ConfigProblem problem : problems.in_order(file)) {
    if (problem.where.starts_with(file)) problem.where = problem.where.substr(file.size());
    lines.push_back(sentence_with_mend(problem));
  }
  return lines;
}

TEST_CASE("all problems of a config are reported at once, in its order", "[spec][config]") {
  const std::vector<std::string> lines = told(kSixMistakes, {"steps_per_print=often"});
  REQUIRE(lines.size() == 7);
  CHECK_THAT(lines[0], Contains(":2:23: train_batch_size: 12 contradicts") &&
                           Contains("(--set gradient_accumulation_steps=3)"));
  CHECK(lines[1] == ":5:3: gradient_cliping: unknown key, did you mean \"gradient_clipping\"?");
  CHECK_THAT(lines[2], Contains(":6:35: zero_optimization.stage: must be an integer in [0, 3]") &&
                           Contains("(--set zero_optimization.stage=3)"));
  CHECK_THAT(lines[3], Contains("true is refused") &&
                           Contains("(--set zero_optimization.legacy_stage1=false)"));
  CHECK_THAT(lines[4], Contains("optimizer.params.lr: must be a number greater than 0, found -1"));
  CHECK_THAT(lines[5], Contains("optimizer.params.momentum: has no meaning for optimizer.type") &&
                           Contains("(--set optimizer.params.momentum=null)"));
  CHECK(lines[6] ==
        "--set steps_per_print=often: steps_per_print: must be an integer of at least 1, found the "
        "string \"often\"");
}

TEST_CASE("what follows from a mistake is not reported", "[spec][config]") {
  const auto alone = [](const std::vector<std::string>& sets, const std::string& what) {
    const std::vector<std::string> lines = told(kTinyConfig, sets);
    INFO(sets.front());
    REQUIRE(lines.size() == 1);
    CHECK_THAT(lines[0], Contains(what));
  };
  alone({"train_batch_size=eight"}, "train_batch_size: must be");  // no batch at all
  alone({"optimizer.type=AdamZ", "optimizer.params.betas=[0.9, 0.9]"}, "there is no such");
  alone({"model.hidden_size=x"}, "model.hidden_size: must be");  // heads × size, layouts
  alone({"model.model_type=dbrx", "model.num_local_experts=8"}, "a mixture of experts");
  alone({"model=/nowhere"}, "there is no folder");  // nor a model
  alone({"scheduler={\"type\": \"Warmup\", \"params\": {\"warmup_num_steps\": 3}}"}, "WarmupLR");
  alone({"training={\"stepz\": 4}"}, "did you mean \"steps\"?");  // and steps are missing
  alone({"data=7"}, "data: must be an object");
  alone({"tensor_parallel.size=3"}, "does not divide");  // then the batch
  alone({"pipeline.virtual_stages=2"}, "pipeline.virtual_stages: 2");
}

TEST_CASE("independent mistakes of loading and of solving are reported together",
          "[spec][config]") {
  const std::vector<std::string> lines =
      told(kTinyConfig, {"train_batch_size=7", "data_types.grad_accum_dtype=bf16",
                         "training.eval_batches=0", "data.sequence_length=4096", "nonsense=1"});
  REQUIRE(lines.size() == 5);
  CHECK_THAT(lines[0] + lines[1] + lines[2] + lines[3] + lines[4],
             Contains("7 is not a multiple of") && Contains("(--set train_batch_size=8)") &&
                 Contains("neither fp32 nor") && Contains("(--set training.eval_batches=1)") &&
                 Contains("4096 is longer") && Contains("nonsense: unknown key (leave it out)"));
}

TEST_CASE("several problems have a line each, and a line that counts them", "[spec][config]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("run.json", kSixMistakes);
  try {
    load_config(file, {});
    FAIL("accepted");
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    CHECK(text.starts_with(file + ": 5 errors\n  " + file + ":5:3: gradient_cliping: "));
    CHECK_THAT(text, Catch::EndsWith("--write-fixed FILE corrects 4 of them in a copy"));
  }
}

TEST_CASE("a key given twice does not hide other mistakes", "[spec][config]") {
  const auto problems = problems_of_text(
      "{\"lr\": 1,\n\"steps_per_print\": 1,\n"
      "\"steps_per_print\": 2}");
  REQUIRE(problems.size() >= 2);
  CHECK(problems[0].path == "lr");
  CHECK(problems[1].where == "run.json:3:1");
  CHECK(problems[1].message == "given twice; the first is at run.json:2:1");
}

TEST_CASE("--set KEY=null takes away what the file says", "[spec][config]") {
  const std::string_view text =
      R"({"stpes": 1, "optimizer": {"type": "AdamW", "params": {"lr": 0.5}},
    "zero_optimization": {"stage": 2}, "pipeline": {"stages": 2}})";
  for (const auto& problem : problems_of_text(
           text, {.overrides = {"stpes=null", "optimizer.params.lr=null", "zero_optimization=null",
                                "pipeline.stages=null", "fp16.loss_scale=null"}})) {
    INFO(sentence_of(problem));
    CHECK((problem.path.starts_with("model") || problem.path.starts_with("data") ||
           problem.path.starts_with("training")));
  }
  CHECK(load_tiny({"model.num_key_value_heads=null"}).config.model.num_key_value_heads == 4);
  CHECK(load_tiny({"optimizer.params.lr=null"}).config.optimizer.learning_rate == 1e-3);
  CHECK_THAT(error_of_tiny({"stpes=null"}), Contains("stpes: unknown key"));
}

MendedConfig mend(std::string_view text, const std::vector<std::string>& sets = {}) {
  return mend_config(std::string(text), "run.json", {.overrides = sets},
                     [](LoadedConfig& loaded, ConfigProblems& problems) {
                       resolve_config(loaded, 2, {}, problems);
                     });
}

TEST_CASE("a mended config keeps its text and says what changed", "[spec][config]") {
  const MendedConfig mended = mend(kSixMistakes, {"optimizer.params.lr=0.001"});
  CHECK(mended.left.empty());
  CHECK(mended.text == R"({
  "train_batch_size": 12,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 3, // was: 4: 12 contradicts train_micro_batch_size_per_gpu 2 × gradient_accumulation_steps 4 × 2 data-parallel ranks = 16: set train_batch_size to 16, or gradient_…
  "gradient_clipping": 1.0, // was: "gradient_cliping": unknown key, did you mean "gradient_clipping"?
  "zero_optimization": { "stage": 3, "legacy_stage1": false }, // was: 4: must be an integer in [0, 3], found 4 // was: true: true is refused: DeepSpeed has removed it as well
  "optimizer": { "type": "AdamW", "params": { "lr": 0.001 } }, // was: -1: --set // was: "momentum": 0.9: has no meaning for optimizer.type "AdamW": it belongs to SGD, RMSprop and Muon
  "model": {
    "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128
  },
  "data": { "train": "data/train" }, // the rest is in the wiki
  "training": { "steps": 10 }
})");
  CHECK(mended.changes.size() == 6);
  CHECK(problems_of_text(mended.text).empty());
}

TEST_CASE("what only the user knows is left", "[spec][config]") {
  const MendedConfig mended = mend(kSixMistakes);
  REQUIRE(mended.left.size() == 1);
  CHECK(mended.left[0].path == "optimizer.params.lr");
  CHECK(mended.left[0].where == "run.json:7:53");  // in the user's file
  CHECK_THROWS_AS(mend("{\"a\": }"), ConfigError);
}

TEST_CASE("keys are added, moved and taken away without harm to the rest", "[spec][config]") {
  const std::string head = R"({ "model": {"model_type": "llama", "vocab_size": 256,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128},
  "data": {"train": "t"}, "optimizer": {"type": "AdamW"}, "train_batch_size": 8,)";
  const auto check = [&](const std::string& rest, const std::string& expected,
                         const std::vector<std::string>& sets = {}) {
    INFO(rest);
    const MendedConfig mended = mend(head + rest, sets);
    CHECK(mended.left.empty());
    CHECK(mended.text == head + expected);
    CHECK(problems_of_text(mended.text).empty());
  };
  check("\n  \"training\": {\"steps\": 1}, \"x\": {\"deep\": [1, /* why */ 2]} # end\n}",
        "\n  \"training\": {\"steps\": 1} # end // was: \"x\": {\"deep\": [1, 2]}: unknown key\n}");
  check("\n  \"qqqq\": 3, // note\n  \"training\": {\"steps\": 1,},}",
        "\n   // note // was: \"qqqq\": 3: unknown key\n  \"training\": {\"steps\": 1,},}");
  check(
      "\"training\": {\"steps\": 1}, \"seed\": 7}",
      "\"training\": {\"seed\": 7, \"steps\": 1}} // was: \"seed\": 7: unknown key, it belongs at "
      "\"training.seed\" // added: \"seed\": 7: at seed");
  check("\n  \"training\": {\n    \"steps\": 1\n  },\n  \"max_steps\": 5\n}",
        "\n  \"training\": {\n    \"steps\": 1\n  }\n   // was: \"max_steps\": 5: unknown key, the "
        "key "
        "for it is \"training.steps\"\n}");
  check("\n  \"training\": {\n    \"steps\": 1\n  }\n}",
        "\n  \"training\": {\n    \"seed\": 3, // added: --set\n    \"steps\": 1\n  }\n}",
        {"training.seed=3"});
  check("\"training\": {\"steps\": 1}, \"steps_per_print\": 3,\n\"steps_per_print\": 4}",
        "\"training\": {\"steps\": 1}, \"steps_per_print\": 3\n} // was: \"steps_per_print\": 4: "
        "given "
        "twice; the first is at run.json:4:107");
}

}  // namespace
}  // namespace dstrain
