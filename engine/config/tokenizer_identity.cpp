#include "engine/config/tokenizer_identity.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

namespace dstrain {

std::string content_hash(std::string_view content) {
  const XXH128_hash_t hash = XXH3_128bits(content.data(), content.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::optional<bool> is_same_tokenizer(const TokenizerIdentity& a, const TokenizerIdentity& b) {
  if (a.kind == b.kind) {
    return a.hash == b.hash;
  }
  if (a.kind == "bytes" || b.kind == "bytes") {
    return false;
  }
  return std::nullopt;
}

std::string describe(const TokenizerIdentity& identity) {
  std::string facts = identity.vocab_size > 0 ? fmt::format("{} ids", identity.vocab_size) : "";
  if (!identity.hash.empty()) {
    facts += fmt::format("{}hash {}…", facts.empty() ? "" : ", ", identity.hash.substr(0, 8));
  }
  return fmt::format("{}{}{}", identity.kind, identity.file.empty() ? "" : " " + identity.file,
                     facts.empty() ? "" : " (" + facts + ")");
}

nlohmann::ordered_json to_json(const TokenizerIdentity& identity) {
  nlohmann::ordered_json json{{"kind", identity.kind}};
  if (!identity.hash.empty()) json["xxh128"] = identity.hash;
  if (identity.vocab_size > 0) json["vocab_size"] = identity.vocab_size;
  if (!identity.file.empty()) json["file"] = identity.file;
  if (identity.document_end) json["document_end"] = *identity.document_end;
  return json;
}

std::optional<TokenizerIdentity> parse_tokenizer_identity(const nlohmann::json& value) {
  TokenizerIdentity identity;
  try {
    value.at("kind").get_to(identity.kind);
    identity.hash = value.value("xxh128", "");
    identity.vocab_size = value.value("vocab_size", std::int64_t{0});
    identity.file = value.value("file", "");
    if (value.contains("document_end")) {
      identity.document_end = value.at("document_end").get<std::int32_t>();
    }
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  // Only a plain name is accepted, so that files are read only beside the description that names
  // them.
  const bool is_name = identity.file.find('/') == std::string::npos;
  return identity.kind.empty() || !is_name ? std::nullopt : std::optional(identity);
}

}  // namespace dstrain
