// FoundInput: the files that prepare_data reads, in their order, and which of them are for
// validation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/data/input/input_files.h"
#include "engine/data/input/input_reader.h"
#include "engine/data/prepare_options.h"

namespace dstrain {

struct FoundInput {
  std::vector<InputFile> files{};
  std::vector<bool> is_validation{};  ///< one flag per file
  std::vector<std::string> unreadable{};
  std::int64_t hidden = 0;
  std::int64_t folder_links = 0;
  std::int64_t special = 0;
  std::int64_t excluded = 0;

  /// A hash of everything that decides which documents the files before a place yield: their names,
  /// sizes, times of their last change, how they are read, which split they go to.
  [[nodiscard]] std::string hash_before(InputPosition place) const;
};

/// Throws ConfigError, also where a file is neither text nor JSON lines. Returns early, incomplete,
/// when `stop_requested` says so.
FoundInput find_input(const PrepareOptions& options,
                      const JsonField& field,
                      const std::function<bool()>& stop_requested);

}  // namespace dstrain
