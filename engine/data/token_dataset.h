// TokenDataset: token files read through mmap, opened and checked before step 1.
//
// Checked at open: names, headers, sizes, the whole index, and that every id is inside the
// vocabulary. That last pass reads the file at memory speed; of files above 8 GiB it reads 4 GiB
// evenly spread, so that a start never takes minutes, and read() checks what is left as it goes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/config/data_config.h"

namespace dstrain {

/// One file (or .bin/.idx pair) of token ids back to back. Read-only, memory-mapped. May be read
/// by several threads at once.
class TokenFile {
 public:
  /// `prefix` names a Megatron pair (prefix.bin + prefix.idx), or a .bin file of nanoGPT or llm.c;
  /// which of them is found by looking at it. Throws ConfigError (file, offset, what is wrong) if
  /// it is missing, truncated, foreign, or holds an id ≥ vocab_size.
  static std::unique_ptr<TokenFile> open(const std::string& prefix, std::int64_t vocab_size);
  TokenFile() = default;
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  virtual ~TokenFile() = default;

  [[nodiscard]] virtual std::int64_t num_tokens() const = 0;
  /// Whether read() would notice a changed byte (token_hashes.h).
  [[nodiscard]] virtual bool has_hashes() const = 0;
  /// Copies tokens [begin, begin + out.size()) as i32. Throws ConfigError where the file has hashes
  /// and they do not fit its bytes.
  virtual void read(std::int64_t begin, std::span<std::int32_t> out) const = 0;
  /// Starts fetching tokens [begin, begin + count) from the disk, without waiting.
  virtual void will_need(std::int64_t begin, std::int64_t count) const noexcept = 0;
};

}  // namespace dstrain
