#include "engine/data/megatron_writer.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/config/config_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::int64_t kLongestSequence = std::int64_t{1} << 30;

}  // namespace

TokenType type_for_vocabulary(std::int64_t vocab_size) {
  if (vocab_size <= 256) {
    return TokenType::kU8;
  }
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

std::string MegatronWriter::content() const {
  return checksum_text(hash_before_.value());
}

std::string MegatronWriter::open_content() const {
  return checksum_text(hash_open_.value());
}

MegatronWriter::MegatronWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix),
      type_(type),
      bin_(prefix + ".bin"),
      idx_(prefix + ".idx"),
      hashes_(hashes_path(prefix)) {
  check(type == TokenType::kU8 || type == TokenType::kU16 || type == TokenType::kI32,
        "token files are written as u8, u16 or i32, not {}", name_of(type));
}

MegatronWriter::MegatronWriter(const std::string& prefix, TokenType type, std::int64_t num_tokens)
    : prefix_(prefix),
      type_(type),
      bin_(prefix + ".bin", num_tokens * bytes_per_token(type)),
      idx_(prefix + ".idx"),
      hashes_(hashes_path(prefix)),
      kept_(ByteStream::open(partial_path(prefix + ".bin"), Compression::kNone)) {}

void MegatronWriter::keep() {
  bin_.keep();
}

void MegatronWriter::restore(std::int64_t num_tokens) {
  constexpr std::int64_t kStep = std::int64_t{1} << 20;
  const auto width = static_cast<std::size_t>(bytes_per_token(type_));
  std::vector<std::int32_t> ids;
  while (num_tokens > 0) {
    const auto step = static_cast<std::size_t>(std::min(num_tokens, kStep));
    narrow_.resize(step * width);
    auto* const bytes = reinterpret_cast<char*>(narrow_.data());
    for (std::size_t have = 0; have < narrow_.size();) {
      const std::size_t got = kept_->read({bytes + have, narrow_.size() - have});
      if (got == 0) {
        throw ReadFailure{
            fmt::format("{}.bin.partial has fewer tokens than were recorded", prefix_)};
      }
      have += got;
    }
    ids.assign(step, 0);
    for (std::size_t i = 0; i < step; ++i) {
      std::memcpy(&ids[i], narrow_.data() + i * width, width);  // little-endian, and none is < 0
    }
    stripes_.add(narrow_);
    count(ids);
    num_tokens -= static_cast<std::int64_t>(step);
  }
}

void MegatronWriter::append_bytes(std::span<const std::byte> bytes) {
  bin_.append(bytes);
  stripes_.add(bytes);
}

template <typename T>
void MegatronWriter::append_as(std::span<const std::int32_t> ids) {
  narrow_.resize(ids.size() * sizeof(T));
  auto* out = reinterpret_cast<T*>(narrow_.data());  // new'd storage: aligned for any T
  std::transform(ids.begin(), ids.end(), out, [](std::int32_t id) { return static_cast<T>(id); });
  append_bytes(narrow_);
}

void MegatronWriter::append(std::span<const std::int32_t> ids) {
  switch (type_) {
    case TokenType::kU8:
      append_as<std::uint8_t>(ids);
      break;
    case TokenType::kU16:
      append_as<std::uint16_t>(ids);
      break;
    default:
      append_bytes(std::as_bytes(ids));
  }
  count(ids);
}

void MegatronWriter::count(std::span<const std::int32_t> ids) {
  hash_open_.add(std::as_bytes(ids));
  tokens_open_ += static_cast<std::int64_t>(ids.size());
}

void MegatronWriter::end_document() {
  std::int32_t sequences = 0;
  std::int64_t left = tokens_open_;
  do {
    const std::int64_t length = std::min(left, kLongestSequence);
    sequence_lengths_.push_back(static_cast<std::int32_t>(length));
    left -= length;
    ++sequences;
  } while (left > 0);
  close_document(sequences);
}

void MegatronWriter::append_sample(std::span<const std::int32_t> ids, const SampleParts& parts) {
  append(ids);
  std::int32_t sequences = 0;
  const auto add_sequence = [&](std::size_t begin, std::size_t end, bool is_trained) {
    if (begin == end) {
      return;
    }
    if (static_cast<std::int64_t>(end - begin) > kLongestSequence) {
      throw ConfigError(fmt::format("{}: a sample with {} tokens in one part, of at most {}",
                                    prefix_, end - begin, kLongestSequence));
    }
    sequence_lengths_.push_back(static_cast<std::int32_t>(end - begin));
    sequence_modes_.push_back(
        static_cast<std::uint8_t>(parts.mode | (is_trained ? 0 : kContextMode)));
    // The same ids with other answers are other content.
    hash_open_.add_value(std::uint64_t{end} << 8U | sequence_modes_.back());
    ++sequences;
  };
  std::size_t at = 0;
  for (const auto& [begin, end] : parts.trained) {
    add_sequence(at, begin, false);
    add_sequence(begin, end, true);
    at = end;
  }
  add_sequence(at, ids.size(), false);
  close_document(sequences);
}

void MegatronWriter::close_document(std::int32_t sequences) {
  sequences_of_document_.push_back(sequences);
  hash_before_.add_value(hash_open_.value());
  hash_open_.reset();
  stripes_.keep();
  tokens_before_ += tokens_open_;
  tokens_open_ = 0;
}

void MegatronWriter::discard_document() {
  hash_open_.reset();
  tokens_open_ = 0;
  stripes_.take_back();
  bin_.shrink_to(tokens_before_ * bytes_per_token(type_));
}

void MegatronWriter::finish() {
  check(tokens_open_ == 0, "{}: a document is still open", prefix_);
  check(sequence_modes_.empty() || sequence_modes_.size() == sequence_lengths_.size(),
        "{}: samples and other documents in one file", prefix_);
  RunningChecksum index_hash;
  const auto append_index = [&](std::span<const std::byte> bytes) {
    idx_.append(bytes);
    index_hash.add(bytes);
  };
  const auto append_value = [&]<typename T>(const T& value) {
    append_index(std::as_bytes(std::span<const T, 1>(&value, 1)));
  };
  append_index(std::as_bytes(std::span(kMegatronMagic)));
  append_value(kMegatronVersion);
  append_value(type_);
  append_value(static_cast<std::uint64_t>(sequence_lengths_.size()));
  append_value(static_cast<std::uint64_t>(sequences_of_document_.size() + 1));
  for (const std::int32_t length : sequence_lengths_) {
    append_value(length);
  }
  std::int64_t offset = 0;
  for (const std::int32_t length : sequence_lengths_) {
    append_value(offset);
    offset += length * bytes_per_token(type_);
  }
  std::int64_t sequence = 0;
  append_value(sequence);
  for (const std::int32_t count : sequences_of_document_) {
    sequence += count;
    append_value(sequence);
  }
  append_index(std::as_bytes(std::span(sequence_modes_)));
  hashes_.append(stripes_.file_content(idx_.num_bytes(), index_hash.value()));
  bin_.sync();
  idx_.sync();
  hashes_.sync();
}

void MegatronWriter::publish() {
  const std::string folder = std::filesystem::path(prefix_).parent_path().string();
  ::unlink((prefix_ + ".idx").c_str());
  ::unlink(hashes_path(prefix_).c_str());
  bin_.publish();
  hashes_.publish();
  idx_.publish();
  sync_folder(folder.empty() ? "." : folder);
}

}  // namespace dstrain
