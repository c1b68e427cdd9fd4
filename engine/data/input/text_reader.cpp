#include "engine/data/input/text_reader.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace dstrain {

bool TextReader::next(std::string& text, std::size_t longest, const Cut& cut) {
  text = kept_;  // copied, so that both keep their buffers
  kept_.clear();
  std::size_t have = text.size();
  // Allocates only as much room as will be filled, and one byte to see the end: most files are
  // small.
  text.resize(std::min(longest, have + static_cast<std::size_t>(stream_.expected_bytes()) + 1));
  bool at_end = false;
  while (have < longest && !at_end) {
    if (have == text.size()) {  // there is more than was expected
      text.resize(std::min(longest, 2 * text.size()));
    }
    const std::size_t count = stream_.read(std::span(text).subspan(have));
    at_end = count == 0;
    have += count;
  }
  text.resize(have);
  if (!at_end) {
    const std::size_t length = cut(text);
    check(length > 0 && length <= have, "a text of {} bytes cut at {}", have, length);
    kept_.assign(text, length, std::string::npos);
    text.resize(length);
  }
  return !text.empty();
}

}  // namespace dstrain
