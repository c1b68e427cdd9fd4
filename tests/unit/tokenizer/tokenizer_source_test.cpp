// A tokenizer by the name that a user gives, in each of the forms that files have.
#include "engine/tokenizer/tokenizer_source.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/byte_characters.h"
#include "engine/tokenizer/byte_level_json.h"
#include "engine/tokenizer/huggingface_tokenizer.h"
#include "engine/tokenizer/older_vocabularies.h"
#include "engine/tokenizer/pattern.h"
#include "tests/unit/data/scratch_folder.h"
#include "tests/unit/tokenizer/golden_tokenizers.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using test::golden_tokenizer_json;
using test::ScratchFolder;
using test::write_file;
using Ids = std::vector<std::int32_t>;

constexpr const char* kText = "Hello  world, don't\n\n stop<|endoftext|>123 naïve\t你好";

Ids encoded(const Tokenizer& tokenizer, const std::string& text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// vocab.json and merges.txt of a tokenizer.json.
void write_older_files(const std::string& name, const std::string& folder) {
  const json model = json::parse(golden_tokenizer_json(name))["model"];
  write_file(folder + "/vocab.json", model["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const json& merge : model["merges"]) {
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  }
  write_file(folder + "/merges.txt", merges);
}

TEST_CASE("a file or a folder is known by what it holds", "[tokenizer]") {
  const ScratchFolder folder;
  const std::string content = golden_tokenizer_json("qwen2");
  write_file(folder / "m/tokenizer.json", content);
  write_file(folder / "m/tokenizer_config.json",
             R"({"eos_token": {"content": "<|im_end|>"}, "bos_token": null})");
  write_file(folder / "elsewhere", content);
  for (const std::string& name : {folder / "m", folder / "m/tokenizer.json",
                                  "huggingface:" + (folder / "m"), folder / "elsewhere"}) {
    CAPTURE(name);
    const TokenizerSource source = TokenizerSource::find(name);
    CHECK(source.identity() == TokenizerIdentity{.kind = "huggingface",
                                                 .hash = content_hash(content),
                                                 .file = "tokenizer.json"});
    CHECK(source.make()->end_of_text().has_value() == (name != folder / "elsewhere"));
  }
  const TokenizerSource source = TokenizerSource::find(folder / "m");
  CHECK(source.name == "huggingface:" + (folder / "m/tokenizer.json"));
  CHECK(source.files.size() == 2);
  CHECK(source.make()->decode(Ids{*source.make()->end_of_text()}).empty());
  CHECK(TokenizerSource::is_in(folder / "m"));
  CHECK_FALSE(TokenizerSource::is_in(folder.path()));
  CHECK(TokenizerSource::find("bytes").identity() ==
        TokenizerIdentity{.kind = "bytes", .hash = ""});
  CHECK_THROWS_WITH(TokenizerSource::find(folder.path()),
                    Contains("holds no tokenizer; expected tokenizer.json"));
  CHECK_THROWS_WITH(TokenizerSource::find("no/such"),
                    Contains("expected bytes, or an existing file"));
}

TEST_CASE("vocab.json and merges.txt make the tokenizer.json of their class", "[tokenizer]") {
  const ScratchFolder folder;
  const auto golden = [](const char* name) {
    return encoded(*make_huggingface_tokenizer(golden_tokenizer_json(name), name), kText);
  };
  write_older_files("gpt2", folder / "gpt2");
  CHECK(encoded(*Tokenizer::make(folder / "gpt2"), kText) == golden("gpt2"));
  write_older_files("qwen2", folder / "qwen2");
  write_file(folder / "qwen2/tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast",
    "added_tokens_decoder": {"0": {"content": "<|endoftext|>", "special": true}}})");
  CHECK(encoded(*Tokenizer::make(folder / "qwen2"), kText) == golden("qwen2"));
  write_file(folder / "gpt2/tokenizer_config.json", R"({"tokenizer_class": "CLIPTokenizer"})");
  CHECK_THROWS_WITH(Tokenizer::make(folder / "gpt2"), Contains("how a CLIPTokenizer splits"));
  write_file(folder / "qwen2/merges.txt", "#version\na b c\n");
  CHECK_THROWS_WITH(Tokenizer::make(folder / "qwen2"),
                    Contains("merges.txt:2: expected two tokens"));
}

TEST_CASE("a rank file becomes the tokenizer that has so many tokens", "[tokenizer]") {
  // GPT-2's number of ranks: the bytes, two words with what leads to them, and made-up ones.
  const auto line = [](const char* base64, int rank) {
    return std::string(base64) + " " + std::to_string(rank) + "\n";
  };
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string ranks;
  for (unsigned byte = 0; byte < 256; ++byte) {
    ranks += {kDigits[byte >> 2U], kDigits[(byte & 3U) << 4U], '=', '='};
    ranks += " " + std::to_string(byte) + "\n";
  }
  ranks += line("YWE=", 256) + line("YWFh", 257) + line("IHRo", 258) + line("dGg=", 259);
  CHECK(looks_like_ranks(ranks));
  CHECK_FALSE(looks_like_ranks("some text\n"));
  CHECK_THROWS_WITH(tokenizer_json_of_ranks(ranks, "r"),
                    Contains("r: a rank file of 260 tokens") && Contains("r50k_base (50256)"));
  for (int rank = 260; rank < 50256; ++rank) {
    std::string token = "zzzz";  // three bytes that nothing leads to: 0xCF 0x3C 0xF3, counted up
    for (int i = 0, left = rank; i < 3; ++i, left /= 64) {
      token[static_cast<std::size_t>(i) + 1] = kDigits[static_cast<std::size_t>(left % 64)];
    }
    ranks += token + " " + std::to_string(rank) + "\n";
  }
  const ScratchFolder folder;
  write_file(folder / "r50k_base.tiktoken", ranks);
  const TokenizerSource source = TokenizerSource::find(folder / "r50k_base.tiktoken");
  CHECK(source.name == "tiktoken:" + (folder / "r50k_base.tiktoken"));
  CHECK(source.identity().kind == "huggingface");
  const auto tokenizer = source.make();
  CHECK(tokenizer->vocab_size() == 50257);
  // "aaa" whole; four: the pair first, from the left; " th" is merged by its rank, before "th".
  CHECK(encoded(*tokenizer, "aaa") == Ids{257});
  CHECK(encoded(*tokenizer, "aaaa") == Ids{256, 256});
  CHECK(encoded(*tokenizer, "aaaaa") == Ids{256, 257});
  CHECK(encoded(*tokenizer, "x th<|endoftext|>") == Ids{120, 258, 50256});
  CHECK(tokenizer->decode(Ids{120, 258, 50256}) == "x th");
  write_file(folder / "twice", line("YQ==", 1) + line("YQ==", 2));
  CHECK_THROWS_WITH(TokenizerSource::find("tiktoken:" + (folder / "twice")), Contains("twice:2: "));
  write_file(folder / "short", "YQ== 1\nYg=");
  CHECK_THROWS_WITH(TokenizerSource::find("tiktoken:" + (folder / "short")),
                    Contains("short:2: expected a token in base64 and its rank"));
}

TEST_CASE("white space at the end of a text is one piece for cl100k", "[tokenizer]") {
  using Pieces = std::vector<std::string>;
  const auto pieces = [](const char* expression, const std::string& text) {
    const Pattern pattern = Pattern::regular_expression(expression);
    Pattern::Search search(pattern);
    Pieces found;
    search.start(text);
    while (search.next()) {
      found.push_back(text.substr(search.begin(), search.end() - search.begin()));
    }
    return found;
  };
  // As the pattern in tiktoken 0.14's cl100k_base gives them.
  CHECK(pieces(kCl100kSplit, "a \n  ") == Pieces{"a", " \n  "});
  CHECK(pieces(kCl100kSplit, "a \n  b") == Pieces{"a", " \n", " ", " b"});
  CHECK(pieces(kCl100kSplit, "a!\n\n ") == Pieces{"a", "!\n\n", " "});
  CHECK(pieces(kCl100kSplit, "  \n\n  x  \n y \n\n\t") ==
        Pieces{"  \n\n", " ", " x", "  \n", " y", " \n\n\t"});
  CHECK(pieces(kGpt4Split, "a \n  ") == Pieces{"a", " \n", "  "});  // LLaMA 3's own
}

}  // namespace
}  // namespace dstrain
