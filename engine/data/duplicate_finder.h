// DuplicateFinder: has a file with these bytes been there before? By size first, then by a 128-bit
// hash of the content (not against an adversary; two different files that agree by chance: never).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/data/input_files.h"

namespace dstrain {

class DuplicateFinder {
 public:
  explicit DuplicateFinder(const std::vector<InputFile>& files);

  /// Remembers the file. Reads it only if another one has its size; throws ReadFailure.
  bool was_there(const InputFile& file, const std::function<bool()>& stop_requested);

 private:
  struct Digest {
    std::uint64_t low;
    std::uint64_t high;
    bool operator==(const Digest&) const = default;
  };
  struct DigestHash {
    std::size_t operator()(const Digest& digest) const { return digest.low; }
  };
  std::unordered_map<std::int64_t, std::int64_t> files_of_size_;
  std::unordered_set<Digest, DigestHash> seen_;
  std::string buffer_;
};

}  // namespace dstrain
