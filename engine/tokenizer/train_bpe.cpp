#include "engine/tokenizer/train_bpe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <utility>

#include "engine/tokenizer/byte_characters.h"
#include "engine/tokenizer/merge_table.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::int32_t kGone = -1;    ///< a byte that is not the first of its token
constexpr std::int32_t kBorder = -2;  ///< between two pieces

struct Pair {
  std::int32_t left;
  std::int32_t right;
  std::int64_t count = 0;
  std::vector<std::uint32_t> positions{};  ///< of the left one; some may have gone meanwhile
  bool is_merge = false;
};

/// A pair as it was when it entered the queue; its count may be lower now.
struct Candidate {
  std::int64_t count;
  std::int32_t left;
  std::int32_t right;
  std::int32_t pair;  ///< its number
};

struct ComesLater {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.count != b.count ? a.count < b.count
           : a.left != b.left ? a.left > b.left
                              : a.right > b.right;
  }
};

/// The new pairs of a merge with one neighbour on one side.
struct NewPair {
  std::int64_t count = 0;
  std::vector<std::uint32_t> positions{};
};

}  // namespace

class BpeTrainer::Merging {
 public:
  explicit Merging(BpeTrainer& trainer)
      : symbols_(trainer.symbols_), counts_(trainer.counts_), tokens_(trainer.tokens_) {
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      ids_.emplace(tokens_[id], static_cast<std::int32_t>(id));
    }
    count_pairs(trainer.num_specials_);
  }

  void run(std::int64_t vocab_size, const std::function<bool(std::int64_t)>& goes_on) {
    constexpr std::size_t kMergesBetweenQuestions = 64;
    while (std::ssize(tokens_) < vocab_size && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      if (pairs_[static_cast<std::size_t>(best.pair)].count != best.count) {
        push(best.pair);
        continue;
      }
      if (merges_.size() % kMergesBetweenQuestions == 0 && !goes_on(std::ssize(tokens_))) {
        return;
      }
      merge(best);
    }
  }

  [[nodiscard]] const std::vector<std::pair<std::int32_t, std::int32_t>>& merges() const {
    return merges_;
  }

 private:
  /// The pairs of bytes, of which there are at most 256 times 256.
  void count_pairs(std::size_t first_byte) {
    const auto for_each_pair = [&](const auto& visit) {
      for (std::size_t at = 0; at + 1 < symbols_.size(); ++at) {
        const Symbol& left = symbols_[at];
        const Symbol& right = symbols_[at + 1];
        if (left.id != kBorder && right.id != kBorder) {
          visit(at, left,
                (static_cast<std::size_t>(left.id) - first_byte) * 256 +
                    static_cast<std::size_t>(right.id) - first_byte);
        }
      }
    };
    constexpr std::size_t kPairs = std::size_t{256} * 256;
    std::vector<std::int64_t> counts(kPairs);
    std::vector<std::size_t> occurrences(kPairs);
    for_each_pair([&](std::size_t, const Symbol& symbol, std::size_t pair) {
      counts[pair] += counts_[symbol.piece];
      ++occurrences[pair];
    });
    std::vector<Pair*> pairs(kPairs, nullptr);
    pairs_.reserve(kPairs);
    for (std::size_t pair = 0; pair < kPairs; ++pair) {
      if (counts[pair] >= kLeastCount) {
        std::vector<std::uint32_t> positions;
        positions.reserve(occurrences[pair]);
        add(static_cast<std::int32_t>(first_byte + pair / 256),
            static_cast<std::int32_t>(first_byte + pair % 256), counts[pair], positions);
        pairs[pair] = &pairs_.back();
      }
    }
    for_each_pair([&](std::size_t at, const Symbol&, std::size_t pair) {
      if (pairs[pair] != nullptr) {
        pairs[pair]->positions.push_back(static_cast<std::uint32_t>(at));
      }
    });
  }

  void push(std::int32_t number) {
    const Pair& pair = pairs_[static_cast<std::size_t>(number)];
    if (pair.count >= kLeastCount) {
      queue_.push({pair.count, pair.left, pair.right, number});
    }
  }

  /// Two pairs may form the same text, "a" + "bc" and "ab" + "c": that is one token.
  std::int32_t token_of(std::int32_t left, std::int32_t right) {
    std::string text =
        tokens_[static_cast<std::size_t>(left)] + tokens_[static_cast<std::size_t>(right)];
    const auto [found, is_new] = ids_.emplace(text, static_cast<std::int32_t>(tokens_.size()));
    if (is_new) {
      tokens_.push_back(std::move(text));
    }
    return found->second;
  }

  void merge(const Candidate& best) {
    Pair& pair = pairs_[static_cast<std::size_t>(best.pair)];
    std::vector<std::uint32_t> positions = std::exchange(pair.positions, {});
    if (positions.empty()) {
      return;  // it was in the queue twice
    }
    const std::int32_t token = token_of(best.left, best.right);
    // Where a token is formed a second time, pairs with it may be formed again, too; they are
    // merged then, but the merge keeps its first place in the list.
    if (!std::exchange(pair.is_merge, true)) {
      merges_.emplace_back(best.left, best.right);
    }
    if (!std::is_sorted(positions.begin(), positions.end())) {
      std::sort(positions.begin(), positions.end());
    }
    left_.resize(tokens_.size());
    right_.resize(tokens_.size());
    for (const std::uint32_t at : positions) {
      merge_at(at, best, token);
    }
    take_changes(best, token);
  }

  void merge_at(std::uint32_t at, const Candidate& pair, std::int32_t token) {
    Symbol& left = symbols_[at];
    if (left.id != pair.left || symbols_[at + left.length].id != pair.right) {
      return;
    }
    Symbol& right = symbols_[at + left.length];
    const std::uint32_t length = left.length + right.length;
    right.id = kGone;
    left.id = token;
    left.length = length;
    symbols_[at + length - 1].length = length;
    const std::int64_t count = counts_[left.piece];
    if (const Symbol& before = symbols_[at - 1]; before.id != kBorder) {
      const std::uint32_t begin = at - before.length;
      note(left_, left_seen_, symbols_[begin].id, begin, count);
    }
    if (const Symbol& behind = symbols_[at + length]; behind.id != kBorder) {
      note(right_, right_seen_, behind.id, at, count);
    }
  }

  static void note(std::vector<NewPair>& pairs,
                   std::vector<std::int32_t>& seen,
                   std::int32_t neighbour,
                   std::uint32_t position,
                   std::int64_t count) {
    NewPair& pair = pairs[static_cast<std::size_t>(neighbour)];
    if (pair.count == 0) {
      seen.push_back(neighbour);
    }
    pair.count += count;
    pair.positions.push_back(position);
  }

  /// Each new pair with a neighbour takes the place of an old one. In a run, "abab", a neighbour on
  /// the left may itself be new: the pair that it takes the place of is one of this merge.
  void take_changes(const Candidate& merged, std::int32_t token) {
    const std::int64_t in_runs = left_[static_cast<std::size_t>(token)].count;
    const bool has_runs = right_[static_cast<std::size_t>(merged.left)].count > 0;
    for (const std::int32_t neighbour : left_seen_) {
      NewPair& made = left_[static_cast<std::size_t>(neighbour)];
      if (neighbour != token || !has_runs) {
        subtract(neighbour, merged.left, made.count);
      }
      add(neighbour, token, made.count, made.positions);
      made.count = 0;
    }
    for (const std::int32_t neighbour : right_seen_) {
      NewPair& made = right_[static_cast<std::size_t>(neighbour)];
      subtract(merged.right, neighbour, made.count);
      add(token, neighbour, made.count - (neighbour == merged.left ? in_runs : 0), made.positions);
      made.count = 0;
    }
    left_seen_.clear();
    right_seen_.clear();
  }

  void subtract(std::int32_t left, std::int32_t right, std::int64_t count) {
    if (const std::int32_t number = numbers_.find(left, right).id; number >= 0) {
      pairs_[static_cast<std::size_t>(number)].count -= count;
    }
  }

  /// A pair that occurs too seldom is dropped: it can only become rarer.
  void add(std::int32_t left,
           std::int32_t right,
           std::int64_t count,
           std::vector<std::uint32_t>& positions) {
    std::int32_t number = numbers_.find(left, right).id;
    if (number < 0) {
      if (count < kLeastCount) {
        positions.clear();
        return;
      }
      number = static_cast<std::int32_t>(pairs_.size());
      numbers_.put(left, right, {.id = number});
      pairs_.push_back({.left = left, .right = right});
    }
    Pair& pair = pairs_[static_cast<std::size_t>(number)];
    pair.count += count;
    if (pair.positions.empty()) {
      pair.positions = std::exchange(positions, {});
    } else {
      pair.positions.insert(pair.positions.end(), positions.begin(), positions.end());
      positions.clear();
    }
    push(number);
  }

  std::vector<Symbol>& symbols_;
  const std::vector<std::int64_t>& counts_;
  std::vector<std::string>& tokens_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<Pair> pairs_;
  MergeTable numbers_{std::size_t{1} << 16U};  ///< of pairs
  std::priority_queue<Candidate, std::vector<Candidate>, ComesLater> queue_;
  std::vector<std::pair<std::int32_t, std::int32_t>> merges_;
  // The pairs that one merge creates beside it, by the neighbour's id.
  std::vector<NewPair> left_;
  std::vector<NewPair> right_;
  std::vector<std::int32_t> left_seen_;
  std::vector<std::int32_t> right_seen_;
};

BpeTrainer::BpeTrainer(std::vector<std::string> specials)
    : tokens_(std::move(specials)), num_specials_(tokens_.size()) {
  // The bytes come in the order of their characters.
  std::array<unsigned char, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  std::sort(bytes.begin(), bytes.end(), [](unsigned char a, unsigned char b) {
    return byte_characters()[a] < byte_characters()[b];
  });
  for (const unsigned char byte : bytes) {
    ids_of_bytes_[byte] = static_cast<std::int32_t>(tokens_.size());
    tokens_.emplace_back(1, static_cast<char>(byte));
  }
  symbols_.push_back({.id = kBorder, .length = 0, .piece = 0});
}

BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::reserve(std::size_t pieces, std::size_t bytes) {
  counts_.reserve(pieces);
  symbols_.reserve(pieces + bytes + 1);
}

void BpeTrainer::add(std::string_view piece, std::int64_t count) {
  const auto number = static_cast<std::uint32_t>(counts_.size());
  for (const char byte : piece) {
    symbols_.push_back(
        {.id = ids_of_bytes_[static_cast<unsigned char>(byte)], .length = 1, .piece = number});
  }
  symbols_.push_back({.id = kBorder, .length = 0, .piece = number});
  counts_.push_back(count);
  check(symbols_.size() < std::numeric_limits<std::uint32_t>::max(), "{} bytes of pieces",
        symbols_.size());
}

ByteLevelBpe BpeTrainer::train(std::int64_t vocab_size,
                               const std::function<bool(std::int64_t tokens)>& goes_on) {
  Merging merging(*this);
  merging.run(vocab_size, goes_on);
  ByteLevelBpe made;
  std::vector<std::string> characters;
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    const bool is_special = id < num_specials_;
    characters.push_back(is_special ? tokens_[id] : characters_of_bytes(tokens_[id]));
    made.vocabulary.emplace(characters.back(), static_cast<std::int32_t>(id));
    if (is_special) {
      made.specials.push_back({tokens_[id], static_cast<std::int32_t>(id)});
    }
  }
  for (const auto& [left, right] : merging.merges()) {
    made.merges.emplace_back(characters[static_cast<std::size_t>(left)],
                             characters[static_cast<std::size_t>(right)]);
  }
  return made;
}

}  // namespace dstrain
