// Unigram: of all ways to cut a piece into tokens the one with the largest sum of scores
// (Kudo 2018, arXiv:1804.10959), found by Viterbi's algorithm from left to right.
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/config/config_error.h"
#include "engine/tokenizer/byte_characters.h"
#include "engine/tokenizer/string_trie.h"
#include "engine/tokenizer/token_model.h"
#include "engine/tokenizer/unicode_text.h"

namespace dstrain {
namespace {

constexpr std::int32_t kNoToken = -1;
constexpr double kUnknownPenalty = 10.0;  ///< below the least score, as in SentencePiece

/// The best way to cut the text that ends here: its last token and where that begins.
struct BestEnd {
  double score = 0.0;
  std::int32_t token = kNoToken;
  std::int64_t begin = -1;  ///< -1: nothing ends here
};

struct UnigramScratch final : TokenModel::Scratch {
  std::vector<BestEnd> ends;    ///< at each byte of the piece
  std::vector<BestEnd> chosen;  ///< from the last to the first
  std::string characters;
};

/// A score as the `tokenizers` package reads it: its shortest digits as an integer, divided or
/// multiplied by a power of ten, which for one number in seven gives a neighbour of the nearest
/// double. Such last bits choose among ways to cut a text that are otherwise equally good.
double as_digits_over_power(double score) {
  char shortest[32];  // "-1.2345e+01"
  const char* const behind =
      std::to_chars(shortest, std::end(shortest), score, std::chars_format::scientific).ptr;
  const std::string_view text(shortest, static_cast<std::size_t>(behind - shortest));
  const std::size_t e = text.find('e');
  std::string digits(text.substr(0, e));
  int exponent = e == std::string::npos ? 0 : std::stoi(std::string(text.substr(e + 1)));
  if (const std::size_t point = digits.find('.'); point != std::string::npos) {
    exponent -= static_cast<int>(digits.size() - point - 1);
    digits.erase(point, 1);
  }
  constexpr int kExactPowers =
      22;  // beyond, powers of ten are not exact in a double; scores do not get there
  if (e == std::string::npos || std::abs(exponent) > kExactPowers) {
    return score;
  }
  const auto integer = static_cast<double>(std::stoll(digits));
  const double power = std::pow(10.0, std::abs(exponent));
  return exponent >= 0 ? integer * power : integer / power;
}

class UnigramModel final : public TokenModel {
 public:
  UnigramModel(const JsonPart& part, Pieces pieces)
      : pieces_(pieces), falls_back_to_bytes_(part.flag_or("byte_fallback", false)) {
    read_vocabulary(part["vocab"]);
    if (const auto unknown = part.find("unk_id")) {
      unknown_ = static_cast<std::int32_t>(unknown->number(vocabulary_.end() - 1));
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      fallback_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(kNoToken);
    }
  }

  [[nodiscard]] const Vocabulary& vocabulary() const override { return vocabulary_; }
  [[nodiscard]] std::unique_ptr<Scratch> make_scratch() const override {
    return std::make_unique<UnigramScratch>();
  }

  void encode(std::string_view piece,
              Scratch& scratch,
              std::vector<std::int32_t>& ids) const override {
    auto& room = static_cast<UnigramScratch&>(scratch);
    if (pieces_ == Pieces::kBytes) {
      room.characters.clear();
      for (const char byte : piece) {
        room.characters += byte_characters()[static_cast<unsigned char>(byte)];
      }
      piece = room.characters;
    }
    find_best_ends(piece, room.ends);
    room.chosen.clear();
    for (auto end = static_cast<std::int64_t>(piece.size()); end > 0;) {
      BestEnd token = room.ends[static_cast<std::size_t>(end)];
      // Unknown characters in a row are one token.
      if (token.token == unknown_ && !room.chosen.empty() && room.chosen.back().token == unknown_) {
        room.chosen.back().begin = token.begin;
      } else {
        room.chosen.push_back(token);
      }
      end = token.begin;
    }
    for (std::size_t i = room.chosen.size(); i-- > 0;) {
      const auto begin = static_cast<std::size_t>(room.chosen[i].begin);
      const std::size_t end =
          i == 0 ? piece.size() : static_cast<std::size_t>(room.chosen[i - 1].begin);
      append(room.chosen[i].token, piece.substr(begin, end - begin), ids);
    }
  }

 private:
  void read_vocabulary(const JsonPart& vocab) {
    if (!vocab.json().is_array() || vocab.json().size() > static_cast<std::size_t>(kMostTokenIds)) {
      vocab.fail(
          fmt::format("expected a list of at most {} tokens and their scores", kMostTokenIds));
    }
    std::map<std::string, std::int32_t> tokens;  // the last one of a text that occurs twice
    for (const nlohmann::json& entry : vocab.json()) {
      const auto id = static_cast<std::int32_t>(scores_.size());
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
          !entry[1].is_number()) {
        vocab.fail(fmt::format("token {}: expected [text, score]", id));
      }
      const auto& text = entry[0].get_ref<const std::string&>();
      scores_.push_back(as_digits_over_power(entry[1].get<double>()));
      least_score_ = std::min(least_score_, scores_.back());
      vocabulary_.add(id, text);
      if (!text.empty()) {
        tokens[text] = id;
      }
    }
    if (scores_.empty()) {
      vocab.fail("is empty");
    }
    trie_ = StringTrie({tokens.begin(), tokens.end()});
  }

  void find_best_ends(std::string_view piece, std::vector<BestEnd>& ends) const {
    ends.assign(piece.size() + 1, {});
    const auto reach = [&](std::size_t begin, std::size_t end, double score, std::int32_t token) {
      BestEnd& best = ends[end];
      if (best.begin < 0 || score > best.score) {
        best = {score, token, static_cast<std::int64_t>(begin)};
      }
    };
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t behind = begin + bytes_of_character(piece[begin]);
      const double so_far = ends[begin].score;
      bool is_known = false;
      std::uint32_t node = StringTrie::kRoot;
      for (std::size_t at = begin; at < piece.size();) {
        node = trie_.next(node, piece[at++]);
        if (node == StringTrie::kRoot) {
          break;
        }
        if (const std::int32_t token = trie_.number(node); token != StringTrie::kNone) {
          reach(begin, at, so_far + scores_[static_cast<std::size_t>(token)], token);
          is_known = is_known || at == behind;
        }
      }
      if (!is_known) {
        if (unknown_ == kNoToken) {
          throw ConfigError(fmt::format(
              "the tokenizer has no token for \"{}\", and no unk_id for what it does not "
              "know",
              piece.substr(begin, behind - begin)));
        }
        const double unknown_score = least_score_ - kUnknownPenalty;
        reach(begin, behind, so_far + unknown_score, unknown_);
      }
      begin = behind;
    }
  }

  void append(std::int32_t token, std::string_view text, std::vector<std::int32_t>& ids) const {
    if (token != unknown_) {
      ids.push_back(token);
      return;
    }
    if (const auto known = vocabulary_.find(text)) {
      ids.push_back(*known);
      return;
    }
    const std::size_t before = ids.size();
    for (const char byte : text) {
      const std::int32_t id = fallback_[static_cast<unsigned char>(byte)];
      if (!falls_back_to_bytes_ || id == kNoToken) {
        ids.resize(before);
        ids.push_back(unknown_);
        return;
      }
      ids.push_back(id);
    }
  }

  Pieces pieces_;
  bool falls_back_to_bytes_;
  Vocabulary vocabulary_;
  std::vector<double> scores_;
  double least_score_ = std::numeric_limits<double>::infinity();
  std::int32_t unknown_ = kNoToken;
  std::array<std::int32_t, 256> fallback_{};
  StringTrie trie_;
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram_model(const JsonPart& part, TokenModel::Pieces pieces) {
  return std::make_unique<UnigramModel>(part, pieces);
}

}  // namespace dstrain
