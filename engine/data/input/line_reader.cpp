#include "engine/data/input/line_reader.h"

#include <algorithm>

namespace dstrain {

LineReader::Next LineReader::next(std::string& block, std::size_t bytes) {
  block = kept_;  // copied, so that both keep their buffers
  kept_.clear();
  std::size_t searched = 0;
  for (std::size_t wanted = std::max(bytes, block.size() + 1);; wanted *= 2) {
    const bool has_more = fill(block, std::min(wanted, std::max(bytes, longest_line_ + 1)));
    const std::size_t last_end = block.rfind('\n');
    if (!has_more || (last_end != std::string::npos && last_end >= searched)) {
      const std::size_t cut = has_more ? last_end + 1 : block.size();
      kept_.assign(block, cut, std::string::npos);
      block.resize(cut);
      position_ += static_cast<std::int64_t>(cut);
      return block.empty() ? Next::kEnd : Next::kLines;
    }
    if (block.size() > longest_line_) {
      pass_over(block);
      return Next::kLineTooLong;
    }
    searched = block.size();
  }
}

/// Returns whether there may be more after the block's present content.
bool LineReader::fill(std::string& block, std::size_t bytes) {
  while (block.size() < bytes) {
    const std::size_t had = block.size();
    block.resize(bytes);
    const std::size_t count = stream_.read(std::span(block).subspan(had));
    block.resize(had + count);
    if (count == 0) {
      return false;
    }
  }
  return true;
}

void LineReader::pass_over(std::string& block) {
  constexpr std::size_t kStep = std::size_t{1} << 20;
  std::size_t line_end = std::string::npos;
  while (line_end == std::string::npos) {
    position_ += static_cast<std::int64_t>(block.size());
    block.resize(kStep);
    block.resize(stream_.read(block));
    if (block.empty()) {
      return;
    }
    line_end = block.find('\n');
  }
  position_ += static_cast<std::int64_t>(line_end) + 1;
  kept_.assign(block, line_end + 1, std::string::npos);
  block.clear();
}

}  // namespace dstrain
