// InputReader: reads all input files, one after the other, as blocks: whole lines of JSON lines, or
// pieces of a text that the tokenizer takes one by one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/input/input_files.h"
#include "engine/data/input/line_reader.h"
#include "engine/data/input/text_reader.h"

namespace dstrain {

/// A place between two blocks.
struct InputPosition {
  std::size_t file = 0;
  std::int64_t byte = 0;  ///< of the file's text, decompressed
};

struct InputBlock {
  std::size_t file = 0;
  std::string bytes;
  std::vector<std::size_t> piece_ends;  ///< of a text: where its pieces end in `bytes`
  bool begins_file = false;
  bool ends_file = false;
  bool is_line_too_long = false;  ///< instead of a line; `bytes` is empty
  std::string why_unreadable;     ///< then it ends the file
  std::int64_t text_end = 0;      ///< where in the file's text the next block begins
  std::int64_t file_offset = 0;   ///< how far into the file on the disk that is, about
};

class InputReader {
 public:
  struct Settings {
    TextReader::Cut cut;
    std::size_t longest_piece;
    std::int64_t longest_line;
    InputPosition begin;
  };
  /// `files` and `stop` must outlive it. Setting `stop` ends a long skip.
  InputReader(const std::vector<InputFile>& files,
              Settings settings,
              const std::atomic<bool>& stop);

  /// Fills the next block; returns false after the last one. Throws ConfigError where compressed
  /// data are damaged.
  bool next(InputBlock& block);
  /// Asks to leave out what is left of a file. May be called from any thread; blocks of the file
  /// may still come.
  void leave(std::size_t file) { left_ = file; }

 private:
  void open();
  void read_block(InputBlock& block);
  void read_pieces(InputBlock& block);

  static constexpr std::size_t kNone = ~std::size_t{0};
  const std::vector<InputFile>& files_;
  Settings settings_;
  const std::atomic<bool>& stop_;
  std::atomic<std::size_t> left_{kNone};
  std::size_t file_;
  std::int64_t text_begin_;  ///< where reading of the file began, or continues
  std::unique_ptr<ByteStream> stream_;
  std::unique_ptr<TextReader> text_;
  std::unique_ptr<LineReader> lines_;
  std::string piece_;
};

}  // namespace dstrain
