// Stops a child of a program between fork and exec, as a debugger would: the kernel halts it before
// its first instruction. The program needs no support for this.
#pragma once

#include <csignal>
#include <optional>
#include <string>

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace dstrain::testing {

/// For Program's `in_child`: stops itself for the process that started it.
inline void wait_to_be_traced() {
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  raise(SIGSTOP);
}

struct StoppedAtBirth {
  pid_t pid = -1;
  std::string obstacle{};  ///< why there is none, or empty
};

/// Continues a program that waits to be traced until it has made its `number`-th child, from 1,
/// which stays stopped; then nothing is traced any more.
inline StoppedAtBirth stop_child_at_birth(pid_t program, int number) {
  int status = 0;
  if (waitpid(program, &status, 0) != program || !WIFSTOPPED(status)) {
    return {.obstacle = "this process may not trace its children"};
  }
  ptrace(PTRACE_SETOPTIONS, program, nullptr, PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK);
  int deliver = 0;
  while (true) {
    ptrace(PTRACE_CONT, program, nullptr, deliver);
    if (waitpid(program, &status, 0) != program || !WIFSTOPPED(status)) {
      return {.obstacle = "the program ended before it had made that child"};
    }
    deliver = 0;
    const int event = status >> 16;
    if (event == 0) {
      const int signal = WSTOPSIG(status);
      deliver = signal == SIGTRAP || signal == SIGSTOP ? 0 : signal;  // exec; the stop above
      continue;
    }
    unsigned long message = 0;
    ptrace(PTRACE_GETEVENTMSG, program, nullptr, &message);
    const auto child = static_cast<pid_t>(message);
    waitpid(child, &status, __WALL);
    const bool is_meant = --number == 0;
    ptrace(PTRACE_DETACH, child, nullptr, is_meant ? SIGSTOP : 0);
    if (!is_meant) continue;
    ptrace(PTRACE_DETACH, program, nullptr, 0);
    return {.pid = child};
  }
}

}  // namespace dstrain::testing
