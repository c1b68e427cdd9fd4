#include "engine/tokenizer/string_trie.h"

#include <algorithm>

namespace dstrain {

StringTrie::StringTrie(std::vector<std::pair<std::string, std::int32_t>> texts)
    : nodes_(1), from_root_(256, kRoot) {
  std::sort(texts.begin(), texts.end());
  struct Range {  // of texts that have the node's path in common
    std::size_t begin;
    std::size_t end;
    std::size_t depth;
    std::size_t node;
  };
  std::vector<Range> ranges{{0, texts.size(), 0, 0}};
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    Range range = ranges[i];
    if (range.begin < range.end && texts[range.begin].first.size() == range.depth) {
      nodes_[range.node].number = texts[range.begin++].second;
    }
    nodes_[range.node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (range.begin < range.end) {
      const auto byte = static_cast<std::uint8_t>(texts[range.begin].first[range.depth]);
      std::size_t end = range.begin;
      while (end < range.end && static_cast<std::uint8_t>(texts[end].first[range.depth]) == byte) {
        ++end;
      }
      ++nodes_[range.node].num_children;
      ranges.push_back({range.begin, end, range.depth + 1, nodes_.size()});
      nodes_.push_back({.byte = byte});
      range.begin = end;
    }
  }
  for (std::uint32_t i = 0; i < nodes_[kRoot].num_children; ++i) {
    const std::uint32_t node = nodes_[kRoot].first_child + i;
    from_root_[nodes_[node].byte] = node;
  }
}

std::uint32_t StringTrie::child(const Node& node, std::uint8_t byte) const {
  const auto begin = nodes_.begin() + node.first_child;
  const auto end = begin + node.num_children;
  const auto found = std::lower_bound(
      begin, end, byte, [](const Node& one, std::uint8_t wanted) { return one.byte < wanted; });
  return found == end || found->byte != byte ? kRoot
                                             : static_cast<std::uint32_t>(found - nodes_.begin());
}

}  // namespace dstrain
