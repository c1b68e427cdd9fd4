// Tests of "preferences": the values they take, and what they are refused with.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/config/parallel_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("preferences have the keys of TRL", "[config]") {
  const PreferenceConfig preferences =
      load_tiny({R"(preferences={"loss_type": "robust", "beta": 0.3, "label_smoothing": 0.1})"})
          .config.preferences;
  CHECK(preferences ==
        PreferenceConfig{.loss = PreferenceLoss::kRobust, .beta = 0.3, .label_smoothing = 0.1});
  CHECK(preferences.needs_reference());
  CHECK_FALSE(load_tiny({"preferences.loss_type=orpo"}).config.preferences.needs_reference());
  CHECK(load_tiny({"preferences.loss_type=sigmoid"}).config.preferences.beta == 0.1);
  CHECK_FALSE(load_tiny({}).config.preferences.enabled());
}

TEST_CASE("preferences that cannot be meant are refused", "[config]") {
  CHECK_THAT(error_of(1, {"preferences.beta=0.2"}), Contains("preferences.loss_type: missing"));
  CHECK_THAT(error_of(1, {"preferences.loss_type=ipo", "preferences.label_smoothing=0.1"}),
             Contains("preferences.label_smoothing: is of loss_type \"robust\""));
  CHECK_THAT(error_of_tiny({"preferences.loss_type=sigmiod"}), Contains("\"sigmoid\""));
  CHECK_THAT(error_of_tiny({"preferences.loss_type=ipo", "preferences.beta=0"}),
             Contains("greater than 0"));
  CHECK_THAT(
      error_of(1, {"preferences.loss_type=sigmoid"}),
      Contains(
          "preferences are learnt from answers that were rated, and the data hold plain text"));
  const std::string samples = "data.samples=true";
  CHECK_THAT(error_of(1, {"preferences.loss_type=ipo", samples, "preferences.desirable_weight=2"}),
             Contains("preferences.desirable_weight: is of loss_type \"kto\""));
  CHECK(error_of(1, {"preferences.loss_type=kto", samples, "preferences.desirable_weight=2"})
            .empty());
  CHECK(error_of(1, {"preferences.loss_type=sigmoid", samples}).empty());
  CHECK_THAT(
      error_of(1, {"preferences.loss_type=sigmoid", samples, "data.document_attention=false"}),
      Contains("a pair's two answers share a sequence, and would see each other"));
  CHECK_THAT(error_of(1, {"preferences.loss_type=sigmoid", samples, "data.sequence_length=3"}),
             Contains("a sequence holds a pair's two answers"));
  CHECK_THAT(error_of(1, {"preferences.loss_type=sigmoid", samples, "fp8.enabled=true",
                          "train_micro_batch_size_per_gpu=16"}),
             Contains("fp8.enabled"));
}

TEST_CASE("a head that scores is what a reward model has, and nothing else trains", "[config]") {
  const std::string samples = "data.samples=true";
  CHECK_FALSE(load_tiny({}).config.model.scores);
  CHECK_FALSE(load_tiny({R"(model.architectures=["LlamaForCausalLM"])"}).config.model.scores);
  CHECK(
      load_tiny({R"(model.architectures=["LlamaForSequenceClassification"])"}).config.model.scores);
  CHECK(error_of(1, {"preferences.loss_type=reward", samples}).empty());
  CHECK_THAT(
      error_of(1, {"model.score_head=true", "preferences.loss_type=ipo", samples}),
      Contains("model.score_head: the model's head scores, which loss_type \"reward\" alone"));
  CHECK_THAT(error_of(1, {"model.score_head=true"}), Contains("the model's head scores"));
  CHECK_THAT(error_of(1, {"preferences.loss_type=ipo", samples,
                          "preferences.center_rewards_coefficient=0.1"}),
             Contains("center_rewards_coefficient: is of loss_type \"reward\""));
  const LoadedConfig adapters =
      resolved(1, {"preferences.loss_type=reward", samples, "peft.target_modules=\"all-linear\""});
  CHECK(adapters.config.adapters.modules_to_save == std::vector<std::string>{"score"});
}

}  // namespace
}  // namespace dstrain
