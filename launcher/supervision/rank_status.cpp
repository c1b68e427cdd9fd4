#include "launcher/supervision/rank_status.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "engine/base/wire.h"

namespace dstrain::launcher {
namespace {

constexpr std::uint8_t kVersion = 3;
// An honest agent sends no more than these.
constexpr std::size_t kMostGroups = 64;
constexpr std::size_t kLongestText = 256;

std::int64_t nanoseconds(RankStatus::Duration duration) {
  return duration.count();
}

struct GroupOnWire {
  std::string name;
  std::uint64_t started = 0;
  std::string operation;
  std::int64_t operating_for = 0;

  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(name, started, operation, operating_for);
  }
};

/// A RankStatus as it travels: durations in nanoseconds, -1 for none.
struct StatusOnWire {
  std::uint8_t version = kVersion;
  std::uint8_t phase = 0;
  bool has_spoken = false;
  std::int64_t in_phase_for = 0, num_steps = 0, step = 0, computing = 0, longest_step = 0,
               longest_evaluation = 0, longest_save = 0, comparable = 0, waiting_for = -1;
  std::uint8_t letter = 0;
  std::int64_t cpu_time = 0;
  std::string kernel_wait;
  std::vector<GroupOnWire> groups;

  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(version, phase, has_spoken, in_phase_for, num_steps, step, computing, longest_step,
         longest_evaluation, longest_save, comparable, waiting_for, letter, cpu_time, kernel_wait,
         groups);
  }
  [[nodiscard]] bool makes_sense() const {
    return version == kVersion && phase < kNumRankPhases && kernel_wait.size() <= kLongestText &&
           groups.size() <= kMostGroups &&
           std::all_of(groups.begin(), groups.end(), [](const GroupOnWire& group) {
             return group.name.size() <= kLongestText && group.operation.size() <= kLongestText;
           });
  }
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
  StatusOnWire sent{.phase = static_cast<std::uint8_t>(status.phase),
                    .has_spoken = status.has_spoken,
                    .in_phase_for = nanoseconds(status.in_phase_for),
                    .num_steps = status.num_steps,
                    .step = status.step,
                    .computing = nanoseconds(status.computing),
                    .longest_step = nanoseconds(status.longest_step),
                    .longest_evaluation = nanoseconds(status.longest_evaluation),
                    .longest_save = nanoseconds(status.longest_save),
                    .comparable = status.comparable,
                    .waiting_for = status.waiting_for ? nanoseconds(*status.waiting_for) : -1,
                    .letter = static_cast<std::uint8_t>(status.process.letter),
                    .cpu_time = nanoseconds(status.process.cpu_time),
                    .kernel_wait = status.process.kernel_wait.substr(0, kLongestText)};
  for (const RankStatus::Group& group : status.groups) {
    sent.groups.push_back({.name = group.name.substr(0, kLongestText),
                           .started = group.started,
                           .operation = group.operation.substr(0, kLongestText),
                           .operating_for = nanoseconds(group.operating_for)});
  }
  WireWriter wire;
  wire(sent);
  return wire.take();
}

std::optional<RankStatus> rank_status_from(std::string_view bytes) {
  using Duration = RankStatus::Duration;
  StatusOnWire sent;
  try {
    WireReader wire(bytes);
    wire(sent);
    wire.end();
  } catch (const ProtocolError&) {
    return std::nullopt;
  }
  if (!sent.makes_sense()) return std::nullopt;
  RankStatus status{.has_spoken = sent.has_spoken,
                    .phase = static_cast<RankPhase>(sent.phase),
                    .in_phase_for = Duration{sent.in_phase_for},
                    .num_steps = sent.num_steps,
                    .step = sent.step,
                    .computing = Duration{sent.computing},
                    .longest_step = Duration{sent.longest_step},
                    .longest_evaluation = Duration{sent.longest_evaluation},
                    .longest_save = Duration{sent.longest_save},
                    .comparable = static_cast<int>(sent.comparable)};
  if (sent.waiting_for >= 0) status.waiting_for = Duration{sent.waiting_for};
  status.process = {.letter = static_cast<char>(sent.letter),
                    .cpu_time = Duration{sent.cpu_time},
                    .kernel_wait = std::move(sent.kernel_wait)};
  for (GroupOnWire& group : sent.groups) {
    status.groups.push_back({.name = std::move(group.name),
                             .started = group.started,
                             .operation = std::move(group.operation),
                             .operating_for = Duration{group.operating_for}});
  }
  return status;
}

}  // namespace dstrain::launcher
