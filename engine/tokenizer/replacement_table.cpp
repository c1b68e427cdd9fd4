#include "engine/tokenizer/replacement_table.h"

#include <cstring>

#include "engine/tokenizer/unicode_text.h"

namespace dstrain {
namespace {

std::size_t offset_of(std::uint32_t unit) {
  return static_cast<std::size_t>(unit >> 10U) << ((unit & 0x200U) >> 6U);
}

}  // namespace

std::optional<ReplacementTable> ReplacementTable::parse(const std::string& bytes) {
  std::uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof trie_bytes) {
    return std::nullopt;
  }
  std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  if (trie_bytes > bytes.size() - sizeof trie_bytes || trie_bytes % 4 != 0 || trie_bytes == 0) {
    return std::nullopt;
  }
  ReplacementTable table;
  table.units_.resize(trie_bytes / 4);
  std::memcpy(table.units_.data(), bytes.data() + sizeof trie_bytes, trie_bytes);
  table.replacements_ = bytes.substr(sizeof trie_bytes + trie_bytes);
  return table;
}

/// Finds the replacement of the shortest beginning of `text` that has one; it stands for the whole
/// text, as it does with these tables in tokenizer.json.
std::optional<std::string_view> ReplacementTable::find(std::string_view text) const {
  std::size_t node = offset_of(units_[0]);
  for (const char byte : text) {
    const auto label = static_cast<unsigned char>(byte);
    node ^= label;
    if (label == 0 || node >= units_.size() || (units_[node] & 0x800000FFU) != label) {
      return std::nullopt;
    }
    const std::uint32_t unit = units_[node];
    node ^= offset_of(unit);
    const bool has_leaf = (unit >> 8U & 1U) != 0;
    if (has_leaf) {
      return node < units_.size() ? replacement(units_[node] & 0x7FFFFFFFU) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<std::string_view> ReplacementTable::replacement(std::size_t begin) const {
  if (begin > replacements_.size()) {
    return std::nullopt;
  }
  const std::string_view rest = std::string_view(replacements_).substr(begin);
  return rest.substr(0, rest.find('\0'));
}

void ReplacementTable::append_replaced(std::string_view grapheme, std::string& out) const {
  constexpr std::size_t kLongestWhole = 5;  // bytes; longer ones go character by character
  if (grapheme.size() <= kLongestWhole) {
    if (const auto whole = find(grapheme)) {
      out += *whole;
      return;
    }
  }
  for (std::size_t at = 0; at < grapheme.size();) {
    const std::string_view character = grapheme.substr(at, bytes_of_character(grapheme[at]));
    out += find(character).value_or(character);
    at += character.size();
  }
}

}  // namespace dstrain
