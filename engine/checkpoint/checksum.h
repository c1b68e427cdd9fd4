// The checksum of checkpoints: XXH3, 64 bits. It runs at memory speed and finds damage; it does not
// protect against somebody who wants to fool it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;  // xxhash.h

namespace dstrain {

std::uint64_t checksum(std::span<const std::byte> bytes);
std::uint64_t checksum(std::string_view text);

/// The same for bytes that come in parts.
class RunningChecksum {
 public:
  RunningChecksum();
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t value() const;

 private:
  struct Release {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Release> state_;
};

/// 16 hexadecimal digits, and back; false if `text` is anything else.
std::string checksum_text(std::uint64_t value);
bool parse_checksum(std::string_view text, std::uint64_t& value);

}  // namespace dstrain
