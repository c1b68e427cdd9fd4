#include "engine/tokenizer/normalizers.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/tokenizer/base64.h"
#include "engine/tokenizer/byte_characters.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/replacement_table.h"
#include "engine/tokenizer/unicode_text.h"

namespace dstrain {
namespace {

class Form final : public Normalizer {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  void apply(SectionText& section) const override {
    section.text = normalized(section.text, form_);
  }

 private:
  NormalForm form_;
};

/// Each character becomes what `replace` appends for it, which may be nothing.
template <typename Replace>
void replace_characters(SectionText& section, const Replace& replace) {
  std::string out;
  out.reserve(section.text.size());
  for (std::size_t at = 0; at < section.text.size();) {
    const bool is_first = at == 0;
    replace(out, next_character(section.text, at));
    section.at_start = section.at_start && !(is_first && out.empty());
  }
  section.text = std::move(out);
}

class Lowercase final : public Normalizer {
 public:
  void apply(SectionText& section) const override {
    replace_characters(section, append_lower_case);
  }
};

class StripAccents final : public Normalizer {
 public:
  void apply(SectionText& section) const override {
    replace_characters(section, [](std::string& out, char32_t character) {
      if (!is_mark(character)) append_character(out, character);
    });
  }
};

/// Removes some control characters and turns others into spaces, as SentencePiece's "nmt" rule
/// does.
class Nmt final : public Normalizer {
 public:
  void apply(SectionText& section) const override {
    replace_characters(section, [](std::string& out, char32_t c) {
      const bool goes = (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) ||
                        c == 0x7F || c == 0x8F || c == 0x9F;
      const bool is_gap = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                          (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
                          c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      if (!goes) append_character(out, is_gap ? U' ' : c);
    });
  }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  void apply(SectionText& section) const override {
    const std::string& text = section.text;
    std::size_t begin = text.size();  // of the last character that is not a space, and behind it
    std::size_t end = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t here = at;
      if (!is_space(next_character(text, at))) {
        begin = std::min(begin, here);
        end = at;
      }
    }
    const std::size_t first = left_ ? begin : 0;
    const std::size_t behind = right_ ? std::max(end, first) : text.size();
    section.at_start = section.at_start && first == 0;
    section.text = text.substr(first, behind - first);
  }

 private:
  bool left_;
  bool right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  void apply(SectionText& section) const override {
    if (!section.text.empty() && !section.continues) {
      section.text.insert(0, text_);
    }
  }

 private:
  std::string text_;
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(SectionText& section) const override {
    Pattern::Search search(pattern_);
    search.start(section.text);
    std::string out;
    std::size_t done = 0;
    while (search.next()) {
      section.at_start = section.at_start && !(search.begin() == 0 && content_.empty());
      out.append(section.text, done, search.begin() - done);
      out += content_;
      done = search.end();
    }
    if (done > 0 || !out.empty()) {
      out.append(section.text, done);
      section.text = std::move(out);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

/// Every byte becomes its character.
class ByteLevelNormalizer final : public Normalizer {
 public:
  void apply(SectionText& section) const override {
    std::string out;
    out.reserve(section.text.size() * 2);
    for (const char byte : section.text) {
      out += byte_characters()[static_cast<unsigned char>(byte)];
    }
    section.text = std::move(out);
  }
};

class Precompiled final : public Normalizer {
 public:
  /// Takes the table in base64.
  explicit Precompiled(const JsonPart& charsmap) {
    const auto bytes = decoded_base64(charsmap.text());
    auto table = bytes ? ReplacementTable::parse(*bytes) : std::nullopt;
    if (!table) {
      charsmap.fail("is not a table of SentencePiece's normalizer in base64");
    }
    table_ = std::move(*table);
  }

  void apply(SectionText& section) const override {
    const std::string_view text = section.text;
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = end_of_grapheme(text, at);
      table_.append_replaced(text.substr(at, end - at), out);
      section.at_start = section.at_start && !(at == 0 && out.empty());
      at = end;
    }
    section.text = std::move(out);
  }

 private:
  ReplacementTable table_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(const JsonPart& parts) {
    for (const JsonPart& part : parts.items()) {
      steps_.push_back(Normalizer::make(part));
    }
  }
  void apply(SectionText& section) const override {
    for (const auto& step : steps_) {
      step->apply(section);
    }
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<Normalizer> Normalizer::make(const JsonPart& part) {
  constexpr std::pair<std::string_view, NormalForm> kForms[] = {{"NFC", NormalForm::kNfc},
                                                                {"NFD", NormalForm::kNfd},
                                                                {"NFKC", NormalForm::kNfkc},
                                                                {"NFKD", NormalForm::kNfkd}};
  const std::string& type = part["type"].text();
  for (const auto& [name, form] : kForms) {
    if (type == name) return std::make_unique<Form>(form);
  }
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(part["normalizers"]);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "Strip") {
    return std::make_unique<Strip>(part["strip_left"].flag(), part["strip_right"].flag());
  }
  if (type == "Prepend") return std::make_unique<Prepend>(part["prepend"].text());
  if (type == "Replace") {
    return std::make_unique<Replace>(Pattern::from_json(part["pattern"]), part["content"].text());
  }
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Precompiled") {
    return std::make_unique<Precompiled>(part["precompiled_charsmap"]);
  }
  part["type"].fail(
      fmt::format("normalizer \"{}\" is not supported; those supported are NFC, NFD, NFKC, NFKD, "
                  "Lowercase, StripAccents, Nmt, Strip, Prepend, Replace, ByteLevel, Precompiled "
                  "and Sequence",
                  type));
}

}  // namespace dstrain
