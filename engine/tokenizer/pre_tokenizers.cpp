#include "engine/tokenizer/pre_tokenizers.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/tokenizer/byte_characters.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/split_behavior.h"
#include "engine/tokenizer/unicode_text.h"

namespace dstrain {
namespace {

using Position = PreTokenizer::Position;

/// The pieces become what `split` appends for each of them.
template <typename Split>
void split_pieces(SectionText& section, const Split& split) {
  std::vector<TextSpan> pieces;
  pieces.reserve(std::max(section.pieces.size(), section.text.size() / 4));
  for (const TextSpan piece : section.pieces) {
    split(piece, pieces);
  }
  const bool keeps_first = !pieces.empty() && !section.pieces.empty() &&
                           pieces.front().begin == section.pieces.front().begin;
  section.at_start = section.at_start && keeps_first;
  section.pieces = std::move(pieces);
}

/// The text becomes what `rewrite` appends for each piece, and each piece that part of it.
template <typename Rewrite>
void rewrite_pieces(SectionText& section, const Rewrite& rewrite) {
  std::string text;
  text.reserve(section.text.size() + section.text.size() / 2);
  std::vector<TextSpan> pieces;
  pieces.reserve(section.pieces.size());
  for (const TextSpan piece : section.pieces) {
    const auto begin = static_cast<std::uint32_t>(text.size());
    rewrite(section.piece(piece), /*is_first=*/pieces.empty(), text);
    pieces.push_back({begin, static_cast<std::uint32_t>(text.size())});
  }
  section.text = std::move(text);
  section.pieces = std::move(pieces);
}

void split_by_pattern(SectionText& section,
                      const Pattern& pattern,
                      SplitBehavior behavior,
                      bool inverted) {
  Pattern::Search search(pattern);
  PieceMatches matches;
  split_pieces(section, [&](TextSpan piece, std::vector<TextSpan>& pieces) {
    search.start(section.piece(piece));
    matches.start(piece.begin, inverted);
    while (search.next()) {
      matches.add(piece.begin + static_cast<std::uint32_t>(search.begin()),
                  piece.begin + static_cast<std::uint32_t>(search.end()));
    }
    matches.finish(piece.end, behavior, pieces);
  });
}

/// Every character that `is_match` accepts is a match.
template <typename IsMatch>
void split_by_character(SectionText& section, SplitBehavior behavior, const IsMatch& is_match) {
  PieceMatches matches;
  split_pieces(section, [&](TextSpan piece, std::vector<TextSpan>& pieces) {
    matches.start(piece.begin, /*inverted=*/false);
    for (std::size_t at = piece.begin; at < piece.end;) {
      const auto begin = static_cast<std::uint32_t>(at);
      if (is_match(next_character(section.text, at))) {
        matches.add(begin, static_cast<std::uint32_t>(at));
      }
    }
    matches.finish(piece.end, behavior, pieces);
  });
}

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool inverted)
      : pattern_(std::move(pattern)), behavior_(behavior), inverted_(inverted) {}
  void apply(SectionText& section) const override {
    split_by_pattern(section, pattern_, behavior_, inverted_);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool inverted_;
};

/// GPT-2's split, and a character for each byte, where a later step may depend on those.
class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool puts_space, bool splits, Position position)
      : puts_space_(puts_space),
        split_(
            splits
                ? Pattern::regular_expression(
                      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")
                : Pattern::literal("")),
        splits_(splits),
        leaves_bytes_(position == Position::kLast) {}

  [[nodiscard]] bool leaves_bytes() const override { return leaves_bytes_; }

  void apply(SectionText& section) const override {
    if (puts_space_) {
      put_spaces(section);
    }
    if (splits_) {
      split_by_pattern(section, split_, SplitBehavior::kIsolated, /*inverted=*/false);
    }
    if (!leaves_bytes_) {
      rewrite_pieces(section, [](std::string_view piece, bool, std::string& out) {
        for (const char byte : piece) {
          out += byte_characters()[static_cast<unsigned char>(byte)];
        }
      });
    }
  }

 private:
  static void put_spaces(SectionText& section) {
    rewrite_pieces(section, [&](std::string_view piece, bool is_first, std::string& out) {
      if (!piece.starts_with(' ') && !(is_first && section.continues)) {
        out += ' ';
      }
      out += piece;
    });
  }

  bool puts_space_;
  Pattern split_;
  bool splits_;
  bool leaves_bytes_;
};

/// Puts a mark (▁) in place of each space, and in front; words begin at marks.
class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const JsonPart& part)
      : mark_(part["replacement"].text()), splits_(part.flag_or("split", true)) {
    if (mark_.empty() || bytes_of_character(mark_.front()) != mark_.size()) {
      part["replacement"].fail("expected one character");
    }
    // Older files have a switch instead of the scheme.
    scheme_ =
        part.text_or("prepend_scheme", part.flag_or("add_prefix_space", true) ? "always" : "never");
    if (scheme_ != "always" && scheme_ != "first" && scheme_ != "never") {
      part["prepend_scheme"].fail("expected \"always\", \"first\" or \"never\"");
    }
  }

  void apply(SectionText& section) const override {
    rewrite_pieces(section, [&](std::string_view piece, bool is_first, std::string& out) {
      const bool begins_text = is_first && section.at_start;
      const bool wanted = scheme_ == "always" || (scheme_ == "first" && begins_text);
      if (wanted && !(is_first && section.continues) && !piece.starts_with(' ') &&
          !piece.starts_with(mark_)) {
        out += mark_;
      }
      for (const char byte : piece) {
        byte == ' ' ? out.append(mark_) : out.append(1, byte);
      }
    });
    if (splits_) {
      split_by_pattern(section, Pattern::literal(mark_), SplitBehavior::kMergedWithNext,
                       /*inverted=*/false);
    }
  }

 private:
  std::string mark_;
  std::string scheme_;
  bool splits_;
};

class Digits final : public PreTokenizer {
 public:
  explicit Digits(bool one_by_one)
      : behavior_(one_by_one ? SplitBehavior::kIsolated : SplitBehavior::kContiguous) {}
  void apply(SectionText& section) const override {
    split_by_character(section, behavior_, is_numeric);
  }

 private:
  SplitBehavior behavior_;
};

class Punctuation final : public PreTokenizer {
 public:
  explicit Punctuation(SplitBehavior behavior) : behavior_(behavior) {}
  void apply(SectionText& section) const override {
    split_by_character(section, behavior_, is_punctuation);
  }

 private:
  SplitBehavior behavior_;
};

class WhitespaceSplit final : public PreTokenizer {
 public:
  void apply(SectionText& section) const override {
    split_by_character(section, SplitBehavior::kRemoved, is_space);
  }
};

/// Splits into runs of word characters and runs of characters that are neither those nor spaces.
/// Word characters are those of UTS 18 (annex C).
class Whitespace final : public PreTokenizer {
 public:
  void apply(SectionText& section) const override {
    split_by_pattern(section, words_, SplitBehavior::kRemoved, /*inverted=*/true);
  }

 private:
  Pattern words_ = Pattern::regular_expression(
      R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\s]+)");
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(std::int64_t characters) : characters_(characters) {}
  void apply(SectionText& section) const override {
    split_pieces(section, [&](TextSpan piece, std::vector<TextSpan>& pieces) {
      std::size_t at = piece.begin;
      while (at < piece.end) {
        const std::size_t begin = at;
        for (std::int64_t i = 0; i < characters_ && at < piece.end; ++i) {
          at += bytes_of_character(section.text[at]);
        }
        pieces.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(at)});
      }
    });
  }

 private:
  std::int64_t characters_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  PreTokenizerSequence(const JsonPart& parts, Position position) {
    const std::vector<JsonPart> items = parts.items();
    for (const JsonPart& item : items) {
      const bool is_last = &item == &items.back();
      steps_.push_back(PreTokenizer::make(item, is_last ? position : Position::kInside));
    }
  }
  [[nodiscard]] bool leaves_bytes() const override {
    return !steps_.empty() && steps_.back()->leaves_bytes();
  }
  void apply(SectionText& section) const override {
    for (const auto& step : steps_) {
      step->apply(section);
    }
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

SplitBehavior behavior_or(const JsonPart& part, SplitBehavior otherwise) {
  const auto behavior = part.find("behavior");
  return behavior ? split_behavior(*behavior) : otherwise;
}

std::int64_t length_of(const JsonPart& part) {
  const std::int64_t length = part["length"].number(std::numeric_limits<std::int32_t>::max());
  if (length == 0) {
    part["length"].fail("expected 1 or more");
  }
  return length;
}

}  // namespace

std::unique_ptr<PreTokenizer> PreTokenizer::make(const JsonPart& part, Position position) {
  const std::string& type = part["type"].text();
  if (type == "Sequence") {
    return std::make_unique<PreTokenizerSequence>(part["pretokenizers"], position);
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>(part.flag_or("add_prefix_space", true),
                                       part.flag_or("use_regex", true), position);
  }
  if (type == "Split") {
    return std::make_unique<Split>(Pattern::from_json(part["pattern"]),
                                   split_behavior(part["behavior"]), part.flag_or("invert", false));
  }
  if (type == "CharDelimiterSplit") {
    return std::make_unique<Split>(Pattern::literal(part["delimiter"].text()),
                                   SplitBehavior::kRemoved, /*inverted=*/false);
  }
  if (type == "Metaspace") return std::make_unique<Metaspace>(part);
  if (type == "Digits") return std::make_unique<Digits>(part.flag_or("individual_digits", false));
  if (type == "Punctuation") {
    return std::make_unique<Punctuation>(behavior_or(part, SplitBehavior::kIsolated));
  }
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") return std::make_unique<WhitespaceSplit>();
  if (type == "FixedLength") return std::make_unique<FixedLength>(length_of(part));
  part["type"].fail(fmt::format(
      "pre-tokenizer \"{}\" is not supported; those supported are ByteLevel, Split, Metaspace, "
      "Digits, "
      "Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, FixedLength and Sequence",
      type));
}

}  // namespace dstrain
