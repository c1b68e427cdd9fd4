// Tells which processes share a kernel, a network and a user with this one, so that a Unix socket
// joins them and the kernel itself vouches for who is at its other end.
#pragma once

#include <array>
#include <cstdint>

namespace dstrain {

/// Equal for two processes of one running kernel (boot id), one network namespace, one user
/// namespace and one effective user. All zero where these are unknown, or where the user is the one
/// that the kernel shows in place of all it cannot name: then it equals nothing.
struct HostIdentity {
  std::array<std::uint8_t, 8> digest{};

  [[nodiscard]] bool shares_with(const HostIdentity& other) const {
    return digest == other.digest && digest != std::array<std::uint8_t, 8>{};
  }
};
/// `number` divides a host as WireOptions::host says.
HostIdentity host_identity(int number = 0);

}  // namespace dstrain
