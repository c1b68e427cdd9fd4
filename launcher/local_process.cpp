#include "launcher/local_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/file_descriptor.h"
#include "launcher/process_state.h"
#include "launcher/status_page.h"

namespace dstrain::launcher {
namespace {

constexpr int kStatusFd = STDERR_FILENO + 1;  // of the status page, in the program

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail("pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// The launcher's environment with the spec's changes, as "NAME=value".
std::vector<std::string> environment_of(const ProcessSpec& spec) {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.insert_or_assign(std::string(text.substr(0, equals)), text.substr(equals + 1));
  }
  for (const std::string& name : spec.unset)
    variables.erase(name);
  for (const auto& [name, value] : spec.environment)
    variables.insert_or_assign(name, value);
  variables.insert_or_assign(kStatusPageVariable, std::to_string(kStatusFd));
  std::vector<std::string> entries;
  entries.reserve(variables.size());
  for (const auto& [name, value] : variables)
    entries.push_back(fmt::format("{}={}", name, value));
  return entries;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings)
    pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// What the child tells when it cannot become the program.
struct StartError {
  int number;             ///< errno
  int is_working_folder;  ///< 1: of chdir; 0: of exec
};

/// Everything the child needs between fork and exec, made before the fork: after it only
/// async-signal-safe calls are allowed, since other threads of the launcher may hold locks.
struct ExecPlan {
  const char* executable;
  char* const* argv;
  char* const* envp;
  int stdin_fd, stdout_fd, stderr_fd;
  int status_fd;
  int error_fd;  ///< gets a StartError if anything fails; closed by a successful exec
  pid_t launcher;
  const char* working_folder;  ///< may be nullptr
  const cpu_set_t* cores;      ///< may be nullptr
  size_t cores_bytes;
};

[[noreturn]] void run_child(const ExecPlan& plan) {
  constexpr int kExecFailed = 127;
  setpgid(0, 0);
  // The launcher's death reaches the program twice: as SIGTERM, and as the end of its stdin.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != plan.launcher) _exit(kExecFailed);  // died before the line above
  if (plan.cores != nullptr) sched_setaffinity(0, plan.cores_bytes, plan.cores);
  // Also what the launcher itself inherited: a rank must not keep somebody's pipe open.
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  // SIGHUP stays as it is: nohup.
  for (const int number : {SIGINT, SIGTERM, SIGQUIT, SIGPIPE, SIGCHLD, SIGUSR1, SIGUSR2}) {
    ::signal(number, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);  // blocked since before the fork
  // The errors' pipe may have the number that the status page is to get.
  const int error_fd = fcntl(plan.error_fd, F_DUPFD_CLOEXEC, kStatusFd + 1);
  const int status_fd = fcntl(plan.status_fd, F_DUPFD_CLOEXEC, kStatusFd + 1);
  const bool in_place = plan.working_folder == nullptr || chdir(plan.working_folder) == 0;
  if (in_place && error_fd >= 0 && status_fd >= 0 && dup2(plan.stdin_fd, STDIN_FILENO) >= 0 &&
      dup2(plan.stdout_fd, STDOUT_FILENO) >= 0 && dup2(plan.stderr_fd, STDERR_FILENO) >= 0 &&
      dup2(status_fd, kStatusFd) >= 0) {
    execve(plan.executable, plan.argv, plan.envp);
  }
  const StartError error{.number = errno, .is_working_folder = in_place ? 0 : 1};
  [[maybe_unused]] const ssize_t written = write(error_fd, &error, sizeof error);
  _exit(kExecFailed);
}

class LocalProcess final : public Process {
 public:
  LocalProcess(asio::io_context& loop,
               pid_t pid,
               FileDescriptor lifeline,
               StatusPage page,
               FileDescriptor out,
               FileDescriptor err,
               OomWatch& oom_watch,
               ProcessEvents events)
      : pid_(pid),
        oom_watch_(oom_watch),
        lifeline_(std::move(lifeline)),
        page_(std::move(page)),
        events_(std::move(events)),
        outputs_{
            Output{asio::posix::stream_descriptor(loop, out.release()), OutputStream::kStdout},
            Output{asio::posix::stream_descriptor(loop, err.release()), OutputStream::kStderr}},
        child_signals_(loop, SIGCHLD) {
    for (Output& output : outputs_) {
      output.pipe.non_blocking(true);
      read_when_ready(output);
    }
    wait_for_exit();
    // It may have ended before the signal was asked for.
    asio::post(loop, [this, alive = watch()] {
      if (!alive.expired()) look_for_exit();
    });
  }

  ~LocalProcess() override {
    if (ended_) return;
    signal(SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  [[nodiscard]] long pid() const override { return pid_; }

  [[nodiscard]] std::optional<RankStatus> status() const override {
    std::optional<RankStatus> status = ended_ ? std::nullopt : page_.read();
    if (status) status->process = process_state(pid_);
    return status;
  }

  void signal(int number) noexcept override {
    if (ended_) return;
    killed_by_us_ = killed_by_us_ || number == SIGKILL;
    kill(-pid_, number);
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
    // Still a zombie, so its cgroup is known, and its id cannot have become another group's: end
    // the rest of its group.
    const bool killed = info.si_code != CLD_EXITED && info.si_status == SIGKILL && !killed_by_us_;
    std::string detail = killed ? oom_watch_.explain_kill(pid_) : "";
    kill(-pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    ended_ = true;
    child_signals_.cancel();
    lifeline_.reset();
    for (Output& output : outputs_)
      drain(output);
    events_.on_exit(info.si_code == CLD_EXITED
                        ? ExitStatus{.code = info.si_status}
                        : ExitStatus{.signal = info.si_status, .detail = std::move(detail)});
    return true;
  }

  /// What the ended process left in the pipe. Something outside its group may still be writing;
  /// one pipe's capacity is as much as the process itself can have left.
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

  const pid_t pid_;
  OomWatch& oom_watch_;  // the spawner's
  bool killed_by_us_ = false;
  FileDescriptor lifeline_;
  const StatusPage page_;
  ProcessEvents events_;
  std::array<Output, 2> outputs_;
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

/// No signal is handled while one exists. The child must not run the launcher's handlers, which
/// would report its signals to the launcher.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

LocalSpawner::LocalSpawner(asio::io_context& loop) : loop_(loop), children_before_(own_children()) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::unique_ptr<Process> LocalSpawner::start(const ProcessSpec& spec, ProcessEvents events) {
  Pipe lifeline = make_pipe();
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe exec_error = make_pipe();
  StatusPage page = StatusPage::make();
  std::vector<std::string> arguments = spec.argv;
  std::vector<std::string> variables = environment_of(spec);
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(variables);

  int highest_core = 0;
  for (const int core : spec.cores)
    highest_core = std::max(highest_core, core);
  const size_t mask_bytes = CPU_ALLOC_SIZE(highest_core + 1);
  std::vector<unsigned long> mask(mask_bytes / sizeof(unsigned long));
  auto* const cores = reinterpret_cast<cpu_set_t*>(mask.data());
  for (const int core : spec.cores)
    CPU_SET_S(static_cast<size_t>(core), mask_bytes, cores);

  const ExecPlan plan{
      .executable = spec.executable.c_str(),
      .argv = argv.data(),
      .envp = envp.data(),
      .stdin_fd = lifeline.read_end.get(),
      .stdout_fd = out.write_end.get(),
      .stderr_fd = err.write_end.get(),
      .status_fd = page.fd(),
      .error_fd = exec_error.write_end.get(),
      .launcher = getpid(),
      .working_folder = spec.working_folder.empty() ? nullptr : spec.working_folder.c_str(),
      .cores = spec.cores.empty() ? nullptr : cores,
      .cores_bytes = mask_bytes};
  pid_t pid = 0;
  {
    const SignalsBlocked blocked;
    pid = fork();
    if (pid == 0) run_child(plan);
  }
  if (pid < 0) fail("fork");

  setpgid(pid, pid);  // here as well: whoever is first, the group exists when start() returns
  exec_error.write_end.reset();
  StartError error{};
  ssize_t got = 0;
  do {
    got = read(exec_error.read_end.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof error) {
    waitpid(pid, nullptr, 0);
    errno = error.number;
    fail(error.is_working_folder != 0 ? "working folder " + spec.working_folder : spec.executable);
  }
  oom_watch_.started(pid);
  return std::make_unique<LocalProcess>(loop_, pid, std::move(lifeline.write_end), std::move(page),
                                        std::move(out.read_end), std::move(err.read_end),
                                        oom_watch_, std::move(events));
}

void LocalSpawner::sweep() noexcept {
  // Those killed may leave orphans in turn, which then become children of this process; hence the
  // rounds. A process that the kernel cannot end now (waiting for a dead disk) is left to it.
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
