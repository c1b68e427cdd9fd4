// Decoder: decompresses bytes, by the library of one compression. Each checks the sums that its
// format has. The libraries are used directly: libarchive's filters, which would cover all of them,
// do not compare gzip's checksum and silently drop what follows its data.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "engine/data/input/compression.h"

namespace dstrain {

/// The reason why packed bytes cannot be decoded.
struct DamagedData {
  std::string reason;     ///< a clause: "incorrect data check"
  std::size_t taken = 0;  ///< how much of them was sound, as far as the library tells
};

/// Takes one member (gzip), frame (zstd) or stream (xz) after the other.
class Decoder {
 public:
  static std::unique_ptr<Decoder> make(Compression compression);
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  virtual ~Decoder() = default;

  struct Step {
    std::size_t taken = 0;  ///< of `packed`
    std::size_t made = 0;   ///< at the front of `plain`
    bool ended = false;     ///< the member is complete; the next byte begins another one
  };
  /// Throws DamagedData. Takes or makes at least one byte unless it needs more input or more room.
  virtual Step decode(std::span<const char> packed, std::span<char> plain) = 0;
};

std::unique_ptr<Decoder> make_gzip_decoder();
std::unique_ptr<Decoder> make_zstd_decoder();
std::unique_ptr<Decoder> make_xz_decoder();

}  // namespace dstrain
