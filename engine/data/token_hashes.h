// Hashes of a pair of token files, in a file beside it: PREFIX.hashes. The files that Megatron
// reads stay as Megatron writes them, and a pair without such a file is read as before.
//
//    0  "DSTHASH\0"   8  u32 version = 1   12  u32 bytes of a stripe
//   16  u64 bytes of the .bin   24  u64 bytes of the .idx   32  u64 XXH3 of the .idx
//   40  u64[] XXH3 of each stripe of the .bin, the last of which may be shorter
//    …  u64 XXH3 of everything before        (all little-endian)
//
// A stripe is compared when the first of its bytes is used. Reading a window of tokens brings the
// whole of its stripes from the disk once: 64 KiB is little enough for that, and makes the hashes
// 1/8192 of the tokens.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/checksum.h"
#include "engine/base/mapped_file.h"

namespace dstrain {

inline constexpr std::int64_t kHashStripeBytes = std::int64_t{64} << 10;

/// The name of the file that belongs to PREFIX.bin.
[[nodiscard]] std::string hashes_path(const std::string& prefix);

/// Hashes the stripes of a .bin that grows, and whose end may be cut off again.
class StripeHasher {
 public:
  void add(std::span<const std::byte> bytes);
  /// Remembers the state so far.
  void keep();
  /// Returns to the state at the last keep().
  void take_back();
  /// Returns the content of the file for a .bin of all that was added.
  [[nodiscard]] std::string file_content(std::int64_t idx_bytes, std::uint64_t idx_hash) const;

 private:
  std::vector<std::uint64_t> stripes_;  // those that are full
  RunningChecksum open_;                // of the bytes after them
  std::int64_t bytes_ = 0;
  std::size_t kept_stripes_ = 0;
  RunningChecksum kept_open_;
  std::int64_t kept_bytes_ = 0;
};

/// The hashes of one pair. May be used by several threads at once.
class TokenHashes {
 public:
  /// Returns nothing where there is no such file. Throws ConfigError where it is damaged itself, or
  /// where index or .bin are not those that it was made from.
  static std::unique_ptr<TokenHashes> open(const std::string& prefix,
                                           const MappedFile& index,
                                           std::int64_t bin_bytes);

  /// Compares the stripes that bytes [begin, begin + length) of the .bin lie in, as far as they
  /// have not been compared before. Throws ConfigError: file, stripe, its bytes, hash expected and
  /// found.
  void check(const MappedFile& bin, std::int64_t begin, std::int64_t length) const;

 private:
  explicit TokenHashes(const std::string& path);
  [[nodiscard]] std::uint64_t value_at(std::int64_t byte) const;
  [[nodiscard]] std::int64_t num_stripes() const;
  void check_stripe(const MappedFile& bin, std::int64_t stripe) const;

  MappedFile file_;
  std::int64_t stripe_bytes_ = 0;
  std::int64_t bin_bytes_ = 0;
  /// One bit per stripe, set once it was compared. Two threads may compare the same one, which does
  /// no harm.
  std::unique_ptr<std::atomic<std::uint64_t>[]> compared_;
};

}  // namespace dstrain
