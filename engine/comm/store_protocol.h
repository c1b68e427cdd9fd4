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
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "engine/comm/keyed_hash.h"
#include "engine/comm/store.h"

namespace dstrain::store_protocol {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::string_view kMagic = "dstrain\x02";  // the last byte is the version
inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kGreetingBytes = kMagic.size() + kNonceBytes;
inline constexpr std::size_t kProofBytes = kMagic.size() + kNonceBytes + sizeof(Digest);
inline constexpr std::size_t kVerdictBytes = 1 + sizeof(Digest);
inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;
/// Of an all-to-all, before what is agreed and the row, which are at most a value together.
inline constexpr std::size_t kAllToAllBytes = sizeof(std::int64_t) + 3 * sizeof(std::int32_t);
inline constexpr std::size_t kMaxFrameBytes =
    1 + 2 + kMaxKeyBytes + kAllToAllBytes + kMaxValueBytes;

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

/// An all-to-all's argument.
inline std::string argument_of(const AllToAll& call, std::chrono::milliseconds timeout) {
  std::string argument;
  append(argument, std::int64_t{timeout.count()});
  append(argument, std::int32_t{call.rank});
  append(argument, std::int32_t{call.size});
  append(argument, static_cast<std::uint32_t>(call.agreed.size()));
  return argument.append(call.agreed).append(call.row);
}

/// Its texts are views of what it was parsed from.
struct AllToAllRequest {
  AllToAll call;
  std::int64_t timeout_ms = 0;
};
/// None where it makes no sense.
inline std::optional<AllToAllRequest> parse_all_to_all(std::string_view key,
                                                       std::string_view argument) {
  if (argument.size() < kAllToAllBytes) {
    return std::nullopt;
  }
  AllToAllRequest request{.timeout_ms = take<std::int64_t>(argument)};
  const auto rank = take<std::int32_t>(argument);
  const auto size = take<std::int32_t>(argument);
  const auto agreed_bytes = take<std::uint32_t>(argument);
  if (rank < 0 || rank >= size || agreed_bytes >= argument.size() ||
      (argument.size() - agreed_bytes) % static_cast<std::size_t>(size) != 0) {
    return std::nullopt;
  }
  request.call = {.key = key,
                  .rank = rank,
                  .size = size,
                  .agreed = argument.substr(0, agreed_bytes),
                  .row = argument.substr(agreed_bytes)};
  return request;
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
