// DocumentDigest: 128 bits of XXH3 over a document's text. It does not protect against an
// adversary, but two different documents never agree by chance.
#pragma once

#include <cstdint>

namespace dstrain {

struct DocumentDigest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const DocumentDigest&) const = default;
};

}  // namespace dstrain
