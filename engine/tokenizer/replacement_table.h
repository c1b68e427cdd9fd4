// ReplacementTable: what models that came from SentencePiece (T5, XLM-R) put in the place of
// characters, as the model file holds it: the bytes of a trie (Darts, units of 32 bits,
// little-endian), after their number; then the replacements, each with a NUL behind it, at offsets
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
  /// None if the bytes are no such table.
  static std::optional<ReplacementTable> parse(const std::string& bytes);

  /// Appends what a grapheme cluster becomes, which may be nothing.
  void append_replaced(std::string_view grapheme, std::string& out) const;

 private:
  [[nodiscard]] std::optional<std::string_view> find(std::string_view text) const;
  [[nodiscard]] std::optional<std::string_view> replacement(std::size_t begin) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace dstrain
