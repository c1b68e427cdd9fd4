#include "engine/tokenizer/piece_counter.h"

#include <string>
#include <utility>

#include <xxhash.h>

#include "engine/tokenizer/line_cut.h"
#include "engine/tokenizer/section_text.h"
#include "engine/tokenizer/whole_characters.h"

namespace dstrain {
namespace {

std::uint64_t hash_of(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

/// Cuts the text into pieces, as the tokenizer will see it.
SectionText cut(std::string_view text, const PreTokenizer& pre_tokenizer) {
  SectionText section{.text = is_utf8(text) ? std::string(text) : as_utf8(std::string(text))};
  section.pieces.assign(1, {0, static_cast<std::uint32_t>(section.text.size())});
  pre_tokenizer.apply(section);
  return section;
}

}  // namespace

PieceCounter::PieceCounter(const PreTokenizer& pieces, int halvings, Limits limits)
    : pre_tokenizer_(pieces), halvings_(halvings), limits_(limits) {}

PieceCounter::~PieceCounter() = default;

void PieceCounter::encode_part(std::string_view text,
                               TextPlace /*place*/,
                               std::vector<std::int32_t>& /*ids*/) const {
  const bool is_in_share = halvings_ == 0 || hash_of(text) >> (64 - halvings_) == 0;
  if (text.empty() || !is_in_share || is_full_) {
    return;
  }
  std::unique_ptr<PieceTable> recent;
  {
    const std::lock_guard lock(recent_mutex_);
    if (!recent_.empty()) {
      recent = std::move(recent_.back());
      recent_.pop_back();
    }
  }
  if (!recent) {
    recent = std::make_unique<PieceTable>();
  }
  const SectionText section = cut(text, pre_tokenizer_);
  for (const TextSpan span : section.pieces) {
    const std::string_view piece = section.piece(span);
    recent->add(piece, hash_of(piece), 1);
  }
  constexpr std::size_t kRecentPieces = std::size_t{1} << 15;
  constexpr std::size_t kRecentBytes = std::size_t{1} << 20;
  if (recent->size() > kRecentPieces || recent->bytes() > kRecentBytes) {
    take_over(*recent);
  }
  const std::lock_guard lock(recent_mutex_);
  recent_.push_back(std::move(recent));
}

void PieceCounter::take_over(PieceTable& recent) const {
  recent.for_each([&](std::string_view piece, std::uint64_t hash, std::int64_t count) {
    if (is_full_) {
      return;
    }
    Part& part = parts_[hash >> (64 - kPartBits)];
    const std::lock_guard lock(part.mutex);
    if (part.pieces.add(piece, hash, count)) {
      const auto length = static_cast<std::int64_t>(piece.size());
      if (++num_pieces_ > limits_.pieces || (num_bytes_ += length) > limits_.bytes) {
        is_full_ = true;
      }
    }
  });
  recent.clear();
}

void PieceCounter::finish() {
  for (const auto& recent : std::exchange(recent_, {})) {
    take_over(*recent);
  }
}

void PieceCounter::for_each(
    const std::function<void(std::string_view piece, std::int64_t count)>& visit) const {
  for (const Part& part : parts_) {
    part.pieces.for_each([&](std::string_view piece, std::uint64_t /*hash*/, std::int64_t count) {
      visit(piece, count);
    });
  }
}

std::size_t PieceCounter::length_to_cut(std::string_view text) const {
  return length_up_to_line_end(
      text, [this](std::string_view part, std::vector<std::int32_t>& lengths) {
        for (const TextSpan span : cut(part, pre_tokenizer_).pieces) {
          lengths.push_back(static_cast<std::int32_t>(span.end - span.begin));
        }
      });
}

}  // namespace dstrain
