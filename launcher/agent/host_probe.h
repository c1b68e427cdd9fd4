// HostProbe: answers the launcher's questions about this host (host_question.h). Nothing blocks the
// event loop: connecting is asynchronous, and what touches disks, which may be dead, happens in a
// thread of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <asio.hpp>

#include "engine/base/file_descriptor.h"
#include "launcher/agent/host_question.h"

namespace dstrain::launcher {

/// A hash of a file's content, the same on every host. Throws std::exception. Called from a thread.
using HashFile = std::function<std::uint64_t(const std::string& path)>;

/// Answers kGpus: the launcher itself knows nothing of them. Called from a thread.
using LookAtGpus = std::function<HostAnswer()>;

class HostProbe {
 public:
  HostProbe(asio::io_context& loop, HashFile hash_file, LookAtGpus look_at_gpus);

  /// Calls `done` from the event loop or from within, once; never after this object is gone.
  void answer(const HostQuestion& question, std::function<void(HostAnswer)> done);
  /// The socket of the last kListen, for rank 0: its port is not free for a moment. Empty if none
  /// was asked for since.
  FileDescriptor release_listener();

 private:
  HostAnswer listen(const HostQuestion& question);
  void accept_more();
  void connect(const HostQuestion& question, std::function<void(HostAnswer)> done);
  void in_thread(std::function<HostAnswer()> work, std::function<void(HostAnswer)> done);

  asio::io_context& loop_;
  HashFile hash_file_;
  LookAtGpus look_at_gpus_;
  asio::posix::stream_descriptor listener_;
  /// Handlers hold weak pointers to it.
  std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

/// The address from which packets to `address` leave this host; numeric. Throws PreflightError.
std::string address_towards(const std::string& address);
/// The first address of a network interface, IPv4 before IPv6. Throws PreflightError that lists the
/// interfaces.
std::string address_of_interface(const std::string& name);

}  // namespace dstrain::launcher
