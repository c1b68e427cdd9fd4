// JsonField: reads the text of one JSON line. The line is parsed on its own and to its end, but
// only the field that was asked for is kept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

class JsonField {
 public:
  /// `path` holds keys from the outside in, separated by dots: "data.text". Throws ConfigError if a
  /// key is empty.
  explicit JsonField(const std::string& path);

  enum class Found : std::uint8_t {
    kText,
    kNoJson,       ///< also text that is not UTF-8, which JSON must be
    kNoObject,     ///< JSON, but a list, a number, …
    kNoField,      ///< nor anything else that is known
    kNoString,     ///< the field is present, but is not a string
    kConversation  ///< no such field, but a list of "messages"
  };
  struct Line {
    Found found = Found::kNoJson;
    std::string text{};  ///< of kText
    std::string why{};   ///< of all others, as a clause: "has no field \"text\" (but \"content\")"
  };
  /// Where a key is given twice the last one counts, as in Python.
  [[nodiscard]] Line read(std::string_view line) const;

 private:
  std::string path_;
  std::vector<std::string> keys_;
};

}  // namespace dstrain
