// Lifeline: a rank's stdin is a pipe that the launcher holds open. When it ends the launcher is
// gone, whatever ended it: this rank then stops in an orderly way, and if that takes too long it
// ends itself and all of its process group.
#pragma once

#include <chrono>
#include <thread>

#include "cmd/rank/stop_signal.h"
#include "engine/base/file_descriptor.h"

namespace dstrain {

class Lifeline {
 public:
  /// Watches stdin. `stop` must outlive it.
  explicit Lifeline(StopSignal& stop,
                    std::chrono::milliseconds patience = std::chrono::seconds{10});
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline();

 private:
  void watch();

  StopSignal& stop_;
  const std::chrono::milliseconds patience_;
  FileDescriptor done_;  // an eventfd: the rank has finished, stop watching
  std::thread thread_;
};

}  // namespace dstrain
