// Finds the files that prepare-data reads: those that are named and those in the folders that are
// named, in an order that depends on their names only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/input/input_kind.h"

namespace dstrain {

struct InputFile {
  std::string path;
  std::uint32_t name_begin =
      0;                   ///< where in `path` the part below the folder that was named begins
  std::int64_t bytes = 0;  ///< on the disk, when it was found
  std::int64_t modified_ns = 0;  ///< when it was changed last, likewise
  Compression compression = Compression::kNone;
  bool is_json_lines = false;  ///< else all of it is one text

  /// Random choices among files go by this name: it is the same wherever the data lie.
  [[nodiscard]] std::string_view name() const { return std::string_view(path).substr(name_begin); }
};

struct InputSelection {
  std::vector<std::string> extensions;  ///< with their dot; empty: every file
  std::string left_out_folder;          ///< not entered: where the output goes
  /// Files and folders to skip, named ones too: shell patterns for a name, or, where they hold a
  /// slash, for the path below the folder that was named.
  std::vector<std::string> exclude{};
  KindQuestion kind{};
};

/// A file that is not plain text but holds some, so that leaving it out silently would be wrong; or
/// one that holds no text at all but was named.
struct NotTextFile {
  std::string path;
  const KnownFormat* format = nullptr;
};

struct InputFiles {
  std::vector<InputFile> files;
  std::vector<std::string> unreadable;  ///< path and reason of folders and links that led nowhere
  std::int64_t hidden = 0;              ///< names that begin with a dot, not looked into
  std::int64_t folder_links = 0;        ///< symbolic links to folders, not followed
  std::int64_t special = 0;             ///< pipes, sockets, devices
  std::int64_t excluded = 0;            ///< by a pattern; a folder counts once
  std::vector<NotTextFile> not_text;    ///< these are not among the files
};

/// Walks `paths`. A path that was named is taken whatever it is called and followed if it is a
/// link; inside folders, links to files are followed, links to folders are not (so there are no
/// loops, and nothing outside what was named is read). Throws ConfigError if a path does not exist
/// or is neither file nor folder. Returns early, incomplete, when `stop_requested` says so.
InputFiles find_input_files(const std::vector<std::string>& paths,
                            const InputSelection& selection,
                            const std::function<bool()>& stop_requested);

}  // namespace dstrain
