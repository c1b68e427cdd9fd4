// Changes what a running program does next, as a debugger would: its main thread loops for ever, or
// ends the program with success. The program needs no support for this.
#pragma once

#include <fstream>
#include <optional>
#include <string>

#include <elf.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

namespace dstrain::testing {

#if defined(__x86_64__)

/// The entry point of a program, which none of its threads will run again. 0 if the kernel hides
/// it.
inline unsigned long long entry_of(pid_t pid) {
  std::ifstream vector("/proc/" + std::to_string(pid) + "/auxv", std::ios::binary);
  Elf64_auxv_t entry{};
  while (vector.read(reinterpret_cast<char*>(&entry), sizeof entry)) {
    if (entry.a_type == AT_ENTRY) return entry.a_un.a_val;
  }
  return 0;
}

/// Makes the main thread of a descendant continue with two bytes of code, and these registers. The
/// code is put at the program's entry point, since other threads may run where the thread is now.
/// Returns why it was not possible, or nothing.
template <typename Change>
std::optional<std::string> inject(pid_t pid, long code, const Change& change_registers) {
  const unsigned long long entry = entry_of(pid);
  if (entry == 0) return "the kernel does not say where the program begins";
  if (ptrace(PTRACE_ATTACH, pid, nullptr, nullptr) != 0) {
    return "this process may not trace its descendants";
  }
  int status = 0;
  waitpid(pid, &status, __WALL);
  user_regs_struct registers{};
  ptrace(PTRACE_GETREGS, pid, nullptr, &registers);
  registers.orig_rax = ~0ULL;  // a system call that it was in is not begun again
  registers.rip = entry;
  change_registers(registers);
  ptrace(PTRACE_SETREGS, pid, nullptr, &registers);
  void* const here = reinterpret_cast<void*>(entry);
  const long before = ptrace(PTRACE_PEEKTEXT, pid, here, nullptr);
  const long after = (before & ~0xffffL) | code;
  const bool done = ptrace(PTRACE_POKETEXT, pid, here, reinterpret_cast<void*>(after)) == 0;
  ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
  return done ? std::nullopt : std::optional<std::string>("its program cannot be written to");
}

inline std::optional<std::string> make_it_loop(pid_t pid) {
  constexpr long kJumpToItself = 0xfeeb;
  return inject(pid, kJumpToItself, [](user_regs_struct&) {});
}

inline std::optional<std::string> make_it_succeed(pid_t pid) {
  constexpr long kSystemCall = 0x050f;
  return inject(pid, kSystemCall, [](user_regs_struct& registers) {
    registers.rax = SYS_exit_group;
    registers.rdi = 0;
  });
}

#else

inline std::optional<std::string> make_it_loop(pid_t) {
  return "this processor's instructions are not known here";
}
inline std::optional<std::string> make_it_succeed(pid_t) {
  return "this processor's instructions are not known here";
}

#endif

}  // namespace dstrain::testing
