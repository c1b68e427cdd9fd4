#include "cmd/stop_signal.h"

#include <csignal>

namespace dstrain {
namespace {

// A handler reaches nothing but globals; lock-free atomics are what it may touch.
std::atomic<int> requested{0};
std::atomic<int> times_signalled{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int number) {
  if (times_signalled.fetch_add(1) > 0) {
    std::signal(number, SIG_DFL);
    std::raise(number);  // pending until this handler returns
    return;
  }
  requested.store(number);
}

}  // namespace

StopSignal::StopSignal() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // I/O under way goes on: this is no emergency
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

const std::atomic<int>& StopSignal::number() const {
  return requested;
}

void StopSignal::raise(int signal_number) {
  int expected = 0;
  requested.compare_exchange_strong(expected, signal_number);
}

}  // namespace dstrain
