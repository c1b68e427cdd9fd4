#include "cmd/rank/stop_signal.h"

#include <csignal>
#include <string_view>
#include <thread>

#include <pthread.h>
#include <unistd.h>

namespace dstrain {
namespace {

// A handler reaches nothing but globals; lock-free atomics are what it may touch.
std::atomic<int> requested{0};
std::atomic<int> times_signalled{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (times_signalled.fetch_add(1) > 0) {
    std::signal(number, SIG_DFL);
    constexpr std::string_view kEraseLine = "\r\x1b[K";  // a live line, for the shell's prompt
    if (isatty(STDERR_FILENO) == 1) {
      static_cast<void>(!write(STDERR_FILENO, kEraseLine.data(), kEraseLine.size()));
    }
    std::raise(number);  // a handler: pending until it returns
    return;
  }
  requested.store(number);
}

sigset_t stopping() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (!hang_ups_are_ignored()) sigaddset(&set, SIGHUP);
  return set;
}

[[noreturn]] void wait_for_signals() {
  const sigset_t set = stopping();
  while (true) {
    int number = 0;
    if (sigwait(&set, &number) != 0) continue;
    if (times_signalled.load() > 0) pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    on_signal(number);
  }
}

}  // namespace

bool hang_ups_are_ignored() {
  struct sigaction hang_up {};
  sigaction(SIGHUP, nullptr, &hang_up);
  return hang_up.sa_handler == SIG_IGN;
}

StopSignal::StopSignal() {
  // Signals are taken by a thread that waits for them, not by a handler on a thread that computes:
  // the kernel puts a handler's frame below the stack pointer, and one SIGTERM in ten ended a rank
  // with SIGSEGV, its core showing that frame in the heap. Generated matrix products (oneDNN 2) are
  // what may run with the stack pointer there. Threads made from here on inherit the mask; for any
  // that exist already there is the handler.
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // I/O under way continues: this is not an emergency
  sigemptyset(&action.sa_mask);
  const sigset_t set = stopping();
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&set, number) == 1) sigaction(number, &action, nullptr);
  }
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread(wait_for_signals).detach();  // for as long as the process lives
}

const std::atomic<int>& StopSignal::number() const {
  return requested;
}

void StopSignal::raise(int signal_number) {
  int expected = 0;
  requested.compare_exchange_strong(expected, signal_number);
}

}  // namespace dstrain
