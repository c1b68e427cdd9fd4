#include "cmd/rank/lifeline.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace dstrain {

Lifeline::Lifeline(StopSignal& stop, std::chrono::milliseconds patience)
    : stop_(stop), patience_(patience), done_(eventfd(0, EFD_CLOEXEC)) {
  if (!done_) throw std::system_error(errno, std::generic_category(), "eventfd");
  // From here on, the end of stdin means that the launcher is gone; a rank that somebody stopped
  // (SIGSTOP) has to run to see it. SIGTERM, set until now, would wait with it.
  prctl(PR_SET_PDEATHSIG, SIGCONT);
  // Signals are the main thread's: a new thread inherits this mask.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Lifeline::~Lifeline() {
  eventfd_write(done_.get(), 1);
  thread_.join();
}

void Lifeline::watch() {
  std::array<pollfd, 2> watched = {pollfd{.fd = done_.get(), .events = POLLIN, .revents = 0},
                                   pollfd{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}};
  while (true) {
    if (poll(watched.data(), watched.size(), -1) < 0 && errno == EINTR) continue;
    if (watched[0].revents != 0) return;
    if (watched[1].revents == 0) continue;
    std::array<char, 256> ignored{};
    const ssize_t size = read(STDIN_FILENO, ignored.data(), ignored.size());
    if (size == 0 || (size < 0 && errno != EINTR && errno != EAGAIN)) break;
  }
  stop_.raise(SIGTERM);
  watched[1].fd = -1;
  if (poll(watched.data(), 1, static_cast<int>(patience_.count())) != 0) return;
  // Under the launcher this rank leads its group; elsewhere the group is somebody else's.
  if (getpgrp() == getpid()) kill(0, SIGKILL);
  _exit(128 + SIGTERM);
}

}  // namespace dstrain
