// FrameSeal: authenticates frames that have crossed a network. Each frame is followed by a tag over
// its header and its payload, by ChaCha20-Poly1305 (RFC 8439) under the key of its direction, with
// the frame's number as the nonce. That number is never sent, both ends count, so a frame that was
// changed, dropped, repeated, moved or cut off does not fit its tag.
//
//   kAuthenticated  header and payload go as they are, the tag behind them
//   kEncrypted      the payload is encrypted too
//   kNone           nothing is added
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <openssl/evp.h>

#include "engine/comm/wire_keys.h"

namespace dstrain {

enum class Sealing : std::uint8_t { kNone, kAuthenticated, kEncrypted };

/// One direction, at one end: seals what is sent or opens what comes, in order.
class FrameSeal {
 public:
  static constexpr std::size_t kMostTagBytes = 16;
  using Tag = std::array<std::byte, kMostTagBytes>;
  enum class End : std::uint8_t { kSeals, kOpens };

  /// Makes a seal that adds nothing and accepts everything.
  FrameSeal() = default;
  FrameSeal(Sealing sealing, const WireKey& key, End end);

  [[nodiscard]] Sealing sealing() const { return sealing_; }
  [[nodiscard]] std::size_t tag_bytes() const {
    return sealing_ == Sealing::kNone ? 0 : kMostTagBytes;
  }
  /// Computes the next frame's tag. If it encrypts, it writes the payload to `sealed`, which has
  /// room for it and may be where it came from; otherwise `sealed` is not used.
  void seal(std::span<const std::byte> header,
            std::span<const std::byte> payload,
            std::byte* sealed,
            Tag& tag);
  /// Whether the next frame is what its sender sealed. Decrypts it in place.
  [[nodiscard]] bool open(std::span<const std::byte> header,
                          std::span<std::byte> payload,
                          const std::byte* tag);

 private:
  void start_frame();

  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  Sealing sealing_ = Sealing::kNone;
  End end_ = End::kSeals;
  std::uint64_t frame_ = 0;
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;  ///< wiped by libcrypto when freed
};

}  // namespace dstrain
