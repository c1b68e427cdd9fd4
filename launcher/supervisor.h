// Supervisor: runs a job to its end, whatever the end is.
//
//   a process fails  -> wait blame_window for others that failed at the same moment
//                    -> SIGTERM to the rest -> kill_grace -> SIGKILL -> say who was to blame
//   a process ends early with success -> the same, if the others go on for early_exit_grace
//   SIGINT, SIGTERM, SIGHUP to the launcher -> passed on once (they finish the step and save);
//                    the second one is SIGKILL
//
// Who is to blame: the failure observed first, but one that only reports the loss of a peer never
// before one that does not, and a death by signal before an exit code of the same moment. All
// times are the launcher's own steady clock; the clocks of hosts play no part.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio.hpp>

#include "launcher/job.h"
#include "launcher/log_mux.h"
#include "launcher/process.h"

namespace dstrain::launcher {

struct SupervisorOptions {
  std::chrono::milliseconds blame_window{200};
  std::chrono::milliseconds kill_grace{5000};
  std::chrono::milliseconds early_exit_grace{30'000};
  int peer_lost_code = -1;  ///< exit code by which a process says only that a peer was lost
  /// What an exit code means, or empty: "a config is wrong".
  std::function<std::string(int)> describe_exit_code = [](int) { return std::string(); };
};

class Supervisor {
 public:
  Supervisor(asio::io_context& loop, Spawner& spawner, LogMux& log, SupervisorOptions options);

  /// Starts the job and returns when none of its processes is left. The exit code is 0 if all
  /// succeeded; 128 + the signal that interrupted the launcher; otherwise that of the process to
  /// blame: its own, or 128 + the signal that killed it. What happened is in the log by then.
  int run(const Job& job);

 private:
  enum class Phase { kRunning, kBlaming, kStopping, kKilling };
  struct Member {
    const ProcessSpec* spec = nullptr;
    std::unique_ptr<Process> process;
    std::optional<ExitStatus> status;
    Phase ended_in = Phase::kRunning;
    int order = 0;  ///< of its end among all ends, from 1
  };

  bool start_all(const Job& job);
  void on_exit(Member& member, ExitStatus status);
  void on_signal(int number);
  void wait_for_signal();
  void blame_then_stop();
  void stop();
  void kill_all();
  void signal_all(int number);

  [[nodiscard]] bool all_ended() const;
  [[nodiscard]] int verdict();
  [[nodiscard]] bool is_orderly(const Member& member) const;
  [[nodiscard]] int suspicion(const Member& member) const;
  [[nodiscard]] const Member* to_blame() const;
  [[nodiscard]] std::string describe(const Member& member) const;

  asio::io_context& loop_;
  Spawner& spawner_;
  LogMux& log_;
  const SupervisorOptions options_;
  asio::signal_set signals_;
  asio::steady_timer timer_;        // of blaming and stopping
  asio::steady_timer early_timer_;  // since the first early end
  std::vector<Member> members_;
  Phase phase_ = Phase::kRunning;
  int ends_ = 0;
  int interrupted_by_ = 0;
  bool early_exit_blamed_ = false;
};

}  // namespace dstrain::launcher
