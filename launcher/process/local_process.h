// LocalSpawner: a job's processes on this machine.
#pragma once

#include <chrono>
#include <set>
#include <utility>

#include <asio.hpp>
#include <sys/types.h>

#include "engine/base/file_descriptor.h"
#include "launcher/process/child.h"
#include "launcher/process/process.h"
#include "launcher/supervision/oom_watch.h"

namespace dstrain::launcher {

class LocalSpawner final : public Spawner {
 public:
  /// From now on, orphaned descendants of this process become its children, so that sweep() finds
  /// those that the job left behind. Children that exist already are not touched.
  explicit LocalSpawner(asio::io_context& loop,
                        std::chrono::milliseconds start_patience = kStartPatience);

  /// Call from the main thread only: the kernel ends the program when the thread that started it
  /// is gone.
  /// The process must not outlive this spawner.
  std::unique_ptr<Process> start(const ProcessSpec& spec, ProcessEvents events) override;
  void sweep() noexcept override;
  /// Holds it for the next program that takes a listener, in place of the one held before.
  void hold_listener(FileDescriptor listener) { listener_ = std::move(listener); }

 private:
  asio::io_context& loop_;
  const std::chrono::milliseconds start_patience_;
  OomWatch oom_watch_;
  std::set<pid_t> children_before_;
  FileDescriptor listener_;
};

}  // namespace dstrain::launcher
