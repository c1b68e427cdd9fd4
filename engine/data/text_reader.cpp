#include "engine/data/text_reader.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "engine/base/regular_file.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

[[noreturn]] void fail() {
  throw ReadFailure{std::generic_category().message(errno)};
}

}  // namespace

TextReader::TextReader(const std::string& path) {
  OpenedFile opened = open_regular_file(path);
  if (!opened.file) {
    throw ReadFailure{std::move(opened.why)};
  }
  file_ = std::move(opened.file);
  size_ = opened.bytes;
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

bool TextReader::next(std::string& text, std::size_t longest, const Cut& cut) {
  text = kept_;  // copied, so that both keep their buffers
  kept_.clear();
  std::size_t have = text.size();
  // Only as much room as the file will fill, and a byte to see its end: most files are small.
  const auto left = static_cast<std::size_t>(std::max<std::int64_t>(size_ - offset_, 0));
  text.resize(std::min(longest, have + left + 1));
  bool at_end = false;
  while (have < longest && !at_end) {
    if (have == text.size()) {  // the file has grown
      text.resize(std::min(longest, 2 * text.size()));
    }
    const ssize_t count = ::read(file_.get(), text.data() + have, text.size() - have);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      fail();
    }
    at_end = count == 0;
    have += static_cast<std::size_t>(count);
    offset_ += count;
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

void TextReader::seek(std::int64_t offset) {
  kept_.clear();
  if (::lseek(file_.get(), offset, SEEK_SET) < 0) {
    fail();
  }
  offset_ = offset;
}

}  // namespace dstrain
