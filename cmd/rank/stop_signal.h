// StopSignal: SIGINT, SIGTERM and SIGHUP (the terminal was closed) as a number that the training
// loop looks at once a step. The first one asks for an orderly end; a second one ends the process
// as if there were no handler. Under nohup SIGHUP stays ignored.
#pragma once

#include <atomic>

namespace dstrain {

/// Whether this process was started to outlive its terminal (nohup).
bool hang_ups_are_ignored();

class StopSignal {
 public:
  /// Catches the signals from now to the end of the process. A process has one such object, made
  /// before its other threads.
  StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// 0, or the signal's number.
  [[nodiscard]] const std::atomic<int>& number() const;
  /// Acts as if the signal had come, but does not count as the first one.
  void raise(int signal_number);
};

}  // namespace dstrain
