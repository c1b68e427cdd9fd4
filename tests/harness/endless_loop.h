// Puts an endless loop into a running program: the instruction that its main thread is at becomes a
// jump to itself. As a debugger would; nothing of the program has to know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

namespace dstrain::testing {

/// Of a descendant of this process. Why it was not possible, or nothing.
inline std::optional<std::string> make_it_loop(pid_t pid) {
#if defined(__x86_64__)
  if (ptrace(PTRACE_ATTACH, pid, nullptr, nullptr) != 0) {
    return "this process may not trace its descendants";
  }
  int status = 0;
  waitpid(pid, &status, __WALL);
  user_regs_struct registers{};
  ptrace(PTRACE_GETREGS, pid, nullptr, &registers);
  registers.orig_rax = ~0ULL;  // a system call that it was in is not begun again
  ptrace(PTRACE_SETREGS, pid, nullptr, &registers);
  void* const here = reinterpret_cast<void*>(registers.rip);
  const long before = ptrace(PTRACE_PEEKTEXT, pid, here, nullptr);
  constexpr long kJumpToItself = 0xfeeb;
  const long after = (before & ~0xffffL) | kJumpToItself;
  const bool done = ptrace(PTRACE_POKETEXT, pid, here, reinterpret_cast<void*>(after)) == 0;
  ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
  return done ? std::nullopt : std::optional<std::string>("its program cannot be written to");
#else
  return "the instruction of this processor is not known here (process " + std::to_string(pid) +
         ")";
#endif
}

}  // namespace dstrain::testing
