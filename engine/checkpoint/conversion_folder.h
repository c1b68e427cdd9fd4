// ConversionFolder: the folder that a conversion fills. Until the last file exists a marker,
// .conversion.json, says what is being made of what and which files are done; the file by which
// readers know the folder comes last. The same conversion, started again, continues after the files
// that are done.
//
//   .conversion.json                      {"of": "…", "done": [{name, bytes, checksum}]}
//   model-00001-of-00003.safetensors      done
//   .model-00002-of-00003.safetensors.part
//   config.json                           comes last; then the marker goes
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/written_file.h"

namespace dstrain {

bool is_unfinished_conversion(const std::filesystem::path& folder);

class ConversionFolder {
 public:
  /// Creates the folder, or takes up the conversion in it. `of` tells conversions apart: source,
  /// its state, and all choices. Throws ConfigError if the folder holds anything else.
  ConversionFolder(std::filesystem::path folder, std::string of, const DurableFiles& files);

  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }

  /// Writes a file through `write` (write_checked), unless it already exists, byte for byte.
  /// Returns true if it was.
  bool add(const std::string& name,
           const ByteProgress& progress,
           const std::function<WrittenFile(const std::filesystem::path& part)>& write);
  void add_text(const std::string& name, std::string_view content);
  /// Writes the file that makes the folder whole.
  void finish(const std::string& name, std::string_view content);

 private:
  void take_up();
  void write_marker() const;

  std::filesystem::path folder_;
  std::string of_;
  const DurableFiles& files_;
  std::vector<WrittenFile> done_;
};

}  // namespace dstrain
