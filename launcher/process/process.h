// Spawner and Process: starting a program somewhere and hearing from it, through an event loop.
//
// The contract that every implementation keeps: the program leads a process group of its own; its
// stdin is a lifeline (it ends when the launcher is gone, whatever ended that); its stdout and
// stderr come back as bytes; its fourth file is a status page (status_page.h); and once it has
// ended, nothing of its group is left.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/process/job.h"
#include "launcher/supervision/rank_status.h"

namespace dstrain::launcher {

enum class OutputStream : std::uint8_t { kStdout, kStderr };

struct ExitStatus {
  int code = 0;    ///< exit code, if signal is 0
  int signal = 0;  ///< the signal that ended it, or 0
  /// Anything else that is known of the cause, as a clause, or empty: "killed by the kernel's
  /// out-of-memory killer: memory cgroup /x, limit 8 GiB".
  std::string detail{};
  bool never_began = false;  ///< code is kNotStarted, and detail says why there was no program
};

/// The exit code that a shell gives where there is no program.
constexpr int kNotStarted = 127;

/// Called from the event loop, never from within start() or signal().
struct ProcessEvents {
  std::function<void(OutputStream, std::string_view bytes)> on_output{};
  /// Called once, after the last output.
  std::function<void(ExitStatus)> on_exit{};
  /// Called once, in place of on_exit, when nothing can be learned of the process any more. `why`
  /// is a clause: "no word from its host w1 for 5 s".
  std::function<void(std::string why)> on_lost{};
};

class Process {
 public:
  Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  /// Kills what still runs.
  virtual ~Process() = default;

  [[nodiscard]] virtual long pid() const = 0;
  /// The newest status that is known; nothing if it has not reported yet, or has ended.
  [[nodiscard]] virtual std::optional<RankStatus> status() const { return std::nullopt; }
  /// Sends to the whole process group. Nothing happens if the process has ended.
  virtual void signal(int number) noexcept = 0;
};

class Spawner {
 public:
  Spawner() = default;
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;
  virtual ~Spawner() = default;

  /// Throws std::system_error where there can be no process for it. What keeps the process from
  /// becoming the program is reported by on_exit.
  virtual std::unique_ptr<Process> start(const ProcessSpec& spec, ProcessEvents events) = 0;
  /// Called after all processes have ended: kills what left their process groups and lived on.
  virtual void sweep() noexcept {}
};

}  // namespace dstrain::launcher
