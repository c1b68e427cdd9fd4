// TextSample: a bounded sample of the input's text, from which a tokenizer is made. The input is
// cut into blocks of 64 KiB, and a block is in the sample if its hash says so: 100 GB are sampled
// all over, and only the sample is read. Compressed files cannot be read from the middle, so the
// sample has the beginning of each of those.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/input/input_files.h"
#include "engine/data/input/line_reader.h"

namespace dstrain {

class TextSample {
 public:
  struct Settings {
    std::int64_t bytes = 0;  ///< about so much text, or all of it if there is less
    std::uint64_t seed = 0;
    JsonField field{"text"};
    std::int64_t longest_line = 0;
  };
  /// `files` and `stop_requested` must outlive it.
  TextSample(const std::vector<const InputFile*>& files,
             Settings settings,
             const std::function<bool()>& stop_requested);

  /// Replaces `text` by the next block: plain text from the beginning of a line on, or the
  /// documents of JSON lines, each ending with a line end. Returns false at the end, or when it is
  /// stopped.
  bool next(std::string& text);

 private:
  bool next_of_file(const InputFile& file, std::string& text);
  bool next_of_compressed(const InputFile& file, std::string& text);
  bool read_block(const InputFile& file, std::int64_t offset, std::string& text);
  bool read_documents(LineReader& lines, std::int64_t offset, std::string& text);

  const std::vector<const InputFile*>& files_;
  Settings settings_;
  const std::function<bool()>& stop_requested_;
  double share_ = 1.0;  ///< of the blocks
  std::size_t file_ = 0;
  std::int64_t block_ = 0;              ///< of the file, to be considered next
  std::unique_ptr<ByteStream> stream_;  ///< of a compressed file
  std::unique_ptr<LineReader> lines_;
  std::string buffer_;
};

}  // namespace dstrain
