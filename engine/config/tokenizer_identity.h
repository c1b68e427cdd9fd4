// TokenizerIdentity: says which tokenizer made ids. It goes with the ids from prepare-data into
// checkpoints, so that data, weights and tokenizer that do not belong together are detected before
// a step is trained.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace dstrain {

struct TokenizerIdentity {
  std::string kind;             ///< "bytes", "sentencepiece", "huggingface" (a tokenizer.json)
  std::string hash;             ///< content_hash of its file; of bytes, which has none: empty
  std::int64_t vocab_size = 0;  ///< ids are below it, document_end too; 0: not known
  std::string file{};           ///< its name beside data and weights: "tokenizer.model"
  std::optional<std::int32_t> document_end{};  ///< id that the data put behind each document

  bool operator==(const TokenizerIdentity&) const = default;
};

/// XXH3, 128 bits, in 32 hexadecimal digits: what `xxh128sum` prints of a file with this content.
std::string content_hash(std::string_view content);

/// Whether both are the same tokenizer; nothing where their kinds do not show it: a SentencePiece
/// model may be that of a tokenizer.json.
std::optional<bool> is_same_tokenizer(const TokenizerIdentity& a, const TokenizerIdentity& b);

/// "bytes (256 ids)", "sentencepiece tokenizer.model (32000 ids, hash 7f0c33a1…)".
std::string describe(const TokenizerIdentity& identity);

nlohmann::ordered_json to_json(const TokenizerIdentity& identity);
/// Returns nothing if `value` is not what to_json makes.
std::optional<TokenizerIdentity> parse_tokenizer_identity(const nlohmann::json& value);

}  // namespace dstrain
