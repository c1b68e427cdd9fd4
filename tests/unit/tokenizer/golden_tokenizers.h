// Small tokenizers of every kind in use, with the ids that the `tokenizers` package gives for some
// texts (scripts/make_tokenizer_golden.py).
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/regular_file.h"

namespace dstrain::test {

inline std::filesystem::path golden_tokenizers() {
  return std::filesystem::path(DSTRAIN_UNPACKED) / "tokenizers";
}

inline std::string golden_tokenizer_json(const std::string& name) {
  return read_regular_file((golden_tokenizers() / (name + ".json")).string()).text;
}

inline std::vector<std::string> golden_tokenizer_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_tokenizers())) {
    if (entry.path().extension() == ".json") {
      names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace dstrain::test
