#include "cmd/byte_progress.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

namespace dstrain {
namespace {

std::string bar(double share) {
  constexpr int kWidth = 24;
  std::string text;
  for (int i = 0; i < kWidth; ++i) {
    text += i < static_cast<int>(share * kWidth) ? "█" : "░";
  }
  return text + " ";
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

std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<std::int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), 1, ' ');
  }
  return text;
}

std::string as_clock(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

ByteProgress::ByteProgress() : on_terminal_(isatty(STDERR_FILENO) == 1) {}

void ByteProgress::show_phase(const std::string& what, Announce announce) {
  const bool is_new = phase_ != what;
  enter(what);
  if (is_new && !on_terminal_ && announce == Announce::kYes) {
    fmt::print(stderr, "{}\n", what);
  }
  print_if_due(what);
}

void ByteProgress::show_bytes(std::int64_t bytes_done, std::int64_t bytes_total) {
  enter("");
  if (!is_due()) {
    return;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - phase_began_).count();
  const auto done = static_cast<double>(bytes_done);
  const auto total = static_cast<double>(std::max<std::int64_t>(bytes_total, 1));
  const double share = std::min(done / total, 1.0);
  const double rate = seconds > 0.0 ? done / seconds : 0.0;
  const std::string left = rate > 0.0 ? as_clock((total - total * share) / rate) : "-:--";
  print_if_due(fmt::format("{}{:3.0f} %  {} of {}  {}/s  {} left", on_terminal_ ? bar(share) : "",
                           100.0 * share, as_size(bytes_done), as_size(bytes_total),
                           as_size(static_cast<std::int64_t>(rate)), left));
}

void ByteProgress::clear() {
  if (dirty_) {
    fmt::print(stderr, "\r\x1b[K");
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
    fmt::print(stderr, "\r\x1b[K{}", line);
    dirty_ = true;
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

}  // namespace dstrain
