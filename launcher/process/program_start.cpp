#include "launcher/process/program_start.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/hosts/environment.h"
#include "launcher/process/process.h"
#include "launcher/process/task_limits.h"

namespace dstrain::launcher {
namespace {

[[noreturn]] void fail(const std::string& what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

struct Ends {
  FileDescriptor ours;
  FileDescriptor theirs;
};

/// A pair of sockets: unlike a pipe, writing to one that nobody reads any more is an error and no
/// signal.
Ends make_input(const std::string& file) {
  if (!file.empty()) {
    Ends ends{.theirs = FileDescriptor(open(file.c_str(), O_RDONLY | O_CLOEXEC))};
    if (!ends.theirs) fail(file);
    return ends;
  }
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail("socketpair");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Ends make_output() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail("pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// This process's environment with the spec's changes, as "NAME=value".
std::vector<std::string> environment_of(const ProcessSpec& spec) {
  std::map<std::string, std::string> variables;
  for (auto& [name, value] : own_variables())
    variables.insert_or_assign(std::move(name), std::move(value));
  for (const std::string& name : spec.unset)
    variables.erase(name);
  for (const auto& [name, value] : spec.environment)
    variables.insert_or_assign(name, value);
  std::vector<std::string> entries;
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
/// async-signal-safe calls are allowed, since other threads of this process may hold locks.
struct ExecPlan {
  const ProcessSpec& spec;
  const ProgramTies& ties;
  char* const* argv;
  char* const* envp;
  std::vector<int> files;  ///< element i becomes the program's file i
  int error_fd;            ///< gets a StartError if anything fails; exec closes it
  pid_t parent;
  std::vector<unsigned long> cores;  ///< a cpu_set_t; empty: any
};

/// Moves the files to their numbers. False, with errno, if one cannot be moved.
bool place_files(ExecPlan& plan) {
  const auto count = static_cast<int>(plan.files.size());
  // Each may have the number that another one is to get.
  plan.error_fd = fcntl(plan.error_fd, F_DUPFD_CLOEXEC, count);
  for (int& file : plan.files) {
    file = fcntl(file, F_DUPFD_CLOEXEC, count);
    if (file < 0) return false;
  }
  for (int number = 0; number < count; ++number) {
    if (dup2(plan.files[static_cast<size_t>(number)], number) < 0) return false;
  }
  return plan.error_fd >= 0;
}

[[noreturn]] void run_child(ExecPlan& plan) {
  if (plan.ties.leads_session) {
    setsid();
  } else {
    setpgid(0, 0);
  }
  if (plan.ties.death_signal != 0) prctl(PR_SET_PDEATHSIG, plan.ties.death_signal);
  if (getppid() != plan.parent) _exit(kNotStarted);  // the parent died before the line above
  if (!plan.cores.empty()) {
    sched_setaffinity(0, plan.cores.size() * sizeof plan.cores[0],
                      reinterpret_cast<const cpu_set_t*>(plan.cores.data()));
  }
  // This closes descriptors that this process itself inherited too: a program must not keep
  // somebody's pipe open.
  close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  for (int number = 1; number < NSIG; ++number) {
    const auto before = ::signal(number, SIG_DFL);
    if (number == SIGHUP && before == SIG_IGN) ::signal(SIGHUP, SIG_IGN);  // nohup
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);  // blocked since before the fork
  const std::string& folder = plan.spec.working_folder;
  const bool in_place = folder.empty() || chdir(folder.c_str()) == 0;
  const int chdir_error = errno;
  const bool has_files = place_files(plan);
  if (in_place && has_files) execve(plan.spec.executable.c_str(), plan.argv, plan.envp);
  const StartError error{.number = in_place ? errno : chdir_error,
                         .is_working_folder = in_place ? 0 : 1};
  [[maybe_unused]] const ssize_t written = write(plan.error_fd, &error, sizeof error);
  _exit(kNotStarted);
}

/// The cores as a cpu_set_t that is long enough for the highest.
std::vector<unsigned long> core_mask(const std::vector<int>& cores) {
  if (cores.empty()) return {};
  const int highest = *std::max_element(cores.begin(), cores.end());
  const size_t bytes = CPU_ALLOC_SIZE(highest + 1);
  std::vector<unsigned long> mask(bytes / sizeof(unsigned long));
  for (const int core : cores)
    CPU_SET_S(static_cast<size_t>(core), bytes, reinterpret_cast<cpu_set_t*>(mask.data()));
  return mask;
}

}  // namespace

StartedProgram start_program(const ProcessSpec& spec, const ProgramTies& ties) {
  Ends in = make_input(ties.input_file);
  Ends out = make_output();
  Ends err = make_output();
  Ends exec_error = make_output();
  std::vector<std::string> arguments = spec.argv;
  std::vector<std::string> variables = environment_of(spec);
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(variables);
  ExecPlan plan{.spec = spec,
                .ties = ties,
                .argv = argv.data(),
                .envp = envp.data(),
                .files = {in.theirs.get(), out.theirs.get(), err.theirs.get()},
                .error_fd = exec_error.theirs.get(),
                .parent = getpid(),
                .cores = core_mask(spec.cores)};
  plan.files.insert(plan.files.end(), ties.other_files.begin(), ties.other_files.end());

  // Where this process has inherited an ignored SIGCHLD, the kernel forgets how children ended.
  struct sigaction children {};
  sigaction(SIGCHLD, nullptr, &children);
  if (children.sa_handler == SIG_IGN) ::signal(SIGCHLD, SIG_DFL);
  // The child must not run this process's handlers, which would report its signals here.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) run_child(plan);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    const int error = errno;
    fail("fork" + (error == EAGAIN ? describe_task_limits() : std::string()), error);
  }
  // Set here as well as in the child: whichever is first, the group exists when this returns.
  if (!ties.leads_session) setpgid(pid, pid);
  return {.pid = pid,
          .in = std::move(in.ours),
          .out = std::move(out.ours),
          .err = std::move(err.ours),
          .exec_result = std::move(exec_error.ours)};
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
