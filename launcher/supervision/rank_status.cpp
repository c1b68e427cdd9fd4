#include "launcher/supervision/rank_status.h"

#include <array>

#include <fmt/format.h>

namespace dstrain::launcher {
namespace {

constexpr std::uint8_t kVersion = 2;
// What no honest agent sends more of.
constexpr std::size_t kMostGroups = 64;
constexpr std::size_t kLongestText = 256;

class Writer {
 public:
  void number(std::uint64_t value) {
    for (unsigned shift = 0; shift < 64; shift += 8)
      bytes_ += static_cast<char>(value >> shift & 0xff);
  }
  void signed_number(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  void duration(RankStatus::Duration value) { signed_number(value.count()); }
  void text(std::string_view value) {
    value = value.substr(0, kLongestText);
    number(value.size());
    bytes_ += value;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Past the end everything is 0 and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t number() {
    const std::string_view taken = take(8);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < taken.size(); ++i)
      value |= std::uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    return value;
  }
  std::int64_t signed_number() { return static_cast<std::int64_t>(number()); }
  RankStatus::Duration duration() { return RankStatus::Duration{signed_number()}; }
  std::string text() {
    const std::uint64_t size = number();
    if (size > kLongestText) ok_ = false;
    return ok_ ? std::string(take(size)) : std::string();
  }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view take(std::size_t size) {
    if (!ok_ || size > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace

std::string_view name_of(RankPhase phase) {
  constexpr std::array<std::string_view, kNumRankPhases> kNames = {
      "starting", "computing", "evaluating", "saving a checkpoint", "ending"};
  return kNames[static_cast<std::size_t>(phase)];
}

const RankStatus::Group* RankStatus::waits_in() const {
  // While a checkpoint is written beside training, the thread that computes may wait for the one
  // that saves.
  if (!waiting_for && phase != RankPhase::kSaving) return nullptr;
  const Group* longest = nullptr;
  for (const Group& group : groups) {
    if (group.operation.empty()) continue;
    if (longest == nullptr || group.operating_for > longest->operating_for) longest = &group;
  }
  return longest;
}

std::string RankStatus::describe() const {
  if (const Group* const group = waits_in()) {
    return fmt::format("waiting in {} of group \"{}\" for {}", group->operation, group->name,
                       text_of(group->operating_for));
  }
  if (waiting_for) return fmt::format("waiting for {}", text_of(*waiting_for));
  return fmt::format("{} for {}", name_of(phase), text_of(in_phase_for));
}

std::string describe(const ProcessState& process) {
  const std::string in_kernel =
      process.kernel_wait.empty() ? "" : fmt::format(" in the kernel's {}", process.kernel_wait);
  switch (process.letter) {
    case 'T':
      return "is stopped (state T)";
    case 't':
      return "is stopped by a debugger (state t)";
    case 'D':
      return fmt::format("cannot be interrupted (state D){}", in_kernel);
    case 'R':
      return "is running (state R)";
    case 0:
      return "is in a state that is not known";
    default:
      return fmt::format("sleeps (state {}){}", process.letter, in_kernel);
  }
}

std::string text_of(std::chrono::nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  constexpr double kMinute = 60.0;
  if (seconds < 10.0) return fmt::format("{:.2f} s", seconds);
  if (seconds < 3 * kMinute) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(seconds);
  return fmt::format("{} min {} s", whole / 60, whole % 60);
}

std::string to_bytes(const RankStatus& status) {
  Writer out;
  out.number(kVersion);
  out.number(static_cast<std::uint64_t>(status.phase));
  out.number(status.has_spoken ? 1 : 0);
  out.duration(status.in_phase_for);
  out.signed_number(status.num_steps);
  out.signed_number(status.step);
  out.duration(status.computing);
  out.duration(status.longest_step);
  out.duration(status.longest_evaluation);
  out.duration(status.longest_save);
  out.signed_number(status.comparable);
  out.number(status.waiting_for ? 1 : 0);
  out.duration(status.waiting_for.value_or(RankStatus::Duration{}));
  out.number(static_cast<unsigned char>(status.process.letter));
  out.duration(status.process.cpu_time);
  out.text(status.process.kernel_wait);
  out.number(status.groups.size());
  for (const RankStatus::Group& group : status.groups) {
    out.text(group.name);
    out.number(group.started);
    out.text(group.operation);
    out.duration(group.operating_for);
  }
  return out.take();
}

std::optional<RankStatus> rank_status_from(std::string_view bytes) {
  Reader in(bytes);
  if (in.number() != kVersion) return std::nullopt;
  RankStatus status;
  const std::uint64_t phase = in.number();
  status.has_spoken = in.number() != 0;
  if (phase >= kNumRankPhases) return std::nullopt;
  status.phase = static_cast<RankPhase>(phase);
  status.in_phase_for = in.duration();
  status.num_steps = in.signed_number();
  status.step = in.signed_number();
  status.computing = in.duration();
  status.longest_step = in.duration();
  status.longest_evaluation = in.duration();
  status.longest_save = in.duration();
  status.comparable = static_cast<int>(in.signed_number());
  const bool waits = in.number() != 0;
  const RankStatus::Duration waited = in.duration();
  if (waits) status.waiting_for = waited;
  status.process.letter = static_cast<char>(in.number());
  status.process.cpu_time = in.duration();
  status.process.kernel_wait = in.text();
  const std::uint64_t num_groups = in.number();
  if (num_groups > kMostGroups) return std::nullopt;
  for (std::uint64_t i = 0; i < num_groups && in.ok(); ++i) {
    RankStatus::Group group;
    group.name = in.text();
    group.started = in.number();
    group.operation = in.text();
    group.operating_for = in.duration();
    status.groups.push_back(std::move(group));
  }
  return in.at_end() ? std::optional(std::move(status)) : std::nullopt;
}

}  // namespace dstrain::launcher
