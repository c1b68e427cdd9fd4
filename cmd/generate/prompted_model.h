// PromptedModel: the checkpoint that dstrain generate was given, opened, with the tokenizer and the
// chat template by which its prompts become tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cmd/generate/generate_flags.h"
#include "engine/chat/chat_example.h"
#include "engine/chat/chat_template.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/generate/find_tokenizer.h"
#include "engine/generate/generation_plan.h"
#include "engine/generate/text_generator.h"
#include "kernels/backend.h"

namespace dstrain {

class PromptedModel {
 public:
  /// `flags` must outlive it. Throws ConfigError and CheckpointError.
  explicit PromptedModel(const GenerateFlags& flags);

  [[nodiscard]] const ModelSpec& spec() const { return spec_; }
  [[nodiscard]] const Tokenizer& tokenizer() const { return *found_.tokenizer; }
  [[nodiscard]] const std::string& tokenizer_name() const { return found_.name; }
  [[nodiscard]] const TensorSource& weights() const { return *weights_.tensors; }

  /// The text that the model continues.
  struct Prompt {
    std::string text;
    bool is_asked = false;  ///< by the chat template, which writes itself what goes in front
  };
  /// A text is continued, or with --chat asked; messages are always asked. Throws ConfigError.
  [[nodiscard]] Prompt prompt_of(const std::string& text) const;
  [[nodiscard]] Prompt prompt_of(const ChatPrompt& prompt) const;
  /// The request to go on from it. Errors begin with `where`, such as "--prompt".
  [[nodiscard]] GenerationRequest request(const Prompt& prompt, std::string_view where) const;

  [[nodiscard]] Backend backend() const;
  /// The plan for so many texts side by side, with room for prompts and what follows them.
  [[nodiscard]] GenerationPlan plan(std::int64_t positions,
                                    std::int64_t texts,
                                    std::int64_t longest_prompt) const;
  /// Logs what is about to be loaded.
  void log(const GenerationPlan& plan, const Device& device) const;

 private:
  [[nodiscard]] Prompt asked(Conversation conversation) const;

  const GenerateFlags& flags_;
  WeightsSource weights_;
  ModelSpec spec_;
  DType compute_;
  FoundTokenizer found_;
  mutable std::optional<ChatTemplate> chat_;  ///< read when something is first asked
  std::vector<std::int32_t> stops_;           ///< ids that end an answer
};

/// Throws launcher::PreflightError, with the nearest fix, where the plan takes more memory than is
/// free.
void check_memory(const GenerationPlan& plan, Device& device);

/// Throws DiskError.
void print_to_stdout(std::string_view text);

}  // namespace dstrain
