#include "engine/data/document_index.h"

#include <cstring>
#include <filesystem>
#include <system_error>

#include "engine/config/config_error.h"

namespace dstrain {

std::unique_ptr<DocumentIndex> DocumentIndex::open(const std::string& prefix) {
  const bool has_suffix = prefix.ends_with(".bin") || prefix.ends_with(".idx");
  const std::string stem = has_suffix ? prefix.substr(0, prefix.size() - 4) : prefix;
  std::error_code ignored;
  if (!std::filesystem::exists(stem + ".idx", ignored)) {
    return nullptr;
  }
  return std::unique_ptr<DocumentIndex>(new DocumentIndex(stem + ".idx", stem + ".bin"));
}

DocumentIndex::DocumentIndex(const std::string& idx_path, const std::string& bin_path)
    : index_(MappedFile::open<ConfigError>(idx_path)),
      facts_(read_megatron_index(
          index_, bin_path, MappedFile::open<ConfigError>(bin_path).num_bytes())) {}

template <typename T>
T DocumentIndex::value_at(std::int64_t byte) const {
  T value{};
  std::memcpy(&value, index_.bytes().data() + byte, sizeof value);
  return value;
}

std::int64_t DocumentIndex::first_token(std::int64_t document) const {
  const std::int64_t offsets = kMegatronHeaderBytes + 4 * facts_.num_sequences;
  const std::int64_t documents = offsets + 8 * facts_.num_sequences;
  const auto sequence = value_at<std::int64_t>(documents + 8 * document);
  return sequence == facts_.num_sequences
             ? facts_.num_tokens
             : value_at<std::int64_t>(offsets + 8 * sequence) / bytes_per_token(facts_.type);
}

std::uint8_t DocumentIndex::first_mode(std::int64_t document) const {
  const std::int64_t documents = kMegatronHeaderBytes + 12 * facts_.num_sequences;
  const std::int64_t modes = documents + 8 * (facts_.num_documents + 1);
  const auto first = value_at<std::int64_t>(documents + 8 * document);
  const auto end = value_at<std::int64_t>(documents + 8 * (document + 1));
  return first < end ? value_at<std::uint8_t>(modes + first) : std::uint8_t{0};
}

std::vector<DocumentIndex::Part> DocumentIndex::parts(std::int64_t document) const {
  const std::int64_t lengths = kMegatronHeaderBytes;
  const std::int64_t documents = lengths + 12 * facts_.num_sequences;
  const std::int64_t modes = documents + 8 * (facts_.num_documents + 1);
  const auto end = value_at<std::int64_t>(documents + 8 * (document + 1));
  std::vector<Part> parts;
  std::int64_t begin = first_token(document);
  for (auto at = value_at<std::int64_t>(documents + 8 * document); at < end; ++at) {
    const std::int64_t size = value_at<std::int32_t>(lengths + 4 * at);
    parts.push_back({begin, size, value_at<std::uint8_t>(modes + at)});
    begin += size;
  }
  return parts;
}

std::int64_t DocumentIndex::document_of(std::int64_t token) const {
  // The last document that begins at the token or before it.
  std::int64_t low = 0;
  std::int64_t high = facts_.num_documents;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (first_token(middle) <= token ? low : high) = middle;
  }
  return low;
}

}  // namespace dstrain
