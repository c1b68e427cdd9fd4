// Supervisor: runs a job to its end, whatever the end is.
//
//   a process fails  -> wait blame_window for others that failed at the same moment
//                    -> SIGTERM to the rest -> kill_grace -> SIGKILL -> say who was to blame
//   a process is lost with its host          -> the same
//   a process ends early with success -> the same, if the others continue for early_exit_grace
//   the job stands still (hang_watch.h)      -> say who did not arrive; then the same
//   SIGINT, SIGTERM, SIGHUP to the launcher  -> passed on once (they finish the step and save);
//                    the second one is SIGKILL; a rank that is stopped (state T) is continued, and
//                    SIGKILL comes after kill_grace where it is stopped again
//   a process stays for unkillable_grace after SIGKILL (a dead disk) -> it is left to the kernel
//
// blame.h decides who is to blame. All times are those of the launcher's own steady clock; the
// clocks of hosts play no part.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio.hpp>

#include "launcher/process/job.h"
#include "launcher/process/process.h"
#include "launcher/supervision/blame.h"
#include "launcher/supervision/hang_watch.h"
#include "launcher/supervision/log_mux.h"
#include "launcher/supervision/stopped_watch.h"
#include "launcher/supervision/straggler_watch.h"

namespace dstrain::launcher {

struct SupervisorOptions {
  std::chrono::milliseconds blame_window{200};
  /// The time left to the others after a failure: they can neither finish a step without the failed
  /// rank, nor commit a save.
  std::chrono::milliseconds kill_grace{3000};
  std::chrono::milliseconds early_exit_grace{30'000};
  std::chrono::milliseconds unkillable_grace{10'000};
  std::chrono::milliseconds watch_interval{1000};  ///< between two looks at what the ranks do
  HangLimits hang_limits{};
  StragglerLimits straggler_limits{};
  int peer_lost_code = -1;  ///< exit code by which a process says only that a peer was lost
  int hang_code = 1;        ///< the launcher's exit code for a job that stood still
  /// The meaning of an exit code, or empty: "a config is wrong".
  std::function<std::string(int)> describe_exit_code = [](int) { return std::string(); };
};

/// The end of a job.
struct JobOutcome {
  /// 0 if all succeeded; 128 + the signal that interrupted the launcher; otherwise that of the
  /// process to blame: its own, or 128 + the signal that killed it.
  int exit_code = 0;
  int interrupted_by = 0;     ///< the signal by which the user ended it, or 0
  std::string cause{};        ///< in few words: "rank 3 on w1 was killed by …"; or empty
  std::string description{};  ///< the same in full, as the log has it
  /// The hosts of the processes to blame, as in the hostfile; each once.
  std::vector<std::string> failed_hosts{};
};

class Supervisor {
 public:
  Supervisor(asio::io_context& loop, Spawner& spawner, LogMux& log, SupervisorOptions options);

  /// Starts the job and returns when none of its processes is left. Called once for each object.
  /// The log says by then what happened; its last line says who was to blame.
  JobOutcome run(const Job& job);

 private:
  enum class Phase { kRunning, kBlaming, kStopping, kKilling };
  struct Member {
    const ProcessSpec* spec = nullptr;
    std::unique_ptr<Process> process;
    std::optional<RankEnd> end;
  };

  void start_all(const Job& job);
  void on_end(Member& member, RankEnd end);
  void on_signal(int number);
  void wait_for_signal();
  std::function<void(const asio::error_code&)> while_running(std::function<void()> act);
  void watch_later();
  void watch();
  void blame_then_stop();
  void stop();
  void kill_all();
  void give_up_the_unkillable();
  void signal_all(int number);

  [[nodiscard]] bool all_ended() const;
  [[nodiscard]] BlameRules rules() const;
  [[nodiscard]] std::vector<RankEnd> ends() const;
  [[nodiscard]] JobOutcome verdict();

  asio::io_context& loop_;
  Spawner& spawner_;
  LogMux& log_;
  const SupervisorOptions options_;
  asio::signal_set signals_;
  asio::steady_timer timer_;        // ends the phases of blaming and stopping
  asio::steady_timer early_timer_;  // runs since the first early end
  asio::steady_timer watch_timer_;
  HangWatch hang_watch_;
  StragglerWatch straggler_watch_;
  StoppedWatch stopped_watch_;
  std::vector<Member> members_;
  Phase phase_ = Phase::kRunning;
  int num_ends_ = 0;
  int interrupted_by_ = 0;
  std::chrono::steady_clock::time_point interrupted_at_{};
  bool early_exit_blamed_ = false;
  std::optional<Hang> hang_;
  std::optional<JobOutcome> not_started_;
  std::shared_ptr<const int> running_ = std::make_shared<const int>(0);  // none after run()
};

}  // namespace dstrain::launcher
