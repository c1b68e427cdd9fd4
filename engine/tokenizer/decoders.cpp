#include "engine/tokenizer/decoders.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "engine/tokenizer/byte_characters.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/unicode_text.h"
#include "engine/tokenizer/whole_characters.h"

namespace dstrain {
namespace {

/// Turns the characters that stand for bytes back into bytes. A token with any other character,
/// such as an added one with a space, is text already.
class ByteLevelDecoder final : public Decoder {
 public:
  void apply(std::vector<std::string>& texts) const override {
    std::string all;
    for (const std::string& text : texts) {
      all += bytes_of_characters(text).value_or(text);
    }
    texts.assign(1, std::move(all));
  }
};

/// The byte of a token such as "<0xE2>".
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') {
    return std::nullopt;
  }
  int value = 0;
  for (const char digit : token.substr(3, 2)) {
    if (std::isxdigit(static_cast<unsigned char>(digit)) == 0) {
      return std::nullopt;
    }
    value = value * 16 + (digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
  }
  return static_cast<char>(static_cast<unsigned char>(value));
}

/// Consecutive byte tokens become their characters or, if they form none, a U+FFFD each.
class ByteFallback final : public Decoder {
 public:
  void apply(std::vector<std::string>& texts) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto give_out = [&] {
      if (is_utf8(bytes)) {
        out.push_back(std::exchange(bytes, {}));
        return;
      }
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        out.emplace_back(kReplacement);
      }
      bytes.clear();
    };
    for (std::string& text : texts) {
      if (const auto byte = byte_of(text)) {
        bytes += *byte;
        continue;
      }
      if (!bytes.empty()) {
        give_out();
      }
      out.push_back(std::move(text));
    }
    if (!bytes.empty()) {
      give_out();
    }
    texts = std::move(out);
  }
};

class MetaspaceDecoder final : public Decoder {
 public:
  explicit MetaspaceDecoder(const JsonPart& part)
      : mark_(part["replacement"].text()),
        drops_first_(part.text_or("prepend_scheme",
                                  part.flag_or("add_prefix_space", true) ? "always" : "never") !=
                     "never") {
    if (mark_.empty() || bytes_of_character(mark_.front()) != mark_.size()) {
      part["replacement"].fail("expected one character");
    }
  }

  void apply(std::vector<std::string>& texts) const override {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::string out;
      std::string_view left = texts[i];
      for (std::size_t at = left.find(mark_); at != std::string_view::npos; at = left.find(mark_)) {
        out += left.substr(0, at);
        if (i > 0 || !drops_first_) {
          out += ' ';
        }
        left.remove_prefix(at + mark_.size());
      }
      out += left;
      texts[i] = std::move(out);
    }
  }

 private:
  std::string mark_;
  bool drops_first_;
};

class ReplaceDecoder final : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(std::vector<std::string>& texts) const override {
    Pattern::Search search(pattern_);
    for (std::string& text : texts) {
      text = is_utf8(text) ? text : as_utf8(text);  // a pattern sees characters alone
      search.start(text);
      std::string out;
      std::size_t done = 0;
      while (search.next()) {
        out.append(text, done, search.begin() - done);
        out += content_;
        done = search.end();
      }
      out.append(text, done);
      text = std::move(out);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

/// Removes up to a given number of one character from each end of every text.
class StripDecoder final : public Decoder {
 public:
  StripDecoder(std::string character, std::int64_t start, std::int64_t stop)
      : character_(std::move(character)), start_(start), stop_(stop) {}

  void apply(std::vector<std::string>& texts) const override {
    for (std::string& text : texts) {
      std::string_view left = text;
      for (std::int64_t i = 0; i < start_ && left.starts_with(character_); ++i) {
        left.remove_prefix(character_.size());
      }
      for (std::int64_t i = 0; i < stop_ && left.ends_with(character_); ++i) {
        left.remove_suffix(character_.size());
      }
      text = std::string(left);
    }
  }

 private:
  std::string character_;
  std::int64_t start_;
  std::int64_t stop_;
};

class Fuse final : public Decoder {
 public:
  void apply(std::vector<std::string>& texts) const override {
    std::string all;
    for (const std::string& text : texts) {
      all += text;
    }
    texts.assign(1, std::move(all));
  }
};

/// The suffix that ends words becomes a space, except at the end of the text.
class BpeDecoder final : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& texts) const override {
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const char* const gap = i + 1 == texts.size() ? "" : " ";
      for (std::size_t at = texts[i].find(suffix_); at != std::string::npos;
           at = texts[i].find(suffix_, at)) {
        texts[i].replace(at, suffix_.size(), gap);
        at += *gap == '\0' ? 0 : 1;
      }
    }
  }

 private:
  std::string suffix_;  ///< not empty
};

class DecoderSequence final : public Decoder {
 public:
  explicit DecoderSequence(const JsonPart& parts) {
    for (const JsonPart& part : parts.items()) {
      steps_.push_back(Decoder::make(part));
    }
  }
  void apply(std::vector<std::string>& texts) const override {
    for (const auto& step : steps_) {
      step->apply(texts);
    }
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

std::unique_ptr<Decoder> make_strip(const JsonPart& part) {
  constexpr std::int64_t kMost = 1 << 20;
  const std::string& character = part["content"].text();
  if (character.empty() || bytes_of_character(character.front()) != character.size()) {
    part["content"].fail("expected one character");
  }
  return std::make_unique<StripDecoder>(character, part["start"].number(kMost),
                                        part["stop"].number(kMost));
}

std::unique_ptr<Decoder> make_bpe_decoder(const JsonPart& part) {
  if (part["suffix"].text().empty()) {
    part["suffix"].fail("is empty");
  }
  return std::make_unique<BpeDecoder>(part["suffix"].text());
}

}  // namespace

std::unique_ptr<Decoder> Decoder::make(const JsonPart& part) {
  const std::string& type = part["type"].text();
  if (type == "Sequence") return std::make_unique<DecoderSequence>(part["decoders"]);
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Metaspace") return std::make_unique<MetaspaceDecoder>(part);
  if (type == "Replace") {
    return std::make_unique<ReplaceDecoder>(Pattern::from_json(part["pattern"]),
                                            part["content"].text());
  }
  if (type == "Strip") return make_strip(part);
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "BPEDecoder") return make_bpe_decoder(part);
  part["type"].fail(
      fmt::format("decoder \"{}\" is not supported; those supported are ByteLevel, ByteFallback, "
                  "Metaspace, Replace, Strip, Fuse, BPEDecoder and Sequence",
                  type));
}

}  // namespace dstrain
