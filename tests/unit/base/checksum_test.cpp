#include "engine/base/checksum.h"

#include <string>

#include <catch2/catch.hpp>
#include <xxhash.h>

namespace dstrain {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST_CASE("a checksum of parts is that of all bytes at once, in both widths", "[checksum]") {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += std::to_string(i);
  for (const std::size_t part : {1, 7, 240, 256, 1000, 100'000}) {
    RunningChecksum running;
    for (std::size_t at = 0; at < text.size(); at += part)
      running.add(bytes_of(text.substr(at, part)));
    CHECK(running.value() == XXH3_64bits(text.data(), text.size()));
    CHECK(running.value() == checksum(text));
    const XXH128_hash_t wide = XXH3_128bits(text.data(), text.size());
    CHECK(running.wide_value().low == wide.low64);
    CHECK(running.wide_value().high == wide.high64);
  }
}

TEST_CASE("a running checksum goes on from a copy, and begins anew", "[checksum]") {
  RunningChecksum running;
  RunningChecksum kept;
  running.add(bytes_of("a document, "));
  kept = running;
  running.add(bytes_of("taken back"));
  running = kept;
  running.add(bytes_of("and another"));
  CHECK(running.value() == checksum("a document, and another"));
  running.reset();
  CHECK(running.value() == checksum(""));
}

}  // namespace
}  // namespace dstrain
