#include "tests/cluster/namespaces.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace dstrain::testing {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t size = read(fd, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
}

int flags_of(Isolation isolation) {
  if (isolation == Isolation::kNetwork) return CLONE_NEWNET;
  return CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC;
}

void say(int control, const std::string& line) {
  if (write(control, line.data(), line.size()) < 0) _exit(1);
}

/// The holder's life. `control` is its only open file but the standard three.
[[noreturn]] void hold(Isolation isolation,
                       int control,
                       const std::function<void()>& prepare,
                       const std::function<void()>& start) {
  try {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(flags_of(isolation)) != 0) fail("unshare");
    say(control, "isolated\n");
    if (isolation != Isolation::kNetwork &&
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      fail("mount / private");
    }
    if (isolation == Isolation::kMachineAndProcesses &&
        mount("proc", "/proc", "proc", 0, nullptr) != 0) {
      fail("mount /proc");
    }
    prepare();
    char go = 0;
    if (read(control, &go, 1) != 1) _exit(1);  // the test is gone
    start();
    say(control, "started\n");
  } catch (const std::exception& error) {
    say(control, fmt::format("failed: {}\n", error.what()));
    _exit(1);
  }
  while (true) {
    if (waitpid(-1, nullptr, 0) < 0 && errno == ECHILD) usleep(50'000);
  }
}

}  // namespace

std::optional<std::string> why_no_namespaces() {
  const pid_t pid = fork();
  if (pid == 0) _exit(unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID) == 0 ? 0 : errno);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WEXITSTATUS(status) == 0) return std::nullopt;
  return fmt::format("namespaces are not allowed here ({}); run as root",
                     std::generic_category().message(WEXITSTATUS(status)));
}

std::string run_tool(std::vector<std::string> argv, const std::string& input) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0 || pipe2(out.data(), O_CLOEXEC) != 0) fail("pipe");
  FileDescriptor in_read(in[0]), in_write(in[1]), out_read(out[0]), out_write(out[1]);
  std::vector<char*> pointers;
  for (std::string& argument : argv)
    pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    dup2(in_read.get(), STDIN_FILENO);
    dup2(out_write.get(), STDOUT_FILENO);
    dup2(out_write.get(), STDERR_FILENO);
    execvp(pointers[0], pointers.data());
    _exit(127);
  }
  in_read.reset();
  out_write.reset();
  // Small enough for the pipe, or read by a tool that writes little meanwhile.
  size_t written = 0;
  while (written < input.size()) {
    const ssize_t size = write(in_write.get(), input.data() + written, input.size() - written);
    if (size <= 0) break;
    written += static_cast<size_t>(size);
  }
  in_write.reset();
  std::string said = read_all(out_read.get());
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error(fmt::format("{}: status {}: {}", fmt::join(argv, " "), status, said));
  }
  return said;
}

NamespaceHolder::NamespaceHolder(Isolation isolation,
                                 std::function<void()> prepare,
                                 std::function<void()> start) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail("socketpair");
  control_ = FileDescriptor(ends[0]);
  FileDescriptor theirs(ends[1]);

  // Process ids are the one namespace that only children get.
  const FileDescriptor own_ids(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
  const bool own_processes = isolation == Isolation::kMachineAndProcesses;
  if (own_processes && unshare(CLONE_NEWPID) != 0) fail("unshare process ids");
  pid_ = fork();
  if (pid_ == 0) {
    constexpr int kControl = STDERR_FILENO + 1;
    const int null = open("/dev/null", O_RDWR);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      dup2(null, fd);
    if (theirs.get() != kControl) dup3(theirs.release(), kControl, O_CLOEXEC);
    close_range(kControl + 1, ~0U, 0);
    hold(isolation, kControl, prepare, start);
  }
  const int fork_error = errno;
  if (own_processes && setns(own_ids.get(), CLONE_NEWPID) != 0) fail("setns process ids");
  errno = fork_error;
  if (pid_ < 0) fail("fork");
}

NamespaceHolder::~NamespaceHolder() {
  kill();
}

void NamespaceHolder::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

void NamespaceHolder::expect(const std::string& word) {
  std::string line;
  char c = 0;
  while (read(control_.get(), &c, 1) == 1 && c != '\n')
    line += c;
  if (line != word) {
    throw std::runtime_error(
        fmt::format("a namespace's process, asked for \"{}\", said \"{}\"", word, line));
  }
}

void NamespaceHolder::await_namespaces() {
  expect("isolated");
}
void NamespaceHolder::go() {
  if (write(control_.get(), "g", 1) != 1) fail("a namespace's process is gone");
}
void NamespaceHolder::await_started() {
  expect("started");
}

std::string NamespaceHolder::link(const std::string& kind) const {
  return fmt::format("/proc/{}/ns/{}", pid_, kind);
}

void NamespaceHolder::enter_network() const {
  const FileDescriptor network(open(link("net").c_str(), O_RDONLY | O_CLOEXEC));
  if (!network || setns(network.get(), CLONE_NEWNET) != 0) fail("setns network");
}

void NamespaceHolder::enter() const {
  for (const char* const kind : {"net", "uts", "ipc", "mnt"}) {
    const FileDescriptor space(open(link(kind).c_str(), O_RDONLY | O_CLOEXEC));
    if (!space || setns(space.get(), 0) != 0) fail(kind);
  }
}

InNetworkOf::InNetworkOf(const NamespaceHolder& holder)
    : before_(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
  holder.enter_network();
}

InNetworkOf::~InNetworkOf() {
  setns(before_.get(), CLONE_NEWNET);
}

}  // namespace dstrain::testing
