#include "engine/base/checksum.h"

#include <charconv>
#include <new>

#include <fmt/format.h>
#include <xxhash.h>

namespace dstrain {

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t checksum(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

void RunningChecksum::Release::operator()(XXH3_state_s* state) const {
  (void)XXH3_freeState(state);
}

RunningChecksum::RunningChecksum() : state_(XXH3_createState()) {
  if (state_ == nullptr) {
    throw std::bad_alloc();
  }
  reset();
}

RunningChecksum& RunningChecksum::operator=(const RunningChecksum& other) {
  XXH3_copyState(state_.get(), other.state_.get());
  return *this;
}

void RunningChecksum::add(std::span<const std::byte> bytes) {
  (void)XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

std::uint64_t RunningChecksum::value() const {
  return XXH3_64bits_digest(state_.get());
}

// The two widths differ in nothing before their last step (xxhash.h).
RunningChecksum::Wide RunningChecksum::wide_value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.low64, hash.high64};
}

void RunningChecksum::reset() {
  (void)XXH3_64bits_reset(state_.get());
}

std::string checksum_text(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

bool parse_checksum(std::string_view text, std::uint64_t& value) {
  if (text.size() != 16) {
    return false;
  }
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, 16);
  return result.ec == std::errc() && result.ptr == end;
}

}  // namespace dstrain
