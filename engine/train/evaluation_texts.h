// EvaluationTexts: how the model that is trained continues some texts, always the same, so that
// people see what it has learnt: training.eval_prompts.
#pragma once

#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/train/engine.h"
#include "engine/train/prompt_encoder.h"
#include "engine/train/step_metrics.h"
#include "engine/train/text_sampler.h"

namespace dstrain {

class EvaluationTexts {
 public:
  /// Finds the tokenizer of the run, and, where it trains on conversations, the chat template, by
  /// which the prompts are asked as a user would. Throws ConfigError. `engine` outlives it.
  EvaluationTexts(const Config& config, Engine& engine);

  /// Collective. The likeliest continuations, on rank 0, in the order of the prompts; the others
  /// get nothing. Ranks share them out.
  std::vector<SampledText> sample();

 private:
  const Config& config_;
  Engine& engine_;
  PromptEncoder encoder_;
  TextSampler sampler_;
  std::vector<std::vector<std::int32_t>> prompts_;
};

}  // namespace dstrain
