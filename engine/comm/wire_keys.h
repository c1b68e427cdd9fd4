// The keys of one connection between two processes of a job: derived (HKDF-SHA-256, RFC 5869) from
// the job's secret, a fresh nonce of each end, and the subject, which says what the connection is
// for and between whom. So they fit this connection, this pair and one direction of it, and nothing
// that was recorded on another one, or is passed on from it, is worth anything here.
//
// The secret should have 128 bits or more: whoever takes part in a handshake without knowing it
// sees a proof to try guesses on. The dialing end, which had the address from the job's store,
// proves itself first, so that whoever merely connects to a port learns nothing but a nonce.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain {

inline constexpr std::size_t kNonceBytes = 32;
using WireKey = std::array<std::uint8_t, 32>;

struct WireKeys {
  WireKey dialer_proof{};    ///< shown once by the end that dialed
  WireKey acceptor_proof{};  ///< and by the other one in answer
  WireKey from_dialer{};     ///< seals what the dialing end sends
  WireKey from_acceptor{};   ///< and what it receives

  WireKeys() = default;
  WireKeys(const WireKeys&) = default;
  WireKeys& operator=(const WireKeys&) = default;
  ~WireKeys();  ///< wipes them
};

/// Makes unpredictable bytes.
std::string make_nonce(std::size_t bytes = kNonceBytes);

WireKeys derive_wire_keys(std::string_view secret,
                          std::string_view subject,
                          std::string_view acceptor_nonce,
                          std::string_view dialer_nonce);

}  // namespace dstrain
