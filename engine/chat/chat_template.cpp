#include "engine/chat/chat_template.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kOlderTemplateFile = "chat_template.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw ConfigError(fmt::format("{}: cannot be read", path.string()));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

Json json_of(const fs::path& path) {
  Json json = Json::parse(content_of(path), nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    throw ConfigError(fmt::format("{}: expected a JSON object", path.string()));
  }
  return json;
}

/// A token is written as its text, or as an object with its text and how it is looked for.
std::optional<std::string> token_text(const Json& value) {
  const Json& text = value.is_object() && value.contains("content") ? value["content"] : value;
  return text.is_string() ? std::optional(text.get<std::string>()) : std::nullopt;
}

jinja::Template::Names special_tokens_of(const fs::path& folder) {
  jinja::Template::Names names;
  for (const char* const file : {kTokenizerConfig, "special_tokens_map.json"}) {
    if (!is_there(folder / file)) {
      continue;
    }
    const Json json = json_of(folder / file);
    for (const auto& [key, value] : json.items()) {
      const auto text = key.ends_with("_token") ? token_text(value) : std::nullopt;
      const bool is_known = std::any_of(names.begin(), names.end(),
                                        [&](const auto& known) { return known.first == key; });
      if (text && !is_known) {
        names.emplace_back(key, *text);
      }
    }
  }
  return names;
}

/// {% generation %}, with any white space and marks.
bool has_generation(std::string_view source) {
  for (std::size_t at = 0; (at = source.find("{%", at)) != std::string_view::npos; at += 2) {
    std::string_view tag = source.substr(at + 2);
    const std::size_t begin = tag.find_first_not_of("-+ \t\r\n");
    tag = begin == std::string_view::npos ? "" : tag.substr(begin);
    constexpr std::string_view kName = "generation";
    if (tag.starts_with(kName) && tag.size() > kName.size() &&
        std::string_view("-+ \t\r\n%").find(tag[kName.size()]) != std::string_view::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string file,
                           const std::string& source,
                           jinja::Template::Names special_tokens)
    : file_(std::move(file)), special_tokens_(std::move(special_tokens)) {
  add("default", source);
}

void ChatTemplate::add(const std::string& name, const std::string& source) {
  try {
    auto made = std::make_shared<const jinja::Template>(source);
    (name == "tool_use" ? with_tools_ : made_) = std::move(made);
  } catch (const jinja::TemplateError& error) {
    throw ConfigError(fmt::format("{}: the chat template: {}", file_, error.what()));
  }
  source_ += source;
  marks_generation_ = marks_generation_ || has_generation(source);
}

bool ChatTemplate::is_in(const fs::path& folder) {
  return is_there(folder / kTemplateFile) || is_there(folder / kOlderTemplateFile) ||
         (is_there(folder / kTokenizerConfig) &&
          json_of(folder / kTokenizerConfig).contains("chat_template"));
}

ChatTemplate ChatTemplate::find(const fs::path& path, const fs::path& tokenizer_folder) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  jinja::Template::Names tokens = special_tokens_of(tokenizer_folder);
  const fs::path file = is_folder ? path / kTemplateFile : path;
  if (is_there(file) && file.extension() != ".json") {
    return {file.string(), content_of(file), std::move(tokens)};
  }
  const fs::path config = is_folder ? path / kTokenizerConfig : path;
  const fs::path older = path / kOlderTemplateFile;
  for (const fs::path& candidate : {config, older}) {
    if (!is_there(candidate)) {
      continue;
    }
    const Json json = json_of(candidate);
    if (!json.contains("chat_template")) {
      continue;
    }
    const Json& found = json["chat_template"];
    const std::string name = candidate.string();
    if (found.is_string()) {
      return {name, found.get<std::string>(), std::move(tokens)};
    }
    std::optional<ChatTemplate> made;
    if (found.is_array()) {
      for (const char* const wanted : {"default", "tool_use"}) {
        for (const Json& one : found) {
          if (!one.is_object() || one.value("name", "") != wanted || !one.contains("template") ||
              !one["template"].is_string()) {
            continue;
          }
          const std::string source = one["template"].get<std::string>();
          if (made) {
            made->add(wanted, source);
          } else {
            made = ChatTemplate(name, source, tokens);
          }
        }
      }
    }
    if (!made) {
      throw ConfigError(
          fmt::format("{}: \"chat_template\" is neither a template nor a list of "
                      "templates with one named \"default\"",
                      name));
    }
    return *made;
  }
  throw ConfigError(fmt::format(
      "{}: no chat template there, which says how the model writes conversations: looked for {}, "
      "and \"chat_template\" in {} and {}; name a template's file, or a folder with one",
      path.string(), kTemplateFile, kTokenizerConfig, kOlderTemplateFile));
}

ChatTemplate::Rendered ChatTemplate::render(const Conversation& conversation,
                                            std::size_t messages,
                                            Ends ends) const {
  jinja::Template::Names names = special_tokens_;
  jinja::Items first(conversation.messages.begin(),
                     conversation.messages.begin() + static_cast<std::ptrdiff_t>(messages));
  names.emplace_back("messages", jinja::Value::list(std::move(first)));
  names.emplace_back("tools", conversation.tools);
  names.emplace_back("documents", jinja::Value());
  names.emplace_back("add_generation_prompt", ends == Ends::kWithPrompt);
  names.insert(names.end(), conversation.more.begin(), conversation.more.end());
  const bool has_tools = !conversation.tools.is_none();
  return (has_tools && with_tools_ != nullptr ? with_tools_ : made_)->render(names);
}

std::optional<std::string> ChatTemplate::special_token(std::string_view name) const {
  for (const auto& [known, text] : special_tokens_) {
    if (known == name) {
      return text.text();
    }
  }
  return std::nullopt;
}

std::vector<std::int32_t> stop_ids_of(const fs::path& folder) {
  for (const char* const file : {"generation_config.json", "config.json"}) {
    if (!is_there(folder / file)) {
      continue;
    }
    const Json json = json_of(folder / file);
    if (!json.contains("eos_token_id")) {
      continue;
    }
    const Json& ids = json["eos_token_id"];
    std::vector<std::int32_t> stops;
    for (const Json& id : ids.is_array() ? ids : Json::array({ids})) {
      if (id.is_number_integer()) {
        stops.push_back(id.get<std::int32_t>());
      }
    }
    if (!stops.empty()) {
      return stops;
    }
  }
  return {};
}

}  // namespace dstrain
