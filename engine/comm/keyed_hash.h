// HMAC-SHA-256 (RFC 2104, FIPS 180-4): how the two ends of a store connection prove to each other
// that they know the job's token without ever sending it. Small inputs only, so plain code.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dstrain {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view message);
Digest hmac_sha256(std::string_view key, std::string_view message);
/// Takes the same time wherever the first difference is.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace dstrain
