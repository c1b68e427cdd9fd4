#include "engine/tokenizer/huggingface_tokenizer.h"

#include <limits>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/decoders.h"
#include "engine/tokenizer/line_cut.h"
#include "engine/tokenizer/normalizers.h"
#include "engine/tokenizer/post_processor.h"
#include "engine/tokenizer/pre_tokenizers.h"
#include "engine/tokenizer/token_model.h"
#include "engine/tokenizer/whole_characters.h"
#include "engine/tokenizer/word_cache.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// The memory that one call works in.
struct Workspace {
  explicit Workspace(const TokenModel& model) : scratch(model.make_scratch()) {}
  WordCache words;
  std::unique_ptr<TokenModel::Scratch> scratch;
  std::vector<AddedTokens::Part> parts;
  std::vector<AddedTokens::Part> normalized_parts;
};

/// The workspaces that no thread is using, as many as threads have worked at the same time. They
/// remember the words of earlier calls.
class Workspaces {
 public:
  std::unique_ptr<Workspace> take(const TokenModel& model) {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      return std::make_unique<Workspace>(model);
    }
    auto workspace = std::move(idle_.back());
    idle_.pop_back();
    return workspace;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

template <typename Component>
std::unique_ptr<Component> make_component(const JsonPart& root, const char* key) {
  const auto part = root.find(key);
  return part ? Component::make(*part) : nullptr;
}

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  HuggingFaceTokenizer(const JsonPart& root, const TextLimitTokens& limits)
      : normalizer_(make_component<Normalizer>(root, "normalizer")),
        pre_tokenizer_(make_component<PreTokenizer>(root, "pre_tokenizer")),
        model_(TokenModel::make(root["model"],
                                pre_tokenizer_ && pre_tokenizer_->leaves_bytes()
                                    ? TokenModel::Pieces::kBytes
                                    : TokenModel::Pieces::kCharacters)),
        added_(root.find("added_tokens"), model_->vocabulary(), normalizer_.get()),
        decoder_(make_component<Decoder>(root, "decoder")) {
    const AroundText around = around_text(root.find("post_processor"));
    always_begins_ = !around.before.empty();
    beginning_ = always_begins_ ? std::optional(around.before.front()) : id_of(limits.beginning);
    end_ = id_of(limits.end);
    if (!end_ && !around.behind.empty()) {
      end_ = around.behind.back();
    }
    for (const auto& id : {beginning_, end_}) {
      if (id && *id >= vocab_size()) {
        root["post_processor"].fail(
            fmt::format("id {} is not in the vocabulary of {}", *id, vocab_size()));
      }
    }
  }

  [[nodiscard]] std::int64_t vocab_size() const override { return added_.end(); }
  [[nodiscard]] std::optional<std::int32_t> beginning_of_text() const override {
    return beginning_;
  }
  [[nodiscard]] std::optional<std::int32_t> end_of_text() const override { return end_; }
  [[nodiscard]] bool always_begins() const override { return always_begins_; }
  [[nodiscard]] std::size_t longest_text() const override { return std::size_t{1} << 20; }

  void encode_part(std::string_view text,
                   TextPlace place,
                   std::vector<std::int32_t>& ids) const override {
    // Invalid UTF-8 has no characters that a pattern could see.
    std::string mended;
    if (!is_utf8(text)) {
      mended = as_utf8(std::string(text));
      text = mended;
    }
    auto workspace = workspaces_.take(*model_);
    added_.split(text, AddedTokens::In::kOriginal, workspace->parts);
    for (const AddedTokens::Part& part : workspace->parts) {
      if (part.id) {
        ids.push_back(*part.id);
        continue;
      }
      const bool is_first = part.begin == 0;
      encode_section({.text = std::string(text.substr(part.begin, part.end - part.begin)),
                      .at_start = is_first && place == TextPlace::kBegins,
                      .continues = is_first && place == TextPlace::kContinues},
                     *workspace, ids);
    }
    workspaces_.give_back(std::move(workspace));
  }

  [[nodiscard]] std::string special_text(std::int32_t id) const override {
    const std::string* const added = added_.text(id);
    return added != nullptr && added_.is_special(*added) ? *added : "";
  }

  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<std::string> texts;
    texts.reserve(ids.size());
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= vocab_size()) {
        throw ConfigError(fmt::format("id {} is not in the vocabulary of {}", id, vocab_size()));
      }
      const std::string* const added = added_.text(id);
      const std::string* const text = added != nullptr ? added : model_->vocabulary().text(id);
      if (text != nullptr && !added_.is_special(*text)) {
        texts.push_back(*text);
      }
    }
    const char* const between = decoder_ ? "" : " ";
    if (decoder_) {
      decoder_->apply(texts);
    }
    return fmt::format("{}", fmt::join(texts, between));
  }

  [[nodiscard]] std::size_t length_to_cut(std::string_view text) const override {
    return length_up_to_line_end(text,
                                 [this](std::string_view part, std::vector<std::int32_t>& ids) {
                                   encode_part(part, TextPlace::kContinues, ids);
                                 });
  }

 private:
  std::optional<std::int32_t> id_of(const std::string& token) const {
    if (token.empty()) {
      return std::nullopt;
    }
    const auto added = added_.find(token);
    return added ? added : model_->vocabulary().find(token);
  }

  void encode_section(SectionText section,
                      Workspace& workspace,
                      std::vector<std::int32_t>& ids) const {
    if (normalizer_) {
      normalizer_->apply(section);
    }
    added_.split(section.text, AddedTokens::In::kNormalized, workspace.normalized_parts);
    if (workspace.normalized_parts.size() == 1 && !workspace.normalized_parts.front().id) {
      encode_pieces(section, workspace, ids);
      return;
    }
    for (const AddedTokens::Part& part : workspace.normalized_parts) {
      if (part.id) {
        ids.push_back(*part.id);
        continue;
      }
      SectionText between{.text = section.text.substr(part.begin, part.end - part.begin),
                          .at_start = section.at_start && part.begin == 0,
                          .continues = section.continues && part.begin == 0};
      encode_pieces(between, workspace, ids);
    }
  }

  void encode_pieces(SectionText& section,
                     Workspace& workspace,
                     std::vector<std::int32_t>& ids) const {
    check(section.text.size() <= std::numeric_limits<std::uint32_t>::max() / 4,
          "a text of {} bytes for one call", section.text.size());
    section.pieces.assign(1, {0, static_cast<std::uint32_t>(section.text.size())});
    if (pre_tokenizer_) {
      pre_tokenizer_->apply(section);
    }
    for (const TextSpan span : section.pieces) {
      std::string_view piece = section.piece(span);
      while (!piece.empty()) {
        const std::string_view word = piece.substr(0, model_->independent_length(piece));
        piece.remove_prefix(word.size());
        if (workspace.words.append(word, ids)) {
          continue;
        }
        const std::size_t begin = ids.size();
        model_->encode(word, *workspace.scratch, ids);
        workspace.words.remember(word, std::span(ids).subspan(begin));
      }
    }
  }

  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<TokenModel> model_;
  AddedTokens added_;
  std::unique_ptr<Decoder> decoder_;
  std::optional<std::int32_t> beginning_;
  std::optional<std::int32_t> end_;
  bool always_begins_ = false;
  mutable Workspaces workspaces_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const std::string& json,
                                                      const std::string& name,
                                                      const TextLimitTokens& limits) {
  const nlohmann::json document = parse_foreign_json(json, name);
  const JsonPart root(document, name);
  if (!document.is_object() || !document.contains("model")) {
    root.fail("is not a tokenizer.json: it has no \"model\"");
  }
  return std::make_unique<HuggingFaceTokenizer>(root, limits);
}

}  // namespace dstrain
