// ReplacementTable: the replacements that models from SentencePiece (T5, XLM-R) make for
// characters, as the model file holds them: the bytes of a trie (Darts, units of 32 bits,
// little-endian), after their number; then the replacements, each followed by a NUL, at offsets
// that the trie gives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

class ReplacementTable {
 public:
  /// Returns nothing if the bytes are not such a table.
  static std::optional<ReplacementTable> parse(const std::string& bytes);

  /// Appends the replacement of a grapheme cluster, which may be empty.
  void append_replaced(std::string_view grapheme, std::string& out) const;

 private:
  [[nodiscard]] std::optional<std::string_view> find(std::string_view text) const;
  [[nodiscard]] std::optional<std::string_view> replacement(std::size_t begin) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace dstrain
