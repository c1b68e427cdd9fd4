// What the two ends of a store connection say to each other, once they have recognised each other
// (handshake.h). Little-endian; one at a time; each frame sealed and encrypted (frame_seal.h), the
// length too is sealed but legible:
//   client → server   length (4), [request (1), key's length (2), key, argument], tag (16)
//   server → client   length (4), [status (1), value], tag (16)
// Encrypted whatever network.security says: there is little of it, and it holds the id by which
// NCCL's ranks meet.
//
// Arguments: the value (set), the amount (8, add), the deadline in milliseconds (8, get); of an
// all-to-all the deadline (8), rank (4), size (4), the length of what is agreed (4), that, the row.
// Values: that of the key; the column; at an all-to-all's deadline the missing ranks (4 each).
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/wire.h"
#include "engine/comm/frame_seal.h"
#include "engine/comm/store.h"

namespace dstrain::store_protocol {

inline constexpr std::string_view kMagic = "dstrain\x03";  // the last byte is the version
inline constexpr const char* kSubject = "dstrain store";   // of the handshake
inline constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
inline constexpr std::size_t kTagBytes = FrameSeal::kMostTagBytes;
inline constexpr std::size_t kMaxKeyBytes = 4096;
inline constexpr std::size_t kMaxValueBytes = std::size_t{1} << 20;
/// The bytes of an all-to-all's argument before what is agreed and the row, which together are at
/// most as long as a value.
inline constexpr std::size_t kAllToAllBytes = sizeof(std::int64_t) + 3 * sizeof(std::int32_t);
inline constexpr std::size_t kMaxFrameBytes =
    1 + 2 + kMaxKeyBytes + kAllToAllBytes + kMaxValueBytes;

enum class Request : std::uint8_t { kSet = 1, kGet = 2, kAdd = 3, kAllToAll = 4 };
enum class Status : std::uint8_t { kOk = 0, kTimeout = 1, kError = 2 };

/// An all-to-all's argument.
inline std::string argument_of(const AllToAll& call, std::chrono::milliseconds timeout) {
  std::string argument;
  put_number(argument, std::int64_t{timeout.count()});
  put_number(argument, std::int32_t{call.rank});
  put_number(argument, std::int32_t{call.size});
  put_number(argument, static_cast<std::uint32_t>(call.agreed.size()));
  return argument.append(call.agreed).append(call.row);
}

/// Its texts are views of what it was parsed from.
struct AllToAllRequest {
  AllToAll call;
  std::int64_t timeout_ms = 0;
};
/// Returns nothing where the argument is malformed.
inline std::optional<AllToAllRequest> parse_all_to_all(std::string_view key,
                                                       std::string_view argument) {
  if (argument.size() < kAllToAllBytes) {
    return std::nullopt;
  }
  AllToAllRequest request{.timeout_ms = take_number<std::int64_t>(argument)};
  const auto rank = take_number<std::int32_t>(argument);
  const auto size = take_number<std::int32_t>(argument);
  const auto agreed_bytes = take_number<std::uint32_t>(argument);
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

/// Seals a frame for its way.
inline std::string sealed_frame(FrameSeal& seal, std::string_view body) {
  std::string frame;
  put_number(frame, static_cast<std::uint32_t>(body.size()));
  frame.append(body).append(kTagBytes, '\0');
  const auto bytes = std::as_writable_bytes(std::span(frame));
  const auto text = bytes.subspan(kLengthBytes, body.size());
  FrameSeal::Tag tag;
  seal.seal(bytes.first(kLengthBytes), text, text.data(), tag);
  std::memcpy(frame.data() + frame.size() - kTagBytes, tag.data(), tag.size());
  return frame;
}

/// The body of a whole frame, decrypted in place; nothing if it fails authentication.
inline std::optional<std::string_view> open_frame(FrameSeal& seal, std::string& frame) {
  const auto bytes = std::as_writable_bytes(std::span(frame));
  const std::size_t body = frame.size() - kLengthBytes - kTagBytes;
  if (!seal.open(bytes.first(kLengthBytes), bytes.subspan(kLengthBytes, body),
                 bytes.data() + kLengthBytes + body)) {
    return std::nullopt;
  }
  return std::string_view(frame).substr(kLengthBytes, body);
}

}  // namespace dstrain::store_protocol
