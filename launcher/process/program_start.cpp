#include "launcher/process/program_start.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "launcher/process/task_limits.h"

namespace dstrain::launcher {
namespace {

constexpr int kStatusFd = STDERR_FILENO + 1;  // of the status page, in the program
constexpr int kListenerFd = kStatusFd + 1;    // of the socket that listens for it

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
std::vector<std::string> environment_of(const ProcessSpec& spec, bool has_listener) {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.insert_or_assign(std::string(text.substr(0, equals)), text.substr(equals + 1));
  }
  variables.erase(kListenerVariable);
  for (const std::string& name : spec.unset)
    variables.erase(name);
  for (const auto& [name, value] : spec.environment)
    variables.insert_or_assign(name, value);
  variables.insert_or_assign(kStatusPageVariable, std::to_string(kStatusFd));
  if (has_listener) variables.insert_or_assign(kListenerVariable, std::to_string(kListenerFd));
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

/// The child's message when it cannot become the program.
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
  int listener_fd;  ///< may be -1
  int error_fd;     ///< gets a StartError if anything fails; closed by a successful exec
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
  // This closes descriptors that the launcher itself inherited too: a rank must not keep somebody's
  // pipe open.
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  // SIGHUP stays as it is: nohup.
  for (const int number : {SIGINT, SIGTERM, SIGQUIT, SIGPIPE, SIGCHLD, SIGUSR1, SIGUSR2}) {
    ::signal(number, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);  // blocked since before the fork
  // Each may have the number that another one is to get.
  const int error_fd = fcntl(plan.error_fd, F_DUPFD_CLOEXEC, kListenerFd + 1);
  const int status_fd = fcntl(plan.status_fd, F_DUPFD_CLOEXEC, kListenerFd + 1);
  const int listener_fd =
      plan.listener_fd < 0 ? -1 : fcntl(plan.listener_fd, F_DUPFD_CLOEXEC, kListenerFd + 1);
  const bool in_place = plan.working_folder == nullptr || chdir(plan.working_folder) == 0;
  if (in_place && error_fd >= 0 && status_fd >= 0 && dup2(plan.stdin_fd, STDIN_FILENO) >= 0 &&
      dup2(plan.stdout_fd, STDOUT_FILENO) >= 0 && dup2(plan.stderr_fd, STDERR_FILENO) >= 0 &&
      dup2(status_fd, kStatusFd) >= 0 &&
      (plan.listener_fd < 0 || dup2(listener_fd, kListenerFd) >= 0)) {
    execve(plan.executable, plan.argv, plan.envp);
  }
  const StartError error{.number = errno, .is_working_folder = in_place ? 0 : 1};
  [[maybe_unused]] const ssize_t written = write(error_fd, &error, sizeof error);
  _exit(kExecFailed);
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

StartedChild start_child(const ProcessSpec& spec, const FileDescriptor& listener) {
  Pipe lifeline = make_pipe();
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe exec_error = make_pipe();
  StatusPage page = StatusPage::make();
  std::vector<std::string> arguments = spec.argv;
  std::vector<std::string> variables = environment_of(spec, static_cast<bool>(listener));
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
      .listener_fd = listener ? listener.get() : -1,
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
  if (pid < 0) {
    const int error = errno;
    throw std::system_error(error, std::generic_category(),
                            "fork" + (error == EAGAIN ? describe_task_limits() : std::string()));
  }

  setpgid(pid, pid);  // here as well: whoever is first, the group exists when this returns
  return {.pid = pid,
          .lifeline = std::move(lifeline.write_end),
          .out = std::move(out.read_end),
          .err = std::move(err.read_end),
          .page = std::move(page),
          .exec_result = std::move(exec_error.read_end)};
}

std::optional<std::string> read_exec_result(int exec_result, const ProcessSpec& spec) {
  StartError error{};
  ssize_t got = 0;
  do {
    got = read(exec_result, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return std::nullopt;
  if (got != sizeof error) return std::string();
  return fmt::format(
      "{}: {}",
      error.is_working_folder != 0 ? "working folder " + spec.working_folder : spec.executable,
      std::generic_category().message(error.number));
}

}  // namespace dstrain::launcher
