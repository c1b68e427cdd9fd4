// CachedModel: a model and the sequence that it has read so far, as keys and values. extend() is
// the only way forward; what it computes for a position does not depend on how the sequence was cut
// into calls, except for rounding (products of one token and of many add in different orders).
//
// A model with LongRoPE rotates a text that is longer than its original positions otherwise, from
// the first token on. The extension that gets there reads the whole text once more, as transformers
// does, and one behind a rewind() that goes back to before it does so again.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/generate/generation_plan.h"
#include "engine/model/layer_context.h"

namespace dstrain {

class CachedModel {
 public:
  /// `stage` is that of a whole model, declared to extend a cache; `context` has its buffers and,
  /// at each call, its parameters. All are copied but what they point to, and `stage`, which
  /// outlive it. To be prepared before the first call.
  CachedModel(const ModelSpec& model,
              const GenerationSizes& sizes,
              const TransformerStage& stage,
              const LayerContext& context);
  CachedModel(const CachedModel&) = delete;
  CachedModel& operator=(const CachedModel&) = delete;
  /// Fills in the stage's constants.
  void prepare();

  /// Appends at least one token to those read so far and computes the logits [V] of what follows
  /// the last of them, or its score [1] where the model scores, which are valid until the next
  /// call. `before_chunk` may end it early by returning false: the model then stands where that
  /// chunk would have begun, and none are given.
  std::span<const float> extend(
      std::span<const std::int32_t> tokens,
      const std::function<bool()>& before_chunk = [] { return true; });
  /// The number of tokens read so far.
  [[nodiscard]] std::int64_t position() const { return position_; }
  /// Forgets all tokens but the first `position` of them.
  void rewind(std::int64_t position);

  [[nodiscard]] const ModelSpec& spec() const { return model_; }
  [[nodiscard]] const GenerationSizes& sizes() const { return sizes_; }

 private:
  /// Before texts of so many tokens: fills in their rotation where another one stands, and then
  /// forgets what was read with that.
  void rotate_as(std::int64_t text_tokens);
  /// Runs one forward of at most chunk_tokens tokens.
  void forward(std::span<const std::int32_t> tokens);

  ModelSpec model_;
  GenerationSizes sizes_;
  const TransformerStage& stage_;
  LayerContext context_;
  std::vector<float> logits_;
  std::vector<std::int32_t> text_;  // the tokens read so far, and those being read
  std::int64_t position_ = 0;
  bool rotates_as_long_;  // the tables' RopeScaling::is_long
};

}  // namespace dstrain
