#include "engine/data/text_sample.h"

#include <algorithm>
#include <utility>

#include <xxhash.h>

#include "engine/data/input/text_reader.h"

namespace dstrain {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{64} << 10;
/// The usual ratio by which text is compressed.
constexpr std::int64_t kUsualRatio = 4;

std::int64_t expected_text_bytes(const InputFile& file) {
  return file.compression == Compression::kNone ? file.bytes : kUsualRatio * file.bytes;
}

/// Removes everything up to the first end of a line, or nothing if there is none.
void drop_first_line(std::string& text) {
  const std::size_t line_end = text.find('\n');
  text.erase(0, line_end == std::string::npos ? 0 : line_end + 1);
}

/// Reads a block, which is empty if it holds anything but text.
bool read_text(ByteStream& stream, std::string& text) {
  const auto whole = [](std::string_view all) { return all.size(); };
  const bool has_text = TextReader(stream).next(text, kBlockBytes, whole);
  if (text.find('\0') != std::string::npos) {
    text.clear();
  }
  return has_text;
}

}  // namespace

TextSample::TextSample(const std::vector<const InputFile*>& files,
                       Settings settings,
                       const std::function<bool()>& stop_requested)
    : files_(files), settings_(std::move(settings)), stop_requested_(stop_requested) {
  std::int64_t total = 1;
  for (const InputFile* file : files) {
    total += expected_text_bytes(*file);
  }
  share_ = static_cast<double>(settings_.bytes) / static_cast<double>(total);
}

bool TextSample::next(std::string& text) {
  while (file_ < files_.size() && !stop_requested_()) {
    try {
      if (next_of_file(*files_[file_], text)) {
        return true;
      }
    } catch (const ReadFailure&) {  // preparing the data will name it
    }
    stream_.reset();
    block_ = 0;
    ++file_;
  }
  return false;
}

bool TextSample::next_of_file(const InputFile& file, std::string& text) {
  if (file.compression != Compression::kNone) {
    return next_of_compressed(file, text);
  }
  constexpr double kAll = 18446744073709551616.0;
  const std::string_view name = file.name();
  while (block_ * kBlockBytes < file.bytes && !stop_requested_()) {
    const std::int64_t block = block_++;
    const std::uint64_t hash = XXH3_64bits_withSeed(
        name.data(), name.size(), settings_.seed + static_cast<std::uint64_t>(block));
    const bool is_chosen = share_ >= 1.0 || static_cast<double>(hash) < share_ * kAll;
    if (is_chosen && read_block(file, block * kBlockBytes, text)) {
      return true;
    }
  }
  return false;
}

bool TextSample::next_of_compressed(const InputFile& file, std::string& text) {
  const auto wanted =
      static_cast<std::int64_t>(share_ * static_cast<double>(expected_text_bytes(file)));
  if (share_ < 1.0 && block_ * kBlockBytes >= wanted) {
    return false;
  }
  if (stream_ == nullptr) {
    stream_ = ByteStream::open(file.path, file.compression);
    lines_ = std::make_unique<LineReader>(*stream_, settings_.longest_line);
  }
  ++block_;
  return file.is_json_lines ? read_documents(*lines_, 0, text) : read_text(*stream_, text);
}

bool TextSample::read_block(const InputFile& file, std::int64_t offset, std::string& text) {
  const auto stream = ByteStream::open(file.path, Compression::kNone);
  stream->skip(offset);
  if (file.is_json_lines) {
    LineReader lines(*stream, settings_.longest_line);
    return read_documents(lines, offset, text);
  }
  const bool has_text = read_text(*stream, text);
  if (offset > 0) {
    drop_first_line(text);
  }
  return has_text;
}

bool TextSample::read_documents(LineReader& lines, std::int64_t offset, std::string& text) {
  if (lines.next(buffer_, kBlockBytes) == LineReader::Next::kEnd) {
    return false;
  }
  if (offset > 0) {  // within a line, very likely
    drop_first_line(buffer_);
  }
  text.clear();
  for (std::size_t begin = 0; begin < buffer_.size();) {
    const std::size_t end = std::min(buffer_.find('\n', begin), buffer_.size());
    const JsonField::Line line =
        settings_.field.read(std::string_view(buffer_).substr(begin, end - begin));
    if (line.found == JsonField::Found::kText && line.text.find('\0') == std::string::npos) {
      text += line.text;
      text += '\n';
    }
    begin = end + 1;
  }
  return true;
}

}  // namespace dstrain
