// Megatron's indexed data set: PREFIX.bin holds token ids back to back, PREFIX.idx says their type
// and where sequences and documents begin. Layout of the .idx (little-endian, arrays unaligned):
//    0  "MMIDIDX\0\0"   9  u64 version = 1   17  u8 token type   18  u64 S sequences
//   26  u64 D, documents + 1   34  i32[S] tokens   …  i64[S] byte offsets in the .bin
//    …  i64[D] first sequence of each document, then S   (…  i8[S] modes, in multimodal files)
// In fine-tuning data, a sequence is a part of a sample that is all trained, or all context, and
// its mode says which.
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/mapped_file.h"

namespace dstrain {

/// The modes of fine-tuning data: bits.
inline constexpr std::uint8_t kContextMode = 1;   ///< not trained: only what answers follow
inline constexpr std::uint8_t kChosenMode = 2;    ///< of a pair; or an answer that was liked
inline constexpr std::uint8_t kRejectedMode = 4;  ///< of a pair, behind its chosen one; or disliked

/// The type codes of the .idx file.
enum class TokenType : std::uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kF64 = 6,
  kF32 = 7,
  kU16 = 8,
};

inline constexpr char kMegatronMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr std::uint64_t kMegatronVersion = 1;
inline constexpr std::int64_t kMegatronHeaderBytes = 34;

[[nodiscard]] std::int64_t bytes_per_token(TokenType type);
[[nodiscard]] const char* name_of(TokenType type);

struct MegatronIndex {
  TokenType type;
  std::int64_t num_sequences;
  std::int64_t num_documents;
  std::int64_t num_tokens;
  bool has_modes = false;
};

/// Reads `index` and checks all of it, against itself and against the size of the .bin file: the
/// sequences must cover the .bin file exactly. Throws ConfigError with file, offset and reason.
MegatronIndex read_megatron_index(const MappedFile& index,
                                  const std::string& bin_path,
                                  std::int64_t bin_bytes);

}  // namespace dstrain
