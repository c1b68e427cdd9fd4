// JsonPart: a value of a tokenizer's JSON that knows its place, so that its reader can name what is
// wrong with it: "tokenizer.json: /pre_tokenizer/pattern: expected …".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace dstrain {

class JsonPart {
 public:
  /// `json` must outlive the part; `file` is the name that errors begin with.
  JsonPart(const nlohmann::json& json, std::string file);

  /// Throws ConfigError with file, path and this message.
  [[noreturn]] void fail(std::string_view message) const;

  [[nodiscard]] const nlohmann::json& json() const { return *json_; }
  [[nodiscard]] bool is_null() const;
  /// A member that must be there.
  [[nodiscard]] JsonPart operator[](std::string_view key) const;
  /// Returns nothing if the member is missing or null.
  [[nodiscard]] std::optional<JsonPart> find(std::string_view key) const;
  /// The elements of a list.
  [[nodiscard]] std::vector<JsonPart> items() const;

  // This value, which must be of that kind.
  [[nodiscard]] const std::string& text() const;
  [[nodiscard]] bool flag() const;
  /// An integer in [0, most].
  [[nodiscard]] std::int64_t number(std::int64_t most) const;

  // A member, or a default where it is missing or null.
  [[nodiscard]] std::string text_or(std::string_view key, std::string_view otherwise) const;
  [[nodiscard]] bool flag_or(std::string_view key, bool otherwise) const;

 private:
  const nlohmann::json* json_;
  std::string file_;
  std::string path_;
};

/// Reads JSON that anybody may have written. Throws ConfigError with line and column where it is
/// not JSON, and where it is nested deeper than any tokenizer's.
nlohmann::json parse_foreign_json(std::string_view text, const std::string& file);

}  // namespace dstrain
