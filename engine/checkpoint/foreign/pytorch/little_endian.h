// Reads numbers in a file: little-endian, at any place, aligned or not.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace dstrain {

static_assert(std::endian::native == std::endian::little);

/// The number at a byte; the caller has made sure that it lies within.
template <typename T>
T load_at(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.subspan(at, sizeof(T)).data(), sizeof(T));
  return value;
}

}  // namespace dstrain
