// TokenDataset: token files read through mmap, opened and checked before step 1.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/spec/config.h"

namespace dstrain {

/// One file (or .bin/.idx pair) of token ids back to back. Read-only, memory-mapped.
class TokenFile {
 public:
  /// `prefix` names a Megatron pair (prefix.bin + prefix.idx), or a .bin file of nanoGPT or llm.c;
  /// which of them is found out by looking. Throws ConfigError (file, offset, what is wrong) if it
  /// is missing, truncated, foreign, or holds an id ≥ vocab_size.
  static std::unique_ptr<TokenFile> open(const std::string& prefix, std::int64_t vocab_size);
  TokenFile() = default;
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  virtual ~TokenFile() = default;

  [[nodiscard]] virtual std::int64_t num_tokens() const = 0;
  /// Copies tokens [begin, begin + out.size()) as i32.
  virtual void read(std::int64_t begin, std::span<std::int32_t> out) const = 0;
};

}  // namespace dstrain
