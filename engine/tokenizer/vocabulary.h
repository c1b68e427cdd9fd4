// Vocabulary: the texts of tokens and their ids.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace dstrain {

/// More ids than any tokenizer has: a file that claims more would take memory for nothing.
inline constexpr std::int64_t kMostTokenIds = std::int64_t{1} << 24;

class Vocabulary {
 public:
  /// Adds a token; ids may leave gaps. Returns false if this id has a token already; a text keeps
  /// its last id.
  bool add(std::int32_t id, std::string text);
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text) const;
  /// The text of an id; nullptr for one in a gap, or beyond the end.
  [[nodiscard]] const std::string* text(std::int32_t id) const;
  /// All ids are below it.
  [[nodiscard]] std::int32_t end() const { return static_cast<std::int32_t>(by_id_.size()); }
  /// The number of tokens.
  [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(by_text_.size()); }

 private:
  std::deque<std::string> texts_;  ///< which stay where they are
  std::vector<const std::string*> by_id_;
  std::unordered_map<std::string_view, std::int32_t> by_text_;
};

}  // namespace dstrain
