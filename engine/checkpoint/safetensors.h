// safetensors: named tensors in one file, a format that other programs read too. A header in JSON
// says where each tensor lies; the data follows, back to back.
//
//   | u64 N | N bytes of JSON, padded with spaces | data of the 1st tensor | of the 2nd | …
//
// The reader maps the file and checks everything that the header claims before it hands out a byte.
// The writer streams: the header first, then each tensor straight from the caller's memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/mapped_file.h"
#include "engine/checkpoint/durable_files.h"

namespace dstrain {

/// A tensor as the header describes it.
struct SafetensorsEntry {
  std::string dtype;  ///< the format's own name: "F32", "BF16", …
  std::vector<std::int64_t> shape;
  std::int64_t begin_byte = 0;  ///< within the data
  std::int64_t end_byte = 0;
};

class SafetensorsFile {
 public:
  /// Throws CheckpointError, naming the file and what is wrong with it.
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] const std::map<std::string, SafetensorsEntry>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Everything before the data: length, JSON and padding.
  [[nodiscard]] std::span<const std::byte> header() const;
  [[nodiscard]] std::span<const std::byte> data(const SafetensorsEntry& entry) const;
  /// Releases the memory of what has been read of data().
  void release(const SafetensorsEntry& entry) const { file_.release(data(entry)); }

 private:
  MappedFile file_;
  std::size_t header_bytes_ = 0;  ///< with the length field
  std::map<std::string, SafetensorsEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written.
struct SafetensorsDecl {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
};

class SafetensorsWriter {
 public:
  /// Writes the header. Data starts at a multiple of 8; tensors lie in the order given, which must
  /// go from wide to narrow dtypes, so that each is aligned to its own element.
  SafetensorsWriter(const DurableFiles& files,
                    const std::filesystem::path& path,
                    std::span<const SafetensorsDecl> tensors,
                    const std::map<std::string, std::string>& metadata);

  /// Writes all of the next tensor's bytes; tensors come in the order declared.
  void write(std::span<const std::byte> data);
  /// Writes the next bytes of the tensor that is being written, at most to its end.
  void write_part(std::span<const std::byte> data);
  /// Puts the file on the disk by the time it returns. Every declared tensor must have been
  /// written.
  void finish();

  [[nodiscard]] std::int64_t file_bytes() const { return layout_.file_bytes; }
  [[nodiscard]] std::string_view header() const { return layout_.header; }

 private:
  struct Layout {
    std::string header;
    std::vector<std::int64_t> tensor_bytes;
    std::int64_t file_bytes = 0;
  };
  static Layout lay_out(std::span<const SafetensorsDecl> tensors,
                        const std::map<std::string, std::string>& metadata);

  Layout layout_;
  DurableFile file_;
  std::size_t next_ = 0;
  std::int64_t part_bytes_ = 0;  // of tensor next_ that write_part has written
};

}  // namespace dstrain
