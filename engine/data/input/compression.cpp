#include "engine/data/input/compression.h"

#include "engine/data/input/known_formats.h"

namespace dstrain {

Compression compression_of(std::string_view head) {
  using namespace std::string_view_literals;
  if (head.starts_with("\x1f\x8b"sv)) {
    return Compression::kGzip;
  }
  if (head.starts_with("\x28\xb5\x2f\xfd"sv)) {
    return Compression::kZstd;
  }
  return head.starts_with("\xfd\x37zXZ\0"sv) ? Compression::kXz : Compression::kNone;
}

const char* name_of(Compression compression) {
  switch (compression) {
    case Compression::kNone:
      break;
    case Compression::kGzip:
      return "gzip";
    case Compression::kZstd:
      return "zstd";
    case Compression::kXz:
      return "xz";
  }
  return "none";
}

std::string_view name_without_compression(std::string_view path) {
  const std::string extension = extension_of(path);
  const bool is_only_that =
      extension == "gz" || extension == "zst" || extension == "zstd" || extension == "xz";
  return is_only_that ? path.substr(0, path.size() - extension.size() - 1) : path;
}

}  // namespace dstrain
