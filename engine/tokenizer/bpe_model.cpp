// Byte pair encoding as tokenizer.json describes it: of bytes (GPT-2 and its successors), or of
// characters, where those without a token become byte tokens (LLaMA, Gemma) or the unknown token.
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"
#include "engine/tokenizer/byte_characters.h"
#include "engine/tokenizer/merge_table.h"
#include "engine/tokenizer/merge_word.h"
#include "engine/tokenizer/model_vocabulary.h"
#include "engine/tokenizer/token_model.h"
#include "engine/tokenizer/unicode_text.h"

namespace dstrain {
namespace {

constexpr std::int32_t kNoToken = -1;
constexpr std::string_view kMark = "\u2581";  ///< ▁, which stands for a space in LLaMA and Gemma

struct BpeScratch final : TokenModel::Scratch {
  WordMerger merger;
};

/// The two texts of a merge: "a b", or ["a", "b"], which newer files have, since tokens may hold
/// spaces.
std::pair<std::string_view, std::string_view> pair_of(const nlohmann::json& merge,
                                                      const JsonPart& merges,
                                                      std::size_t rank) {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  merges.fail(fmt::format("merge {}: expected two tokens, as \"a b\" or [\"a\", \"b\"]", rank));
}

class BpeModel final : public TokenModel {
 public:
  BpeModel(const JsonPart& part, Pieces pieces)
      : pieces_(pieces),
        vocabulary_(vocabulary_of_object(part["vocab"])),
        merges_(0),
        prefix_(part.text_or("continuing_subword_prefix", "")),
        suffix_(part.text_or("end_of_word_suffix", "")),
        unknown_text_(part.text_or("unk_token", "")),
        unknown_(vocabulary_.find(unknown_text_).value_or(kNoToken)),
        has_unknown_(part.find("unk_token").has_value()),
        fuses_unknown_(part.flag_or("fuse_unk", false)),
        falls_back_to_bytes_(part.flag_or("byte_fallback", false)),
        whole_pieces_first_(part.flag_or("ignore_merges", false)) {
    refuse_dropout(part);
    read_merges(part["merges"]);
    find_symbols();
    breaks_at_marks_ = may_break_at_marks();
  }

  [[nodiscard]] const Vocabulary& vocabulary() const override { return vocabulary_; }
  [[nodiscard]] std::unique_ptr<Scratch> make_scratch() const override {
    return std::make_unique<BpeScratch>();
  }

  void encode(std::string_view piece,
              Scratch& scratch,
              std::vector<std::int32_t>& ids) const override {
    if (whole_pieces_first_) {
      if (const auto id = token_of_piece(piece)) {
        ids.push_back(*id);
        return;
      }
    }
    const std::size_t begin = ids.size();
    append_symbols(piece, ids);
    static_cast<BpeScratch&>(scratch).merger.merge(merges_, ids, begin);
  }

  [[nodiscard]] std::size_t independent_length(std::string_view piece) const override {
    if (!breaks_at_marks_) {
      return piece.size();
    }
    // A word ends before a mark that follows something else.
    std::size_t at = piece.find_first_not_of(kMark);
    while (at != std::string_view::npos) {
      at = piece.find(kMark, at);
      if (at != std::string_view::npos && !piece.substr(0, at).ends_with(kMark)) {
        return at;
      }
      at = at == std::string_view::npos ? at : at + kMark.size();
    }
    return piece.size();
  }

 private:
  static void refuse_dropout(const JsonPart& part) {
    const auto dropout = part.find("dropout");
    if (dropout && dropout->json() != 0.0) {
      dropout->fail(
          "leaves merges out at random, so that a text has different ids each time; expected "
          "null");
    }
  }

  void read_merges(const JsonPart& merges) {
    if (!merges.json().is_array()) {
      merges.fail("expected a list");
    }
    merges_ = MergeTable(merges.json().size());
    std::int32_t rank = 0;
    std::string merged;
    for (const nlohmann::json& merge : merges.json()) {
      const auto [left, right] = pair_of(merge, merges, static_cast<std::size_t>(rank));
      const std::int32_t left_id = id_of(left, merges, rank);
      const std::int32_t right_id = id_of(right, merges, rank);
      merged = left;
      merged += right.substr(std::min(prefix_.size(), right.size()));
      merges_.put(left_id, right_id, {rank, id_of(merged, merges, rank)});
      ++rank;
    }
  }

  [[nodiscard]] std::int32_t id_of(std::string_view token,
                                   const JsonPart& merges,
                                   std::int32_t rank) const {
    const auto id = vocabulary_.find(token);
    if (!id) {
      merges.fail(fmt::format("merge {}: \"{}\" is not in the vocabulary", rank, token));
    }
    return *id;
  }

  /// The tokens of single bytes, and of the characters that most text consists of.
  void find_symbols() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      byte_symbols_[byte] = vocabulary_.find(byte_characters()[byte]).value_or(kNoToken);
      fallback_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(kNoToken);
    }
    if (pieces_ == Pieces::kCharacters) {
      character_symbols_.resize(0x10000, kNoToken);
    }
    for (std::int32_t id = 0; id < vocabulary_.end(); ++id) {
      const std::string* const text = vocabulary_.text(id);
      if (text == nullptr || text->empty()) {
        continue;
      }
      if (pieces_ == Pieces::kBytes) {
        if (auto bytes = whole_pieces_first_ ? bytes_of_characters(*text) : std::nullopt) {
          pieces_as_bytes_[std::move(*bytes)] = id;
        }
      } else if (bytes_of_character(text->front()) == text->size()) {
        std::size_t at = 0;
        const char32_t character = next_character(*text, at);
        if (character < character_symbols_.size()) {
          character_symbols_[character] = id;
        }
      }
    }
  }

  /// Whether no token continues from another character into a mark, so that a text without splits
  /// (LLaMA, Gemma) can still be merged word by word, which is faster and lets words be remembered.
  [[nodiscard]] bool may_break_at_marks() const {
    if (pieces_ == Pieces::kBytes || whole_pieces_first_ || !prefix_.empty() || !suffix_.empty() ||
        !vocabulary_.find(kMark)) {
      return false;
    }
    for (std::int32_t id = 0; id < vocabulary_.end(); ++id) {
      const std::string* const token = vocabulary_.text(id);
      std::string_view text = token == nullptr ? std::string_view() : std::string_view(*token);
      while (text.starts_with(kMark)) {
        text.remove_prefix(kMark.size());
      }
      if (text.find(kMark) != std::string_view::npos) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] std::optional<std::int32_t> token_of_piece(std::string_view piece) const {
    if (pieces_ == Pieces::kCharacters) {
      return vocabulary_.find(piece);
    }
    const auto found = pieces_as_bytes_.find(std::string(piece));
    return found == pieces_as_bytes_.end() ? std::nullopt : std::optional(found->second);
  }

  [[nodiscard]] std::int32_t symbol_of(std::string_view symbol,
                                       bool is_first,
                                       bool is_last,
                                       std::string& spelled) const {
    const bool is_byte = pieces_ == Pieces::kBytes;
    if (prefix_.empty() && suffix_.empty()) {
      if (is_byte) {
        return byte_symbols_[static_cast<unsigned char>(symbol.front())];
      }
      std::size_t at = 0;
      const char32_t character = next_character(symbol, at);
      return character < character_symbols_.size() ? character_symbols_[character]
                                                   : vocabulary_.find(symbol).value_or(kNoToken);
    }
    spelled = is_first ? "" : prefix_;
    spelled += is_byte ? byte_characters()[static_cast<unsigned char>(symbol.front())]
                       : std::string(symbol);
    spelled += is_last ? suffix_ : "";
    return vocabulary_.find(spelled).value_or(kNoToken);
  }

  void append_symbols(std::string_view piece, std::vector<std::int32_t>& ids) const {
    bool unknown_waits = false;
    std::string spelled;
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t length = pieces_ == Pieces::kBytes ? 1 : bytes_of_character(piece[at]);
      const std::string_view symbol = piece.substr(at, length);
      at += length;
      const std::int32_t id = symbol_of(symbol, at == length, at == piece.size(), spelled);
      if (id != kNoToken) {
        if (unknown_waits) {
          ids.push_back(unknown_);
          unknown_waits = false;
        }
        ids.push_back(id);
        continue;
      }
      const bool has_affix = !prefix_.empty() || !suffix_.empty();
      if (falls_back_to_bytes_ &&
          append_bytes(has_affix ? std::string_view(spelled) : symbol, ids)) {
        continue;
      }
      if (!has_unknown_) {
        continue;  // as other implementations do: a symbol without a token has no id
      }
      if (unknown_ == kNoToken) {
        throw ConfigError(
            fmt::format("the tokenizer has no token for \"{}\", and its unk_token \"{}\" is not in "
                        "its vocabulary",
                        symbol, unknown_text_));
      }
      if (unknown_waits && !fuses_unknown_) {
        ids.push_back(unknown_);
      }
      unknown_waits = true;
    }
    if (unknown_waits) {
      ids.push_back(unknown_);
    }
  }

  /// Returns false and appends nothing if a byte has no token.
  bool append_bytes(std::string_view symbol, std::vector<std::int32_t>& ids) const {
    // Bytes of byte pieces are written as characters of up to two bytes each.
    std::string characters;
    if (pieces_ == Pieces::kBytes && symbol.size() == 1) {
      characters = byte_characters()[static_cast<unsigned char>(symbol.front())];
      symbol = characters;
    }
    const std::size_t before = ids.size();
    for (const char byte : symbol) {
      const std::int32_t id = fallback_[static_cast<unsigned char>(byte)];
      if (id == kNoToken) {
        ids.resize(before);
        return false;
      }
      ids.push_back(id);
    }
    return true;
  }

  Pieces pieces_;
  Vocabulary vocabulary_;
  MergeTable merges_;
  std::string prefix_;  ///< of a character that does not begin its word
  std::string suffix_;  ///< of one that ends it
  std::string unknown_text_;
  std::int32_t unknown_;
  bool has_unknown_;
  bool fuses_unknown_;  ///< several in a row become one id
  bool falls_back_to_bytes_;
  bool whole_pieces_first_;  ///< a piece that is a token is that token, whatever the merges
  bool breaks_at_marks_ = false;
  std::array<std::int32_t, 256> byte_symbols_{};
  std::array<std::int32_t, 256> fallback_{};
  std::vector<std::int32_t> character_symbols_;  ///< of U+0000 to U+FFFF
  std::unordered_map<std::string, std::int32_t> pieces_as_bytes_;
};

}  // namespace

std::unique_ptr<TokenModel> make_bpe_model(const JsonPart& part, TokenModel::Pieces pieces) {
  return std::make_unique<BpeModel>(part, pieces);
}

}  // namespace dstrain
