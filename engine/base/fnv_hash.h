// FNV-1a (Fowler, Noll, Vo; draft-eastlake-fnv): a hash of short names that is the same everywhere
// and for ever, since random streams and the order of messages depend on it. It protects against
// nobody.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace dstrain {

/// `Hash` is std::uint32_t or std::uint64_t.
template <typename Hash>
constexpr Hash fnv_hash(std::string_view text) {
  static_assert(std::is_same_v<Hash, std::uint32_t> || std::is_same_v<Hash, std::uint64_t>);
  constexpr bool kWide = sizeof(Hash) == sizeof(std::uint64_t);
  constexpr Hash kPrime = kWide ? static_cast<Hash>(0x100000001b3U) : Hash{0x01000193U};
  Hash hash = kWide ? static_cast<Hash>(0xcbf29ce484222325U) : Hash{0x811c9dc5U};
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  }
  return hash;
}

}  // namespace dstrain
