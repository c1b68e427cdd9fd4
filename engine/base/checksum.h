// Checksums of checkpoints and token files: XXH3. It runs at memory speed and finds damage; it does
// not protect against somebody who wants to fool it.
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
  RunningChecksum& operator=(const RunningChecksum& other);
  void add(std::span<const std::byte> bytes);
  template <typename Value>
  void add_value(const Value& value) {
    add(std::as_bytes(std::span<const Value, 1>(&value, 1)));
  }
  [[nodiscard]] std::uint64_t value() const;
  /// XXH3's 128 bits of the same bytes, of which value() is no part.
  struct Wide {
    std::uint64_t low;
    std::uint64_t high;
  };
  [[nodiscard]] Wide wide_value() const;
  /// Forgets what was added.
  void reset();

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
