// The documents of a Megatron pair of bytes, by a reader of the tests' own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/unit/data/scratch_folder.h"

namespace dstrain::test {

inline std::vector<std::string> documents_of(const std::string& prefix) {
  const std::string bin = read_file(prefix + ".bin");
  const std::string idx = read_file(prefix + ".idx");
  const auto number = [&](std::size_t at, int bytes) {
    std::uint64_t value = 0;
    for (int i = bytes; i-- > 0;) {
      value = (value << 8) | static_cast<unsigned char>(idx.at(at + static_cast<std::size_t>(i)));
    }
    return static_cast<std::size_t>(value);
  };
  if (idx.at(17) != 1) {
    throw std::runtime_error(prefix + ": ids are not u8");
  }
  std::vector<std::string> documents;
  std::size_t at = 0;
  for (std::size_t s = 0; s < number(18, 8); ++s) {
    documents.push_back(bin.substr(at, number(34 + 4 * s, 4)));
    at += documents.back().size();
  }
  if (at != bin.size()) {
    throw std::runtime_error(prefix + ": the index does not cover the tokens");
  }
  return documents;
}

}  // namespace dstrain::test
