#include "engine/data/input/byte_stream.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "engine/base/regular_file.h"
#include "engine/config/config_error.h"
#include "engine/data/input/decoder.h"

namespace dstrain {
namespace {

[[noreturn]] void fail() {
  throw ReadFailure{std::generic_category().message(errno)};
}

class PlainBytes final : public ByteStream {
 public:
  explicit PlainBytes(const std::string& path) {
    OpenedFile opened = open_regular_file(path);
    if (!opened.file) {
      throw ReadFailure{std::move(opened.why)};
    }
    file_ = std::move(opened.file);
    size_ = opened.bytes;
    ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  }

  std::size_t read(std::span<char> out) override {
    ssize_t count = 0;
    do {
      count = ::read(file_.get(), out.data(), out.size());
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
      fail();
    }
    offset_ += count;
    return static_cast<std::size_t>(count);
  }

  void skip(std::int64_t bytes) override {
    offset_ += bytes;
    if (::lseek(file_.get(), offset_, SEEK_SET) < 0) {
      fail();
    }
  }

  [[nodiscard]] std::int64_t file_offset() const override { return offset_; }
  [[nodiscard]] std::int64_t expected_bytes() const override {
    return std::max<std::int64_t>(size_ - offset_, 0);
  }

 private:
  FileDescriptor file_;
  std::int64_t size_ = 0;  ///< when it was opened
  std::int64_t offset_ = 0;
};

/// Consecutive members, frames or streams form one text, as in the compressors' own programs; zeros
/// between them and after the last are padding.
class DecodedBytes final : public ByteStream {
 public:
  DecodedBytes(const std::string& path, Compression compression)
      : path_(path),
        format_(name_of(compression)),
        packed_(path),
        decoder_(Decoder::make(compression)) {}

  std::size_t read(std::span<char> out) override {
    while (true) {
      if (left_.empty() && !at_end_) {
        refill();
      }
      if (!inside_) {
        pass_over_padding();
        if (left_.empty() && at_end_) {
          return 0;
        }
        if (left_.empty()) {
          continue;
        }
        member_begin_ = file_offset();
        inside_ = true;
      }
      if (const std::size_t made = decode(out); made > 0) {
        return made;
      }
    }
  }

  void skip(std::int64_t bytes) override {
    std::vector<char> dropped(kBufferBytes);
    while (bytes > 0) {
      const auto most = static_cast<std::size_t>(
          std::min<std::int64_t>(bytes, static_cast<std::int64_t>(dropped.size())));
      const std::size_t count = read(std::span(dropped).first(most));
      if (count == 0) {
        return;
      }
      bytes -= static_cast<std::int64_t>(count);
    }
  }

  [[nodiscard]] std::int64_t file_offset() const override {
    return packed_.file_offset() - static_cast<std::int64_t>(left_.size());
  }
  /// Text shrinks to a third or a fifth.
  [[nodiscard]] std::int64_t expected_bytes() const override {
    return 4 * (packed_.expected_bytes() + static_cast<std::int64_t>(left_.size()));
  }

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{128} << 10;

  void refill() {
    buffer_.resize(kBufferBytes);
    const std::size_t count = packed_.read(buffer_);
    left_ = std::span<const char>(buffer_).first(count);
    at_end_ = count == 0;
  }

  void pass_over_padding() {
    while (!left_.empty() && left_.front() == '\0' && file_offset() > 0) {
      left_ = left_.subspan(1);
    }
  }

  std::size_t decode(std::span<char> out) {
    Decoder::Step step;
    try {
      step = decoder_->decode(left_, out);
    } catch (const DamagedData& damaged) {
      refuse(fmt::format("is damaged near byte {}, within the {} data that begin at byte {}: {}",
                         file_offset() + static_cast<std::int64_t>(damaged.taken), format_,
                         member_begin_, damaged.reason));
    }
    left_ = left_.subspan(step.taken);
    inside_ = !step.ended;
    if (inside_ && step.taken == 0 && step.made == 0 && at_end_) {
      refuse(
          fmt::format("is cut short: it ends at byte {} within the {} data that begin at byte "
                      "{}",
                      file_offset(), format_, member_begin_));
    }
    return step.made;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(
        fmt::format("--input: {} {}; get the file again, or leave it out: --exclude '{}'", path_,
                    what, path_.substr(path_.rfind('/') + 1)));
  }

  std::string path_;
  const char* format_;
  PlainBytes packed_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<char> buffer_;
  std::span<const char> left_;  ///< of the buffer, not decoded yet
  bool at_end_ = false;         ///< of the file
  bool inside_ = false;         ///< within a member
  std::int64_t member_begin_ = 0;
};

}  // namespace

std::unique_ptr<Decoder> Decoder::make(Compression compression) {
  switch (compression) {
    case Compression::kNone:
      break;
    case Compression::kGzip:
      return make_gzip_decoder();
    case Compression::kZstd:
      return make_zstd_decoder();
    case Compression::kXz:
      return make_xz_decoder();
  }
  return nullptr;
}

std::unique_ptr<ByteStream> ByteStream::open(const std::string& path, Compression compression) {
  if (compression == Compression::kNone) {
    return std::make_unique<PlainBytes>(path);
  }
  return std::make_unique<DecodedBytes>(path, compression);
}

}  // namespace dstrain
