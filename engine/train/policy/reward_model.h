// RewardModel: a model whose head scores, as it reads completions between steps
// ("grpo.reward_model"). A rank has all of it, beside its part of the model that is trained, in the
// run's precision; RunPlan::scoring has its bytes.
//
// It reads with its own tokenizer and chat template, as its training had answers: a conversation as
// the template writes it, a text with the tokenizer's beginning and end around it. The score is
// that of the last token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat/chat_example.h"
#include "engine/chat/chat_template.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/generate/find_tokenizer.h"
#include "engine/generate/loaded_model.h"
#include "engine/train/engine.h"

namespace dstrain {

class RewardModel {
 public:
  /// Loads it from `folder`. `engine`, whose device it shares, outlives it. Throws ConfigError,
  /// CheckpointError and OutOfMemory.
  RewardModel(const std::string& folder, Engine& engine);

  /// The score of a completion. Throws ConfigError, with a clause, where it cannot be read.
  double score(const ChatPrompt& prompt, const std::string& completion);

 private:
  RewardModel(WeightsSource weights, const std::string& folder, Engine& engine);
  [[nodiscard]] std::vector<std::int32_t> ids_of(const ChatPrompt& prompt,
                                                 const std::string& completion) const;

  std::string folder_;
  FoundTokenizer tokenizer_;
  std::optional<ChatTemplate> chat_;
  LoadedModel model_;
};

}  // namespace dstrain
