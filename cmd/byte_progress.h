// ByteProgress: shows on stderr how far a command has come: a bar that moves on a terminal, else a
// line every ten seconds. Also formats sizes and times for people.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dstrain {

/// 1500000 → "1.5 MB"
std::string as_size(std::int64_t bytes);
/// 3661 s → "1:01:01"
std::string as_clock(double seconds);

class ByteProgress {
 public:
  ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;
  ~ByteProgress() { clear(); }

  /// A phase without a measure: "looking for files". Shown off a terminal too if it `announces`.
  enum class Announce : std::uint8_t { kNo, kYes };
  void show_phase(const std::string& what, Announce announce = Announce::kNo);
  /// `before`: how many of `done` were done in an earlier process, and so do not count towards the
  /// rate. `what` is printed in front: "counting words".
  void show_bytes(std::int64_t done,
                  std::int64_t total,
                  std::int64_t before = 0,
                  const std::string& what = "");
  /// Leaves an empty line for what comes next.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  void enter(const std::string& phase);
  void print_if_due(const std::string& line);
  [[nodiscard]] bool is_due() const;

  bool on_terminal_;
  bool dirty_ = false;
  std::string phase_;
  Clock::time_point phase_began_ = Clock::now();
  Clock::time_point shown_{};
};

}  // namespace dstrain
