// ChatTemplate: how a model writes a conversation as text, from its own files, as transformers
// looks for it: chat_template.jinja, else "chat_template" of tokenizer_config.json (a template, or
// several of which "default" and, with tools, "tool_use" count), else chat_template.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/jinja/template.h"
#include "engine/jinja/value.h"

namespace dstrain {

/// A conversation, as templates take it.
struct Conversation {
  jinja::Items messages{};        ///< dictionaries: "role", "content", "tool_calls", …
  jinja::Value tools{};           ///< None, or a list of dictionaries
  jinja::Template::Names more{};  ///< other names that the template may ask for
};

class ChatTemplate {
 public:
  /// `path`: a model's folder, or a template's file; the special tokens, which templates name, are
  /// those of `tokenizer_folder`. Throws ConfigError where there is none, or it is not one.
  static ChatTemplate find(const std::filesystem::path& path,
                           const std::filesystem::path& tokenizer_folder);
  /// Whether find() would find one in this folder.
  static bool is_in(const std::filesystem::path& folder);
  /// A template that is given as text; `file` is what errors call it.
  ChatTemplate(std::string file, const std::string& source, jinja::Template::Names special_tokens);

  /// The end of what is rendered: the last message, or what asks the model for the next one.
  enum class Ends : std::uint8_t { kWithMessage, kWithPrompt };
  using Rendered = jinja::Template::Rendered;
  /// Writes the first `messages` messages. Throws jinja::TemplateError, or jinja::TemplateRefusal.
  /// May be called by several threads at once.
  [[nodiscard]] Rendered render(const Conversation& conversation,
                                std::size_t messages,
                                Ends ends) const;
  /// Whether it has {% generation %}, which says what is the model's.
  [[nodiscard]] bool marks_generation() const { return marks_generation_; }
  [[nodiscard]] const std::string& file() const { return file_; }
  /// All of its templates' texts.
  [[nodiscard]] const std::string& source() const { return source_; }
  /// "eos_token" and the like, as the tokenizer's files name them.
  [[nodiscard]] std::optional<std::string> special_token(std::string_view name) const;

 private:
  void add(const std::string& name, const std::string& source);

  std::string file_;
  std::string source_;
  jinja::Template::Names special_tokens_;
  std::shared_ptr<const jinja::Template> made_;        // shared by copies, as it never changes
  std::shared_ptr<const jinja::Template> with_tools_;  // nullptr: the same
  bool marks_generation_ = false;
};

/// The ids behind which a model's answer ends, by generation_config.json and config.json of its
/// folder ("eos_token_id", a number or a list); empty where neither says.
std::vector<std::int32_t> stop_ids_of(const std::filesystem::path& folder);

}  // namespace dstrain
