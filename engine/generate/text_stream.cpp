#include "engine/generate/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/tokenizer/whole_characters.h"

namespace dstrain {
namespace {

/// Length of the longest end of `text` that is a proper beginning of `stop`.
std::size_t overlap(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) {
      return length;
    }
  }
  return 0;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer,
                       std::span<const std::int32_t> prompt,
                       std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  constexpr std::size_t kContext = 8;
  const auto context = prompt.last(std::min(prompt.size(), kContext));
  window_.assign(context.begin(), context.end());
  given_ = window_.size();
}

std::string TextStream::push(std::int32_t token) {
  window_.push_back(token);
  characters_ += new_bytes(/*is_last=*/false);
  return up_to_stop(take_whole_characters(characters_), /*is_last=*/false);
}

std::string TextStream::finish() {
  characters_ += new_bytes(/*is_last=*/true);
  return up_to_stop(as_utf8(std::exchange(characters_, {})), /*is_last=*/true);
}

// SentencePiece decodes the byte pieces of half a character to replacement characters, which the
// next piece would take back. A character has at most 4 bytes, so at most 3 pieces are held back.
std::string TextStream::new_bytes(bool is_last) {
  const std::span<const std::int32_t> all(window_);
  const std::size_t waiting = all.size() - given_;
  if (waiting == 0) {
    return {};
  }
  const std::string before = tokenizer_.decode(all.first(given_));
  const std::string after = tokenizer_.decode(all);
  constexpr std::size_t kMostPieces = 4;
  if (!is_last && waiting < kMostPieces && after.ends_with(kReplacement)) {
    return {};
  }
  std::string fresh = after.starts_with(before) ? after.substr(before.size())
                                                : tokenizer_.decode(all.subspan(given_));
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(given_));
  given_ = window_.size();
  return fresh;
}

std::string TextStream::up_to_stop(const std::string& text, bool is_last) {
  if (stopped_) {
    return {};
  }
  held_ += text;
  std::size_t end = std::string::npos;
  std::size_t hold = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    hold = std::max(hold, overlap(held_, stop));
  }
  if (end != std::string::npos) {
    stopped_ = true;
    held_.resize(end);
    return std::exchange(held_, {});
  }
  const std::size_t certain = is_last ? held_.size() : held_.size() - hold;
  std::string out = held_.substr(0, certain);
  held_.erase(0, certain);
  return out;
}

}  // namespace dstrain
