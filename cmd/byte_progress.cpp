#include "cmd/byte_progress.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

constexpr int kBarWidth = 24;

std::string bar(double share) {
  std::string text;
  for (int i = 0; i < kBarWidth; ++i) {
    text += i < static_cast<int>(share * kBarWidth) ? "█" : "░";
  }
  return text + "  ";
}

/// Returns the terminal's width, or 0 where it is not known.
std::size_t columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// Writes to stderr, which may be a terminal that is gone.
void write_out(const std::string& text) {
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr));
  std::fflush(stderr);
}

}  // namespace

std::string as_size(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000.0 && unit < 4; ++unit) {
    value /= 1000.0;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

ByteProgress::ByteProgress() : on_terminal_(isatty(STDERR_FILENO) == 1) {}

void ByteProgress::show_phase(const std::string& what, Announce announce) {
  const bool is_new = phase_ != what;
  enter(what);
  if (is_new && !on_terminal_ && announce == Announce::kYes) {
    write_out(what + "\n");
  }
  print_if_due(what);
}

void ByteProgress::show_bytes(std::int64_t bytes_done,
                              std::int64_t bytes_total,
                              std::int64_t bytes_before,
                              const std::string& what) {
  enter(what);
  if (!is_due()) {
    return;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - phase_began_).count();
  const auto done = static_cast<double>(bytes_done);
  const auto total = static_cast<double>(std::max<std::int64_t>(bytes_total, 1));
  const double share = std::min(done / total, 1.0);
  const double rate = seconds > 0.0 ? (done - static_cast<double>(bytes_before)) / seconds : 0.0;
  const std::string left = rate > 0.0 ? clock_text((total - total * share) / rate) : "-:--";
  const std::string facts = fmt::format(
      "{}{:3.0f} %  {} of {}  {}/s  {} left", what.empty() ? "" : what + "  ", 100.0 * share,
      as_size(bytes_done), as_size(bytes_total), as_size(static_cast<std::int64_t>(rate)), left);
  const std::size_t width = columns();
  const bool has_room = width == 0 || facts.size() + 2 + kBarWidth < width;
  print_if_due((on_terminal_ && has_room ? bar(share) : "") + facts);
}

void ByteProgress::clear() {
  if (dirty_) {
    write_out("\r\x1b[K");
    dirty_ = false;
  }
}

void ByteProgress::enter(const std::string& phase) {
  if (phase != phase_) {
    phase_ = phase;
    phase_began_ = Clock::now();
    shown_ = {};  // at once
  }
}

bool ByteProgress::is_due() const {
  const auto every = on_terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10);
  const Clock::time_point last = on_terminal_ ? shown_ : std::max(shown_, phase_began_);
  return Clock::now() - last >= every;
}

void ByteProgress::print_if_due(const std::string& line) {
  if (!is_due()) {
    return;
  }
  shown_ = Clock::now();
  if (on_terminal_) {
    // The line does not wrap, and the cursor goes back to its start, where log lines draw over it.
    write_out("\r\x1b[K\x1b[?7l" + line + "\x1b[?7h\r");
    dirty_ = true;
  } else {
    write_out(line + "\n");
  }
}

}  // namespace dstrain
