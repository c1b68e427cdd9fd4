// How the two ends of a new connection prove to each other that they know the job's secret, before
// either believes a byte of the other. It serves links between ranks and connections to the store.
//
//   acceptor → dialer   greeting: magic and version (8), acceptor's nonce (32)
//   dialer → acceptor   hello: magic and version (8), who calls (4), dialer's nonce (32), proof
//   (32) acceptor → dialer   verdict: proof (32); all zero: refused
//
// A proof is one of the keys that both derive (wire_keys.h), used for nothing else. It is bound to
// both nonces and to the subject, so a proof that is recorded, reflected, or passed on between two
// connections of other pairs fits nowhere. It knows nothing of sockets, and its memory is bounded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/comm/wire_keys.h"

namespace dstrain {

inline constexpr std::size_t kMagicBytes = 8;  ///< the last one is the version
inline constexpr std::size_t kGreetingBytes = kMagicBytes + kNonceBytes;
inline constexpr std::size_t kHelloBytes =
    kMagicBytes + sizeof(std::uint32_t) + kNonceBytes + sizeof(WireKey);
inline constexpr std::size_t kVerdictBytes = sizeof(WireKey);

/// The end that was connected to.
class AcceptingHandshake {
 public:
  /// `magic` has kMagicBytes and must outlive it.
  explicit AcceptingHandshake(std::string_view magic);
  /// The bytes to send at once.
  [[nodiscard]] std::string greeting() const { return std::string(magic_).append(nonce_); }
  /// The number of bytes that may still come.
  [[nodiscard]] std::size_t wanted() const { return hello_.size() - taken_; }
  /// Takes at most wanted() bytes. False if they are not of this protocol; the first wrong byte is
  /// enough.
  [[nodiscard]] bool take(std::string_view bytes);
  /// The caller, as it names itself; valid once nothing is wanted.
  [[nodiscard]] std::uint32_t caller() const;
  /// The keys, if the caller knows `secret` and means `subject`; valid once nothing is wanted.
  [[nodiscard]] std::optional<WireKeys> judge(std::string_view secret,
                                              std::string_view subject) const;
  /// The bytes to send to a caller for whom judge() gave keys; others get refusal().
  [[nodiscard]] static std::string verdict(const WireKeys& keys);
  [[nodiscard]] static std::string refusal() { return std::string(kVerdictBytes, '\0'); }

 private:
  const std::string_view magic_;
  const std::string nonce_;
  std::array<char, kHelloBytes> hello_{};
  std::size_t taken_ = 0;
};

/// The end that connects.
class DialingHandshake {
 public:
  /// The texts must outlive it.
  DialingHandshake(std::string_view magic,
                   std::string_view secret,
                   std::string subject,
                   std::uint32_t caller);

  enum class State : std::uint8_t {
    kGreeting,      ///< waits for it
    kVerdict,       ///< waits for it; hello() is to be sent
    kDone,          ///< keys() are good
    kNotOurs,       ///< something else listens there
    kOtherVersion,  ///< of this protocol: their_version()
    kRefused,       ///< it does not take this one's proof
    kImpostor,      ///< it does not know the secret
  };
  [[nodiscard]] std::size_t wanted() const;
  /// Takes at most wanted() bytes.
  State take(std::string_view bytes);
  [[nodiscard]] const std::string& hello() const { return hello_; }
  [[nodiscard]] int their_version() const { return their_version_; }
  [[nodiscard]] const WireKeys& keys() const { return keys_; }

 private:
  State read_greeting();
  [[nodiscard]] State read_verdict() const;

  const std::string_view magic_;
  const std::string_view secret_;
  const std::string subject_;
  const std::uint32_t caller_;
  State state_ = State::kGreeting;
  std::string in_;
  std::string hello_;
  int their_version_ = 0;
  WireKeys keys_;
};

}  // namespace dstrain
