#include "engine/data/megatron_index.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int64_t>::max() / 32;

/// Values of an unaligned array, copied out one by one, which compiles to plain loads.
template <typename T>
T value_at(const MappedFile& file, std::int64_t offset) {
  T value;
  std::memcpy(&value, file.bytes().data() + offset, sizeof(T));
  return value;
}

template <typename... Args>
[[noreturn]] void fail(const MappedFile& file,
                       std::int64_t offset,
                       fmt::format_string<Args...> why,
                       Args&&... args) {
  throw ConfigError(fmt::format("{}: at byte {}: {}", file.path(), offset,
                                fmt::format(why, std::forward<Args>(args)...)));
}

struct Header {
  TokenType type;
  std::int64_t num_sequences;
  std::int64_t num_document_entries;
};

Header read_header(const MappedFile& index) {
  if (index.num_bytes() < kMegatronHeaderBytes) {
    throw ConfigError(
        fmt::format("{}: truncated: it has {} bytes, the header of a Megatron .idx file alone {}",
                    index.path(), index.num_bytes(), kMegatronHeaderBytes));
  }
  if (std::memcmp(index.bytes().data(), kMegatronMagic, sizeof kMegatronMagic) != 0) {
    const bool old = std::memcmp(index.bytes().data(), "TNTIDX", 6) == 0;
    fail(index, 0, "not a Megatron .idx file: it should begin with \"MMIDIDX\"{}",
         old ? "; this is fairseq's older TNTIDX format, prepare the data again" : "");
  }
  const auto version = value_at<std::uint64_t>(index, 9);
  if (version != kMegatronVersion) {
    fail(index, 9, "version {} of the .idx format, only version {} exists", version,
         kMegatronVersion);
  }
  const auto code = value_at<std::uint8_t>(index, 17);
  if (code < 1 || code > 8) {
    fail(index, 17, "token type code {}, expected 1 … 8", code);
  }
  const auto type = static_cast<TokenType>(code);
  if (type == TokenType::kF32 || type == TokenType::kF64) {
    fail(index, 17, "the .bin file holds {} values: token ids are integers", name_of(type));
  }
  const auto sequences = value_at<std::uint64_t>(index, 18);
  const auto documents = value_at<std::uint64_t>(index, 26);
  if (sequences > static_cast<std::uint64_t>(kMaxCount)) {
    fail(index, 18, "{} sequences are impossible: the file is damaged", sequences);
  }
  if (documents > static_cast<std::uint64_t>(kMaxCount)) {
    fail(index, 26, "{} documents are impossible: the file is damaged", documents);
  }
  return {type, static_cast<std::int64_t>(sequences), static_cast<std::int64_t>(documents)};
}

/// Returns whether it has modes.
bool check_size(const MappedFile& index, const Header& header) {
  const std::int64_t expected =
      kMegatronHeaderBytes + 12 * header.num_sequences + 8 * header.num_document_entries;
  const std::int64_t with_modes = expected + header.num_sequences;
  if (index.num_bytes() != expected && index.num_bytes() != with_modes) {
    throw ConfigError(fmt::format(
        "{}: {}: it has {} bytes, {} sequences and {} document entries need {}", index.path(),
        index.num_bytes() < expected ? "truncated" : "has bytes past its end", index.num_bytes(),
        header.num_sequences, header.num_document_entries, expected));
  }
  return index.num_bytes() == with_modes && header.num_sequences > 0;
}

/// Lengths and offsets must tile the .bin file: first at 0, each where the one before ends.
std::int64_t check_sequences(const MappedFile& index,
                             const Header& header,
                             const std::string& bin_path,
                             std::int64_t bin_bytes) {
  const std::int64_t item = bytes_per_token(header.type);
  const std::int64_t lengths = kMegatronHeaderBytes;
  const std::int64_t offsets = lengths + 4 * header.num_sequences;
  std::int64_t end = 0;
  for (std::int64_t s = 0; s < header.num_sequences; ++s) {
    const auto length = value_at<std::int32_t>(index, lengths + 4 * s);
    const auto offset = value_at<std::int64_t>(index, offsets + 8 * s);
    if (length < 0) {
      fail(index, lengths + 4 * s, "sequence {} has {} tokens", s, length);
    }
    if (offset != end) {
      fail(index, offsets + 8 * s,
           "sequence {} begins at byte {} of the .bin file, but the one before it ends at {}", s,
           offset, end);
    }
    end += static_cast<std::int64_t>(length) * item;
  }
  if (end != bin_bytes) {
    throw ConfigError(
        fmt::format("{}: {}: it has {} bytes, {} describes {} tokens of {} byte{} = {} bytes",
                    bin_path, bin_bytes < end ? "truncated" : "has bytes past its end", bin_bytes,
                    index.path(), end / item, item, item == 1 ? "" : "s", end));
  }
  return end / item;
}

/// Document d is sequences [entry d, entry d + 1): from 0, never falling, to the last sequence.
void check_documents(const MappedFile& index, const Header& header) {
  const std::int64_t begin = kMegatronHeaderBytes + 12 * header.num_sequences;
  std::int64_t before = 0;
  for (std::int64_t d = 0; d < header.num_document_entries; ++d) {
    const auto entry = value_at<std::int64_t>(index, begin + 8 * d);
    if (d == 0 && entry != 0) {
      fail(index, begin, "the first document begins at sequence {}, expected 0", entry);
    }
    if (entry < before || entry > header.num_sequences) {
      fail(index, begin + 8 * d, "document {} begins at sequence {}, expected {} … {}", d, entry,
           before, header.num_sequences);
    }
    before = entry;
  }
  if (before != header.num_sequences) {
    fail(index, begin + 8 * header.num_document_entries, "the documents end at sequence {} of {}",
         before, header.num_sequences);
  }
}

}  // namespace

std::int64_t bytes_per_token(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
    case TokenType::kF32:
      return 4;
    case TokenType::kI64:
    case TokenType::kF64:
      return 8;
  }
  check(false, "token type {}", static_cast<int>(type));
  return 0;
}

const char* name_of(TokenType type) {
  constexpr const char* kNames[] = {"?", "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};
  return kNames[static_cast<std::size_t>(type)];
}

MegatronIndex read_megatron_index(const MappedFile& index,
                                  const std::string& bin_path,
                                  std::int64_t bin_bytes) {
  index.expect_sequential_reads();
  const Header header = read_header(index);
  const bool has_modes = check_size(index, header);
  const std::int64_t num_tokens = check_sequences(index, header, bin_path, bin_bytes);
  check_documents(index, header);
  return {.type = header.type,
          .num_sequences = header.num_sequences,
          .num_documents = header.num_document_entries > 0 ? header.num_document_entries - 1 : 0,
          .num_tokens = num_tokens,
          .has_modes = has_modes};
}

}  // namespace dstrain
