#include "launcher/process/local_process.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/process/process_state.h"
#include "launcher/process/program_start.h"

namespace dstrain::launcher {
namespace {

using std::chrono::steady_clock;

/// The longest wait for a process that cannot run, once it is to end.
constexpr std::chrono::seconds kEndPatience{3};

/// "dstrain train CONFIG …", shortened.
std::string command_text(const ProcessSpec& spec) {
  constexpr std::size_t kLongest = 200;
  std::string text = fmt::format("{}", fmt::join(spec.argv, " "));
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "…";
  return text;
}

/// A process that the kernel cannot end now (waiting for a dead disk) is left to it.
void reap(pid_t pid) {
  constexpr int kRounds = 1000;
  constexpr useconds_t kRoundMicroseconds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    const pid_t reaped = waitpid(pid, nullptr, WNOHANG);
    if (reaped == pid || (reaped < 0 && errno != EINTR)) return;
    usleep(kRoundMicroseconds);
  }
}

class LocalProcess final : public Process {
 public:
  LocalProcess(asio::io_context& loop,
               const ProcessSpec& spec,
               StartedChild child,
               std::chrono::milliseconds start_patience,
               OomWatch& oom_watch,
               ProcessEvents events)
      : spec_(spec),
        pid_(child.pid),
        oom_watch_(oom_watch),
        lifeline_(std::move(child.lifeline)),
        page_(std::move(child.page)),
        events_(std::move(events)),
        outputs_{Output{asio::posix::stream_descriptor(loop, child.out.release()),
                        OutputStream::kStdout},
                 Output{asio::posix::stream_descriptor(loop, child.err.release()),
                        OutputStream::kStderr}},
        exec_result_(loop, child.exec_result.release()),
        start_timer_(loop),
        child_signals_(loop, SIGCHLD) {
    for (Output& output : outputs_) {
      output.pipe.non_blocking(true);
      read_when_ready(output);
    }
    exec_result_.non_blocking(true);
    await_exec();
    give_up_starting_after(start_patience);
    wait_for_exit();
    // It may have ended before the signal was asked for.
    asio::post(loop, [this, alive = watch()] {
      if (!alive.expired()) look_for_exit();
    });
  }

  ~LocalProcess() override {
    if (ended_) return;
    signal(SIGKILL);
    reap(pid_);
  }

  [[nodiscard]] long pid() const override { return pid_; }

  [[nodiscard]] std::optional<RankStatus> status() const override {
    if (ended_) return std::nullopt;
    std::optional<RankStatus> status = page_.read();
    if (!status) {
      status = RankStatus{.has_spoken = false, .in_phase_for = steady_clock::now() - began_};
    }
    status->process = process_state(pid_);
    return status;
  }

  void signal(int number) noexcept override {
    if (ended_) return;
    killed_by_us_ = killed_by_us_ || number == SIGKILL;
    kill(-pid_, number);
    // The signal stays pending as long as the child cannot go on; nothing of it is worth a wait.
    const bool ends_it = number == SIGTERM || number == SIGINT;
    if (is_starting() && ends_it) give_up_starting_after(kEndPatience);
  }

 private:
  struct Output {
    asio::posix::stream_descriptor pipe;
    OutputStream stream;
  };
  static constexpr size_t kReadBytes = 1 << 16;  // a pipe's capacity

  /// Expires with this object: a handler may be due already when that happens.
  [[nodiscard]] std::weak_ptr<const int> watch() const { return alive_; }

  void read_when_ready(Output& output) {
    output.pipe.async_wait(asio::posix::stream_descriptor::wait_read,
                           [this, &output, alive = watch()](const asio::error_code& error) {
                             if (alive.expired() || error) return;
                             if (read_some(output)) read_when_ready(output);
                           });
  }

  /// One read, so that no rank's flood keeps the others waiting. False at the end of the output.
  bool read_some(Output& output) {
    std::array<char, kReadBytes> buffer;
    asio::error_code error;
    const size_t size = output.pipe.read_some(asio::buffer(buffer), error);
    if (size > 0) events_.on_output(output.stream, {buffer.data(), size});
    if (error && error != asio::error::would_block && error != asio::error::interrupted) {
      asio::error_code ignored;
      output.pipe.close(ignored);
      return false;
    }
    return true;
  }

  [[nodiscard]] bool is_starting() const { return exec_result_.is_open(); }

  void await_exec() {
    exec_result_.async_wait(asio::posix::stream_descriptor::wait_read,
                            [this, alive = watch()](const asio::error_code& error) {
                              if (alive.expired() || error || ended_) return;
                              learn_of_exec();
                              // asio may hand on what was meant for a closed descriptor of which
                              // this one has the place.
                              if (is_starting()) await_exec();
                            });
  }

  /// Its end of the pipe is closed, or tells why there is no program; then it ends in a moment.
  void learn_of_exec() {
    const auto result = read_exec_result(exec_result_.native_handle(), spec_);
    if (!result) return;
    why_not_begun_ = *result;
    asio::error_code ignored;
    exec_result_.close(ignored);
    start_timer_.cancel();
  }

  void give_up_starting_after(std::chrono::milliseconds patience) {
    start_timer_.expires_after(patience);
    start_timer_.async_wait([this, alive = watch()](const asio::error_code& error) {
      if (alive.expired() || error || ended_ || !is_starting()) return;
      give_up_starting();
    });
  }

  void give_up_starting() {
    const std::chrono::duration<double> waited = steady_clock::now() - began_;
    const ProcessState state = process_state(pid_);
    signal(SIGKILL);  // its exit is not waited for: it may hang in the kernel; sweep() reaps it
    end({.code = kNotStarted,
         .detail = fmt::format("{} has not begun {:.1f} s after its process was made: it {}",
                               command_text(spec_), waited.count(), describe(state)),
         .never_began = true});
  }

  void wait_for_exit() {
    child_signals_.async_wait([this, alive = watch()](const asio::error_code& error, int) {
      if (alive.expired() || error) return;
      if (!look_for_exit()) wait_for_exit();
    });
  }

  /// True once it has ended.
  bool look_for_exit() {
    if (ended_) return true;
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      return false;
    }
    if (is_starting()) learn_of_exec();  // which may not have been told yet
    // Still a zombie, so its cgroup is known, and its id cannot have become another group's: end
    // the rest of its group.
    const bool killed = info.si_code != CLD_EXITED && info.si_status == SIGKILL && !killed_by_us_;
    std::string detail = killed ? oom_watch_.explain_kill(pid_) : "";
    kill(-pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (!why_not_begun_.empty()) {
      end({.code = kNotStarted, .detail = why_not_begun_, .never_began = true});
    } else if (info.si_code == CLD_EXITED) {
      end({.code = info.si_status});
    } else {
      end({.signal = info.si_status, .detail = std::move(detail)});
    }
    return true;
  }

  void end(const ExitStatus& status) {
    ended_ = true;
    child_signals_.cancel();
    start_timer_.cancel();
    asio::error_code ignored;
    exec_result_.close(ignored);
    lifeline_.reset();
    for (Output& output : outputs_)
      drain(output);
    events_.on_exit(status);
  }

  /// Reads what the ended process left in the pipe. Something outside its group may still be
  /// writing; one pipe's capacity is as much as the process itself can have left.
  void drain(Output& output) {
    asio::error_code error;
    size_t drained = 0;
    while (output.pipe.is_open() && drained < kReadBytes) {
      std::array<char, kReadBytes> buffer;
      const size_t size = output.pipe.read_some(asio::buffer(buffer), error);
      if (error) break;
      drained += size;
      events_.on_output(output.stream, {buffer.data(), size});
    }
    output.pipe.close(error);
  }

  const ProcessSpec spec_;
  const pid_t pid_;
  const steady_clock::time_point began_ = steady_clock::now();
  OomWatch& oom_watch_;  // the spawner's
  bool killed_by_us_ = false;
  FileDescriptor lifeline_;
  const StatusPage page_;
  ProcessEvents events_;
  std::array<Output, 2> outputs_;
  asio::posix::stream_descriptor exec_result_;  // open until it is known
  asio::steady_timer start_timer_;
  std::string why_not_begun_;
  asio::signal_set child_signals_;
  bool ended_ = false;
  /// Owned by this object alone; handlers hold weak pointers to it.
  std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
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

LocalSpawner::LocalSpawner(asio::io_context& loop, const LocalSpawnerOptions& options)
    : loop_(loop), options_(options), children_before_(own_children()) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::unique_ptr<Process> LocalSpawner::start(const ProcessSpec& spec, ProcessEvents events) {
  const FileDescriptor listener =
      spec.takes_listener ? std::exchange(listener_, {}) : FileDescriptor();
  StartedChild child = start_child(spec, listener);
  oom_watch_.started(child.pid);
  return std::make_unique<LocalProcess>(loop_, spec, std::move(child), options_.start_patience,
                                        oom_watch_, std::move(events));
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
