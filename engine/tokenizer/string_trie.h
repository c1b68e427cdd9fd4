// StringTrie: a fixed set of texts, each with a number, for finding all of them that a text begins
// with.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dstrain {

class StringTrie {
 public:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::uint32_t kRoot = 0;

  StringTrie() : StringTrie(std::vector<std::pair<std::string, std::int32_t>>{}) {}
  /// Texts must be distinct and not empty, and numbers not negative.
  explicit StringTrie(std::vector<std::pair<std::string, std::int32_t>> texts);

  /// The node after this byte; kRoot if no text continues with it.
  [[nodiscard]] std::uint32_t next(std::uint32_t node, char byte) const {
    if (node == kRoot) {
      return from_root_[static_cast<unsigned char>(byte)];
    }
    return child(nodes_[node], static_cast<unsigned char>(byte));
  }
  /// The number of the text that ends here, or kNone.
  [[nodiscard]] std::int32_t number(std::uint32_t node) const { return nodes_[node].number; }

 private:
  struct Node {
    std::uint32_t first_child = 0;  ///< children are neighbours, in the order of their bytes
    std::uint16_t num_children = 0;
    std::uint8_t byte = 0;
    std::int32_t number = kNone;
  };
  [[nodiscard]] std::uint32_t child(const Node& node, std::uint8_t byte) const;

  std::vector<Node> nodes_;
  std::vector<std::uint32_t> from_root_;
};

}  // namespace dstrain
