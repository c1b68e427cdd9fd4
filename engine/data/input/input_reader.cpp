#include "engine/data/input/input_reader.h"

#include <algorithm>
#include <utility>

namespace dstrain {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

}  // namespace

InputReader::InputReader(const std::vector<InputFile>& files,
                         Settings settings,
                         const std::atomic<bool>& stop)
    : files_(files),
      settings_(std::move(settings)),
      stop_(stop),
      file_(settings_.begin.file),
      text_begin_(settings_.begin.byte) {}

bool InputReader::next(InputBlock& block) {
  if (stream_ != nullptr && left_ == file_) {
    stream_.reset();
    text_begin_ = 0;
    ++file_;
  }
  if (file_ == files_.size()) {
    return false;
  }
  block.file = file_;
  block.bytes.clear();
  block.piece_ends.clear();
  block.why_unreadable.clear();
  block.begins_file = stream_ == nullptr && text_begin_ == 0;
  block.ends_file = false;
  block.is_line_too_long = false;
  try {
    if (stream_ == nullptr) {
      open();
    }
    read_block(block);
    block.file_offset = stream_->file_offset();
  } catch (const ReadFailure& failure) {
    block.bytes.clear();
    block.why_unreadable = failure.reason;
    block.ends_file = true;
  }
  block.text_end = text_begin_;
  if (block.ends_file) {
    block.file_offset = files_[file_].bytes;
    stream_.reset();
    text_begin_ = 0;
    ++file_;
  }
  return true;
}

void InputReader::open() {
  constexpr std::int64_t kStep = std::int64_t{64} << 20;
  stream_ = ByteStream::open(files_[file_].path, files_[file_].compression);
  for (std::int64_t left = text_begin_; left > 0 && !stop_; left -= kStep) {
    stream_->skip(std::min(left, kStep));
  }
  text_ = std::make_unique<TextReader>(*stream_);
  lines_ = std::make_unique<LineReader>(*stream_, settings_.longest_line);
}

void InputReader::read_block(InputBlock& block) {
  if (!files_[file_].is_json_lines) {
    return read_pieces(block);
  }
  const std::int64_t before = lines_->position();
  const LineReader::Next got = lines_->next(block.bytes, kBlockBytes);
  block.is_line_too_long = got == LineReader::Next::kLineTooLong;
  block.ends_file = got == LineReader::Next::kEnd;
  text_begin_ += lines_->position() - before;
}

void InputReader::read_pieces(InputBlock& block) {
  while (block.bytes.size() < kBlockBytes) {
    if (!text_->next(piece_, settings_.longest_piece, settings_.cut)) {
      block.ends_file = true;
      return;
    }
    block.bytes += piece_;
    block.piece_ends.push_back(block.bytes.size());
    text_begin_ += static_cast<std::int64_t>(piece_.size());
  }
}

}  // namespace dstrain
