// What the two ends of a store connection say to each other. Little-endian.
//
//   server → client   greeting: magic and version (8 bytes), server's nonce (16)
//   client → server   proof: magic and version (8), client's nonce (16), HMAC (32)
//   server → client   verdict: accepted or not (1), HMAC (32)
//   then, one at a time:
//   client → server   length (4), request (1), key's length (2), key, argument
//   server → client   length (4), status (1), value
//
// Arguments: the value (set), the amount (8, add), the deadline in milliseconds (8, get); of an
// all-to-all the deadline (8), rank (4), size (4), the length of what is agreed (4), that, the row.
// Values: that of the key; the column; at an all-to-all's deadline the missing ranks (4 each).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "engine/comm/keyed_hash.h"

namespace dstrain::store_protocol {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::string_view kMagic = "dstrain\x02";  // the last byte is the version
inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kGreetingBytes = kMagic.size() + kNonceBytes;
inline constexpr std::size_t kProofBytes = kMagic.size() + kNonceBytes + sizeof(Digest);
inline constexpr std::size_t kVerdictBytes = 1 + sizeof(Digest);
inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxFrameBytes = 1 + 2 + kMaxKeyBytes + kMaxValueBytes;

enum class Request : std::uint8_t { kSet = 1, kGet = 2, kAdd = 3, kAllToAll = 4 };
enum class Status : std::uint8_t { kOk = 0, kTimeout = 1, kError = 2 };

template <typename T>
void append(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Takes a number off the front. `text` must be long enough.
template <typename T>
T take(std::string_view& text) {
  T value{};
  std::memcpy(&value, text.data(), sizeof value);
  text.remove_prefix(sizeof value);
  return value;
}

/// What the end called `role` ("client" or "server") answers to both nonces.
inline std::string proof_of(std::string_view token,
                            std::string_view role,
                            std::string_view server_nonce,
                            std::string_view client_nonce) {
  const Digest digest =
      hmac_sha256(token, std::string(role).append(server_nonce).append(client_nonce));
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

/// Unpredictable bytes for a challenge.
std::string make_nonce();

}  // namespace dstrain::store_protocol
