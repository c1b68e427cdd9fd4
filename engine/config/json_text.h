// JSON text as a tree whose every key and value knows its file:line:column.
// Accepts what real configs hold: //, /* */ and # comments, trailing commas, and the numbers
// Infinity, -Infinity and NaN that Python writes; refuses a key given twice. Syntax itself is
// nlohmann/json's, which stays out of this header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config_error.h"

namespace dstrain {

class ConfigProblems;
struct JsonMember;

/// One value. Only the fields of its kind mean something.
struct JsonNode {
  enum class Kind : std::uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0.0;
  std::optional<std::int64_t> integer;  ///< of a number that is one, also 5e8, 512.0 and 2e16
  std::string text;
  std::vector<JsonNode> items;
  std::vector<JsonMember> members;  ///< in the order of the file
  std::string where;                ///< "quickstart.json:12:5" or "--set a.b=1"

  [[nodiscard]] bool is(Kind wanted) const { return kind == wanted; }
  [[nodiscard]] bool is_text(std::string_view wanted) const {
    return kind == Kind::kString && text == wanted;
  }
  /// The member's value, or nullptr.
  [[nodiscard]] const JsonNode* find(std::string_view key) const;
  [[nodiscard]] JsonNode* find(std::string_view key);
  /// Compact JSON; numbers in their shortest form, so that 1.0 and 1 are the same text.
  [[nodiscard]] std::string dump() const;
  /// For error sentences: `the string "x"`, `5`, `true`, `a list`.
  [[nodiscard]] std::string describe() const;
};

struct JsonMember {
  std::string key;
  std::string where;  ///< of the key
  JsonNode value;
};

JsonNode json_node(JsonNode::Kind kind);
JsonNode json_number(double value);

/// Reads a whole file that must hold one JSON object. Throws ConfigError, with one sentence each
/// for a missing, empty, binary, YAML or oversized file and for every syntax error. A key given
/// twice joins `problems`, if that is given, and reading continues.
JsonNode read_json_file(const std::string& file, ConfigProblems* problems = nullptr);
/// Reads the file's text alone, with the same errors but those of syntax.
std::string read_json_text(const std::string& file);

/// `file` is only the name used in positions. The document must be an object.
JsonNode parse_json_document(std::string_view text,
                             const std::string& file,
                             ConfigProblems* problems = nullptr);

/// Any one JSON value without comments, all of it located at `where`; nullopt if it is not JSON.
std::optional<JsonNode> parse_json_value(std::string_view text, const std::string& where);

/// "text" with quotes and escapes.
std::string json_quote(std::string_view text);

/// Throws ConfigError "where: path: message" (parts that are empty are left out).
[[noreturn]] void throw_config_error(std::string_view where,
                                     std::string_view path,
                                     std::string_view message,
                                     std::vector<ConfigEdit> mend = {});

}  // namespace dstrain
