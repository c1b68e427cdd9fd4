// Byte-level BPE as it is learnt: the merges are those of the plainest way to find them.
#include "engine/tokenizer/train_bpe.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/byte_characters.h"
#include "engine/tokenizer/huggingface_tokenizer.h"
#include "engine/tokenizer/json_part.h"
#include "engine/tokenizer/piece_counter.h"

namespace dstrain {
namespace {

using Pieces = std::map<std::string, std::int64_t>;
using Merges = std::vector<std::pair<std::string, std::string>>;

ByteLevelBpe trained(const Pieces& pieces, std::int64_t vocab_size) {
  BpeTrainer trainer({"<end>"});
  for (const auto& [piece, count] : pieces) {
    trainer.add(piece, count);
  }
  return trainer.train(vocab_size, [](std::int64_t) { return true; });
}

/// Counts all pairs anew for each merge. `is_unique`: no two merges make the same token.
struct PlainTraining {
  explicit PlainTraining(const Pieces& pieces) {
    std::vector<std::string> characters(byte_characters().begin(), byte_characters().end());
    std::sort(characters.begin(), characters.end());
    tokens.emplace_back("<end>");
    tokens.insert(tokens.end(), characters.begin(), characters.end());
    for (const auto& [piece, count] : pieces) {
      std::vector<int> ids;
      for (const char byte : piece) {
        const std::string& character = byte_characters()[static_cast<unsigned char>(byte)];
        ids.push_back(
            static_cast<int>(std::find(tokens.begin(), tokens.end(), character) - tokens.begin()));
      }
      words.emplace_back(ids, count);
    }
  }

  void run(std::size_t vocab_size) {
    while (tokens.size() < vocab_size && is_unique) {
      std::map<std::pair<int, int>, std::int64_t> counts;
      for (const auto& [ids, count] : words) {
        for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
          counts[{ids[i], ids[i + 1]}] += count;
        }
      }
      std::pair<int, int> best;
      std::int64_t most = 1;
      for (const auto& [pair, count] : counts) {  // lower ids first
        if (count > most) {
          best = pair;
          most = count;
        }
      }
      if (most == 1) return;
      merge(best);
    }
  }

  void merge(std::pair<int, int> pair) {
    const std::string& left = tokens[static_cast<std::size_t>(pair.first)];
    const std::string& right = tokens[static_cast<std::size_t>(pair.second)];
    merges.emplace_back(left, right);
    const std::string text = left + right;
    is_unique = std::find(tokens.begin(), tokens.end(), text) == tokens.end();
    const int token = static_cast<int>(tokens.size());
    tokens.push_back(text);
    for (auto& [ids, count] : words) {
      std::vector<int> out;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool is_pair =
            i + 1 < ids.size() && ids[i] == pair.first && ids[i + 1] == pair.second;
        out.push_back(is_pair ? token : ids[i]);
        i += is_pair ? 1 : 0;
      }
      ids = out;
    }
  }

  std::vector<std::string> tokens;
  std::vector<std::pair<std::vector<int>, std::int64_t>> words;
  Merges merges;
  bool is_unique = true;
};

TEST_CASE("the merges are those that counting all pairs anew each time finds",
          "[tokenizer][train_bpe]") {
  std::mt19937 random(7);
  const auto below = [&](unsigned bound) { return static_cast<int>(random() % bound); };
  int compared = 0;
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    Pieces pieces;
    const auto letters = static_cast<unsigned>(1 + below(5));  // 1: runs alone
    for (int i = below(20); i >= 0; --i) {
      std::string piece;
      for (int length = 1 + below(14); length > 0; --length) {
        piece += below(9) == 0 ? static_cast<char>(0xC3) : static_cast<char>('a' + below(letters));
      }
      pieces[piece] += 1 + below(6);
    }
    const std::int64_t vocab_size = 258 + below(40);
    PlainTraining plain(pieces);
    plain.run(static_cast<std::size_t>(vocab_size));
    if (!plain.is_unique) continue;
    ++compared;
    const ByteLevelBpe made = trained(pieces, vocab_size);
    CHECK(made.merges == plain.merges);
    CHECK(made.vocabulary.size() == plain.tokens.size());
    for (const auto& [token, id] : made.vocabulary) {
      CHECK(plain.tokens.at(static_cast<std::size_t>(id)) == token);
    }
  }
  CHECK(compared > 150);
}

TEST_CASE("of pairs that occur equally often the one of the lower ids is merged first",
          "[tokenizer][train_bpe]") {
  // The bytes come in the order of their characters: printable ones, then space ("Ġ"), 0xC3 itself.
  const ByteLevelBpe made = trained({{"zb", 2}, {"za", 2}, {"b c", 2}, {"ab", 3}}, 261);
  CHECK(made.merges == Merges{{"a", "b"}, {"b", "\u0120"}, {"z", "a"}, {"z", "b"}});
  CHECK(made.vocabulary.at("<end>") == 0);
  CHECK(made.vocabulary.at("!") == 1);
  CHECK(made.vocabulary.at("ab") == 257);
}

TEST_CASE("a run and a piece of a MiB are merged in a moment", "[tokenizer][train_bpe]") {
  std::string piece(std::size_t{1} << 20, 'x');
  const ByteLevelBpe run = trained({{piece, 1}}, 270);
  CHECK(run.merges.front() == std::pair<std::string, std::string>("x", "x"));
  CHECK(run.merges.back().first.size() == 1U << 12U);
  std::mt19937 random(1);
  for (char& byte : piece) {
    byte = static_cast<char>('a' + random() % 16);
  }
  CHECK(trained({{piece, 1}}, 3000).vocabulary.size() == 3000);
}

TEST_CASE("training ends early where no pair occurs twice, and where it is told to",
          "[tokenizer][train_bpe]") {
  CHECK(trained({{"abc", 1}, {"xyz", 1}}, 1000).vocabulary.size() == 257);
  CHECK(trained({{"abc", 2}}, 1000).merges == Merges{{"a", "b"}, {"ab", "c"}});
  CHECK(trained({}, 1000).vocabulary.size() == 257);
  BpeTrainer trainer({});
  trainer.add("abc", 2);
  CHECK(trainer.train(1000, [](std::int64_t) { return false; }).merges.empty());
}

/// The steps of a tokenizer with this split.
std::unique_ptr<PreTokenizer> split_by(const char* expression) {
  static nlohmann::json document;
  document = nlohmann::json::parse(to_tokenizer_json({.split = expression}));
  return PreTokenizer::make(JsonPart(document, "t")["pre_tokenizer"]);
}

Pieces counted_pieces(const PieceCounter& counter) {
  Pieces pieces;
  counter.for_each([&](std::string_view piece, std::int64_t count) {
    CHECK(pieces.emplace(piece, count).second);
  });
  return pieces;
}

TEST_CASE("pieces are counted by several threads as by one, up to a limit that texts decide",
          "[tokenizer][train_bpe]") {
  const auto split = split_by(" ?[a-z]+|[0-9]|\\n");
  std::vector<std::string> texts;
  for (int i = 0; i < 400; ++i) {
    texts.push_back("the word" + std::string(1, static_cast<char>('a' + i % 26)) + " " +
                    std::to_string(i) + "\n");
  }
  const auto count = [&](int threads, int halvings, std::int64_t most) {
    auto counter = std::make_unique<PieceCounter>(
        *split, halvings, PieceCounter::Limits{.pieces = most, .bytes = most * 10});
    {
      std::vector<std::jthread> pool;
      for (int thread = 0; thread < threads; ++thread) {
        pool.emplace_back([&, thread] {
          std::vector<std::int32_t> ids;
          for (std::size_t i = static_cast<std::size_t>(thread); i < texts.size();
               i += static_cast<std::size_t>(threads)) {
            counter->encode_part(texts[i], TextPlace::kBegins, ids);
          }
        });
      }
    }
    counter->finish();
    return counter;
  };
  const auto whole = count(1, 0, 1000);
  const Pieces all = counted_pieces(*whole);
  CHECK_FALSE(whole->is_full());
  CHECK(all.at("the") == 400);
  CHECK(all.at("\n") == 400);
  CHECK(all.at(" wordc") == 16);
  CHECK(whole->num_pieces() == std::ssize(all));
  CHECK(counted_pieces(*count(4, 0, 1000)) == all);
  const Pieces half = counted_pieces(*count(1, 1, 1000));
  CHECK(half.at("the") > 150);
  CHECK(half.at("the") < 250);
  CHECK(counted_pieces(*count(3, 1, 1000)) == half);
  for (const int threads : {1, 4}) {
    CHECK(count(threads, 0, std::ssize(all) - 1)->is_full());
    CHECK_FALSE(count(threads, 0, std::ssize(all))->is_full());
  }
}

TEST_CASE("what is learnt is the tokenizer that encodes so", "[tokenizer][train_bpe]") {
  ByteLevelBpe made = trained({{" hello", 5}, {"hello", 3}, {" hell", 2}, {"\n", 9}}, 263);
  made.split = " ?[a-z]+|\\n";
  const auto tokenizer = make_huggingface_tokenizer(to_tokenizer_json(made), "t");
  std::vector<std::int32_t> ids;
  tokenizer->encode("hello hell<end>\n", ids);
  CHECK(tokenizer->vocab_size() == 263);
  CHECK(tokenizer->decode(ids) == "hello hell\n");
  CHECK(std::count(ids.begin(), ids.end(), 0) == 1);  // the end token
  CHECK(ids.size() == 4);
}

}  // namespace
}  // namespace dstrain
