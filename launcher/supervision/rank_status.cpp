#include "launcher/supervision/rank_status.h"

#include <array>

#include <fmt/format.h>

namespace dstrain::launcher {
std::string_view name_of(RankPhase phase) {
  constexpr std::array<std::string_view, kNumRankPhases> kNames = {
      "starting", "computing", "evaluating", "saving a checkpoint", "ending"};
  return kNames[static_cast<std::size_t>(phase)];
}

const RankStatus::Group* RankStatus::waits_in() const {
  // While a checkpoint is written during training, the thread that computes may wait for the one
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
      return "is in an unknown state";
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

}  // namespace dstrain::launcher
