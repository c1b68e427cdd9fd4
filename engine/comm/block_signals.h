// BlockSignals: while it lives, threads that are started here take no signals. SIGTERM is for the
// thread that knows how to end a step, not for one that serves sockets.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace dstrain {

class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace dstrain
