// HMAC-SHA-256 (RFC 2104), from libcrypto: how a node agent and its launcher prove to each other
// that they know the job's secret without ever sending it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dstrain {

using Digest = std::array<std::uint8_t, 32>;

Digest hmac_sha256(std::string_view key, std::string_view message);
/// Takes the same time wherever the first difference is.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace dstrain
