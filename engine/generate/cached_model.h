// CachedModel: a model and the texts that it has read so far, as keys and values. What it computes
// for a position does not depend on how its text was cut into calls, nor on what other texts were
// read beside it, except for rounding (products and attention of one token and of many add in
// different orders).
//
// A model with LongRoPE rotates a text that is longer than its original positions otherwise, from
// the first token on. The extension that gets there reads the whole text once more, as transformers
// does, and one behind a rewind() that goes back to before it does so again. Such a model reads one
// text (reads_side_by_side).
#pragma once

#include <cstdint>
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
  /// Whether texts of at most so many positions may be read beside each other.
  static bool reads_side_by_side(const ModelSpec& model, std::int64_t positions);

  /// Appends at least one token to those of a text read so far and computes the logits [V] of what
  /// follows the last of them, or its score [1] where the model scores, which are valid until the
  /// next call. `before_chunk` may end it early by returning false: the text then stands where that
  /// chunk would have begun, and none are given.
  std::span<const float> extend(
      std::span<const std::int32_t> tokens,
      const std::function<bool()>& before_chunk = [] { return true; },
      std::int64_t text = 0);
  struct Next {
    std::int64_t text;
    std::span<const std::int32_t> tokens;  ///< at least one
  };
  /// Appends tokens to each of several texts, in one forward of chunk_tokens at most. Then
  /// logits(i) are those of what follows the last of the i-th, valid until the next call. Only
  /// where texts are read side by side.
  void extend_each(std::span<const Next> next);
  [[nodiscard]] std::span<const float> logits(std::size_t i) const;
  /// Makes a text the first `position` tokens of another.
  void copy(std::int64_t from, std::int64_t to, std::int64_t position);
  /// The number of tokens read so far.
  [[nodiscard]] std::int64_t position(std::int64_t text = 0) const { return at(text).position; }
  /// Forgets all tokens but the first `position` of them.
  void rewind(std::int64_t position, std::int64_t text = 0);

  [[nodiscard]] const ModelSpec& spec() const { return model_; }
  [[nodiscard]] const GenerationSizes& sizes() const { return sizes_; }

 private:
  struct Text {
    std::vector<std::int32_t> tokens;  // those read so far, and those being read
    std::int64_t position = 0;
  };
  [[nodiscard]] const Text& at(std::int64_t text) const {
    return texts_[static_cast<std::size_t>(text)];
  }
  [[nodiscard]] Text& at(std::int64_t text) { return texts_[static_cast<std::size_t>(text)]; }
  /// Before texts of so many tokens: fills in their rotation where another one stands, and then
  /// forgets what was read with that.
  void rotate_as(std::int64_t text_tokens);
  /// Runs one forward of the parts' tokens, at most chunk_tokens.
  void forward(std::span<const std::int32_t> tokens);
  void fetch_logits();

  ModelSpec model_;
  GenerationSizes sizes_;
  const TransformerStage& stage_;
  LayerContext context_;
  std::vector<BufferRef> caches_;
  std::vector<Text> texts_;
  std::vector<Extension::Text> parts_;  // of the forward under way, or the last one
  std::vector<std::int32_t> tokens_;    // of extend_each's forward
  std::vector<float> fetched_;          // [ranks, parts, their columns]
  std::vector<float> logits_;           // [parts, columns]
  std::size_t columns_ = 0;
  bool rotates_as_long_;  // the tables' RopeScaling::is_long
};

}  // namespace dstrain
