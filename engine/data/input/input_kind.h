// Decides how a file of the input is read: unpacked or as it is, as one text or line by line. The
// compression is recognised by the first bytes whatever the name says, JSON lines by name and
// content:
//
//   *.jsonl, *.ndjson    JSON lines
//   *.json               JSON lines if its first line is an object of its own, as in many corpora
//   any other name       JSON lines if its first line is an object with the field that is wanted
//
// (the ending .gz, .zst or .xz of what is compressed does not count), and everything else is text,
// unless it is of a known format that is neither.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/input/compression.h"
#include "engine/data/input/json_field.h"
#include "engine/data/input/known_formats.h"

namespace dstrain {

struct InputKind {
  Compression compression = Compression::kNone;
  bool is_json_lines = false;
  const KnownFormat* refused = nullptr;  ///< what it is instead, if it is neither
};

struct KindQuestion {
  JsonField field{"text"};
  bool field_was_named = false;        ///< then any line that is an object is meant
  std::vector<std::string> as_text{};  ///< extensions of JSON that is taken as it is written
  std::int64_t longest_line = 0;       ///< bytes of a JSON line
};

/// Throws ConfigError where compressed data are damaged from the beginning. A file that cannot be
/// read is text: that is found and counted when its turn comes.
InputKind find_input_kind(const std::string& path, const KindQuestion& question);

}  // namespace dstrain
