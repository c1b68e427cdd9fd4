// LineSplitter: bytes as they come out of a pipe, cut into lines.
//
// A line that ends in '\n' (or "\r\n") is a log line. One that ends in '\r' alone is a status line,
// which the next one replaces. Whether '\n' follows may be known only with the next bytes: the
// status is reported at once then, and again as a log line if it turns out to be one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain::launcher {

enum class LineKind : std::uint8_t {
  kLog,
  kLogPart,  ///< part of a line longer than kMaxBytes, or that was never ended
  kStatus
};

class LineSplitter {
 public:
  static constexpr size_t kMaxBytes = 1 << 16;

  /// Calls emit(LineKind, std::string_view line), the line without its end.
  template <typename Emit>
  void feed(std::string_view bytes, const Emit& emit) {
    if (after_return_ && !bytes.empty()) {
      after_return_ = false;
      if (bytes.front() == '\n') {
        emit(LineKind::kLog, last_status_);
        bytes.remove_prefix(1);
      }
    }
    while (!bytes.empty()) {
      const size_t end = bytes.find_first_of("\r\n");
      partial_ += bytes.substr(0, end);
      if (end == std::string_view::npos) break;
      const bool is_return = bytes[end] == '\r';
      bytes.remove_prefix(end + 1);
      if (is_return && bytes.empty()) {
        after_return_ = true;
        last_status_ = partial_;
      }
      const bool is_log = !is_return || bytes.starts_with('\n');
      if (is_return && is_log) bytes.remove_prefix(1);
      emit(is_log ? LineKind::kLog : LineKind::kStatus, partial_);
      partial_.clear();
    }
    if (partial_.size() > kMaxBytes) flush(emit);
  }

  /// A last line that was never ended.
  template <typename Emit>
  void flush(const Emit& emit) {
    if (!partial_.empty()) emit(LineKind::kLogPart, partial_);
    partial_.clear();
  }

 private:
  std::string partial_;
  std::string last_status_;
  bool after_return_ = false;
};

}  // namespace dstrain::launcher
