// BackgroundWriter: writes to files, pipes and terminals from a thread of its own, so that a reader
// that stopped reading, or a disk that hangs, never stops the event loop and with it the ranks.
//
// The bytes that wait to be written are bounded; those that do not fit are refused, and the caller
// counts them.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "engine/base/file_descriptor.h"

namespace dstrain::launcher {

class BackgroundWriter {
 public:
  explicit BackgroundWriter(size_t capacity_bytes);
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;
  /// Does not wait for what is still to be written: call finish() before.
  ~BackgroundWriter();

  /// Returns the file's number for write(). May be called before the first write only.
  size_t add(FileDescriptor file);
  /// The same for a file that stays open by itself (stderr).
  size_t add_borrowed(int fd);

  /// Returns false if too much is waiting already; then nothing of `bytes` is written.
  bool write(size_t file, std::string bytes);
  [[nodiscard]] bool idle() const;
  /// errno of the write that failed, after which the file gets nothing more; or 0.
  [[nodiscard]] int error(size_t file) const;
  /// Waits until all is written, at most so long. False if something is left.
  bool finish(std::chrono::milliseconds patience);

 private:
  struct State;
  static void run(State& state);

  /// Shared with the thread: one that hangs in write() for good outlives this object.
  std::shared_ptr<State> state_;
};

}  // namespace dstrain::launcher
