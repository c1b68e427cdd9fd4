// Finds which token file a prefix names, and how its bytes are laid out. Three formats are
// distinguished apart by their content: Megatron's .bin/.idx pair; llm.c's .bin (a header of 1024
// bytes with a magic number); nanoGPT's .bin (no header, u16 ids). The last has no mark of its own,
// so whatever is recognisably something else (text, archives, models) is refused by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/mapped_file.h"
#include "engine/data/megatron_index.h"
#include "engine/data/token_hashes.h"

namespace dstrain {

struct TokenFileLayout {
  std::unique_ptr<MappedFile> file;
  const char* format;       ///< for people: "Megatron", "llm.c", "nanoGPT"
  TokenType type;           ///< llm.c's u32 reads as kI32: ids stay below 2^31
  std::int64_t first_byte;  ///< where the tokens begin
  std::int64_t num_tokens;
  std::unique_ptr<TokenHashes> hashes = nullptr;  ///< of a Megatron pair that has some
};

/// Looks for prefix.idx + prefix.bin, then `prefix` itself, then prefix.bin. Throws ConfigError:
/// what was looked for and which names are near, or what is wrong with the file that was found.
TokenFileLayout find_token_file(const std::string& prefix);
/// Throws as find_token_file() does where none of these is there; opens nothing.
void require_token_file(const std::string& prefix);

}  // namespace dstrain
