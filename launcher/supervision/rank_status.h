// RankStatus: what a rank was doing at the moment of observation, as the launcher judges it:
// durations only, so that it means the same on another host's clock. Travels from agent to
// launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/wire.h"

namespace dstrain::launcher {

enum class RankPhase : std::uint8_t { kStarting, kTraining, kEvaluating, kSaving, kEnding };
constexpr int kNumRankPhases = 5;
/// "computing" for training: what a rank does there when it does not wait.
std::string_view name_of(RankPhase phase);

/// A process as the kernel sees it.
struct ProcessState {
  char letter =
      0;  ///< 'R' running, 'S' sleeping, 'D' not to be interrupted, 'T' stopped; 0: unknown
  std::chrono::nanoseconds cpu_time{};  ///< used by all its threads so far
  std::string kernel_wait{};            ///< the kernel's function that it sleeps in, if it says so

  [[nodiscard]] bool is_stopped() const { return letter == 'T' || letter == 't'; }
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(letter, cpu_time, kernel_wait);
  }
};

/// "is stopped (state T)", "cannot be interrupted (state D) in the kernel's nfs_wait".
std::string describe(const ProcessState& process);

struct RankStatus {
  using Duration = std::chrono::nanoseconds;

  /// One set of ranks that this rank works with.
  struct Group {
    std::string name{};         ///< unique in the job: two ranks that say the same name share it
    std::uint64_t started = 0;  ///< collectives begun
    std::string operation{};    ///< under way: "all_reduce (gradient)"; empty: none
    Duration operating_for{};

    bool operator==(const Group&) const = default;
    template <typename Wire>
    void pass_fields(Wire& wire) {
      wire(name, started, operation, operating_for);
    }
  };

  bool has_spoken = true;  ///< false: only process and in_phase_for are known, since its start
  RankPhase phase = RankPhase::kStarting;
  Duration in_phase_for{};
  std::int64_t num_steps = 0;  ///< finished by this process
  std::int64_t step = 0;       ///< number, in the run, of the last one
  Duration computing{};        ///< time in those steps without waiting for others
  Duration longest_step{};
  Duration longest_evaluation{};
  Duration longest_save{};
  int comparable = 0;                     ///< ranks with the same number do the same work
  std::optional<Duration> waiting_for{};  ///< how long it has waited, if it does
  std::vector<Group> groups{};
  ProcessState process{};

  /// The group whose collective it waits in, or nullptr.
  [[nodiscard]] const Group* waits_in() const;
  /// "waiting in all_gather (metric) of group "world" for 12.3 s", "computing for 62.0 s".
  [[nodiscard]] std::string describe() const;

  /// Throws ProtocolError where what is read has no known phase.
  template <typename Wire>
  void pass_fields(Wire& wire) {
    wire(has_spoken, phase, in_phase_for, num_steps, step, computing, longest_step,
         longest_evaluation, longest_save, comparable, waiting_for, groups, process);
    if (static_cast<int>(phase) >= kNumRankPhases) throw ProtocolError("a rank in no known phase");
  }
};

/// "0.02 s", "12.3 s", "3 min 20 s".
std::string text_of(std::chrono::nanoseconds duration);

}  // namespace dstrain::launcher
