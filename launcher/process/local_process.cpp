#include "launcher/process/local_process.h"

#include <csignal>
#include <fstream>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/process/process_state.h"
#include "launcher/supervision/status_page.h"

namespace dstrain::launcher {
namespace {

using std::chrono::steady_clock;

constexpr int kStatusFd = STDERR_FILENO + 1;  // the status page, in the program
constexpr int kListenerFd = kStatusFd + 1;    // the socket that listens for it

/// The spec with the variables that tell the program which of its files is what.
ProcessSpec with_files_named(ProcessSpec spec, bool has_listener) {
  spec.environment.emplace_back(kStatusPageVariable, std::to_string(kStatusFd));
  spec.unset.emplace_back(kListenerVariable);
  if (has_listener) spec.environment.emplace_back(kListenerVariable, std::to_string(kListenerFd));
  return spec;
}

class LocalProcess final : public Process {
 public:
  LocalProcess(asio::io_context& loop,
               const ProcessSpec& spec,
               const FileDescriptor& listener,
               std::chrono::milliseconds start_patience,
               OomWatch& oom_watch,
               ProcessEvents events)
      : oom_watch_(oom_watch), page_(StatusPage::make()) {
    // Its stdin, which nothing is written to, is its lifeline: the launcher's death reaches it as
    // the end of that and as a signal.
    ProgramTies ties{.other_files = {page_.fd()}, .death_signal = SIGTERM};
    if (listener) ties.other_files.push_back(listener.get());
    child_ = std::make_shared<Child>(loop, with_files_named(spec, static_cast<bool>(listener)),
                                     ties, start_patience);
    oom_watch_.started(child_->pid());
    child_->listen({.on_output = std::move(events.on_output),
                    .before_reaping = [this](ExitStatus& status) { before_reaping(status); },
                    .on_exit = std::move(events.on_exit)});
    child_->read(OutputStream::kStdout);
    child_->read(OutputStream::kStderr);
  }
  ~LocalProcess() override { child_->abandon(); }

  [[nodiscard]] long pid() const override { return child_->pid(); }

  [[nodiscard]] std::optional<RankStatus> status() const override {
    if (child_->has_ended()) return std::nullopt;
    std::optional<RankStatus> status = page_.read();
    if (!status) {
      status = RankStatus{.has_spoken = false, .in_phase_for = steady_clock::now() - began_};
    }
    status->process = process_state(child_->pid());
    return status;
  }

  void signal(int number) noexcept override {
    killed_by_us_ = killed_by_us_ || number == SIGKILL;
    child_->signal(number);
  }

 private:
  void before_reaping(ExitStatus& status) {
    if (status.signal == SIGKILL && !killed_by_us_) {
      status.detail = oom_watch_.explain_kill(child_->pid());
    }
    child_->signal(SIGKILL);  // the rest of its group
  }

  const steady_clock::time_point began_ = steady_clock::now();
  OomWatch& oom_watch_;  // the spawner's
  bool killed_by_us_ = false;
  const StatusPage page_;
  std::shared_ptr<Child> child_;
};

/// The ids of the main thread's children; empty where the kernel does not list them.
std::set<pid_t> own_children() {
  std::set<pid_t> children;
  std::ifstream list(fmt::format("/proc/self/task/{}/children", getpid()));
  for (pid_t pid = 0; list >> pid;)
    children.insert(pid);
  return children;
}

}  // namespace

LocalSpawner::LocalSpawner(asio::io_context& loop, std::chrono::milliseconds start_patience)
    : loop_(loop), start_patience_(start_patience), children_before_(own_children()) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::unique_ptr<Process> LocalSpawner::start(const ProcessSpec& spec, ProcessEvents events) {
  const FileDescriptor listener =
      spec.takes_listener ? std::exchange(listener_, {}) : FileDescriptor();
  return std::make_unique<LocalProcess>(loop_, spec, listener, start_patience_, oom_watch_,
                                        std::move(events));
}

void LocalSpawner::sweep() noexcept {
  // Processes that are killed may leave orphans in turn, which then become children of this
  // process; hence the rounds. A process that the kernel cannot end now (waiting for a dead disk)
  // is left to it.
  constexpr int kRounds = 1000;
  constexpr useconds_t kRoundMicroseconds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    bool found = false;
    for (const pid_t pid : own_children()) {
      if (children_before_.contains(pid)) continue;
      found = true;
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, WNOHANG);
    }
    if (!found) return;
    usleep(kRoundMicroseconds);
  }
}

}  // namespace dstrain::launcher
