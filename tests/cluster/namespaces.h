// Namespaces of the kernel as machines: a process that holds a network, a host name, mounts and
// (if asked) process ids of its own, and with which all of them vanish.
//
// Nothing here has a name outside the process that holds it: no entry in /run/netns, no device in
// the machine's own network, no file. So runs side by side cannot collide, and whatever way a test
// ends, SIGKILL included, the kernel ends the holders (PR_SET_PDEATHSIG), with a process-id
// namespace's first process everything in it, and with the last process the network.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "engine/base/file_descriptor.h"

namespace dstrain::testing {

/// The reason why this process may not create namespaces, or empty.
std::optional<std::string> why_no_namespaces();

/// Runs a program to its end; `input` is its stdin. Throws std::runtime_error with its output if
/// its exit code is not 0. Returns its stdout.
std::string run_tool(std::vector<std::string> argv, const std::string& input = {});

enum class Isolation {
  kNetwork,  ///< network alone
  kMachine,  ///< also host name, mounts, System V objects
  kMachineAndProcesses
};

class NamespaceHolder {
 public:
  /// Starts the process. Inside its namespaces it runs `prepare` at once, and `start` when go() is
  /// called; then it waits for children that end, until it is killed. All of this happens while the
  /// caller continues.
  NamespaceHolder(Isolation isolation, std::function<void()> prepare, std::function<void()> start);
  NamespaceHolder(const NamespaceHolder&) = delete;
  NamespaceHolder& operator=(const NamespaceHolder&) = delete;
  /// Kills it, and with it what lives in a process-id namespace of its own.
  ~NamespaceHolder();

  /// Returns once the namespaces exist.
  void await_namespaces();
  void go();
  /// Returns once `start` has returned. Throws std::runtime_error with its error.
  void await_started();

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// The link under /proc of "net", "mnt", "uts" or "pid".
  [[nodiscard]] std::string link(const std::string& kind) const;
  /// Moves the calling thread into the network; the rest of the process stays where it is.
  void enter_network() const;
  /// Enters all namespaces except that of process ids, for a child between fork and exec.
  void enter() const;
  void kill();

 private:
  void expect(const std::string& word);

  pid_t pid_ = -1;
  FileDescriptor control_;
};

/// The calling thread is in another network as long as this lives.
class InNetworkOf {
 public:
  explicit InNetworkOf(const NamespaceHolder& holder);
  InNetworkOf(const InNetworkOf&) = delete;
  InNetworkOf& operator=(const InNetworkOf&) = delete;
  ~InNetworkOf();

 private:
  FileDescriptor before_;
};

}  // namespace dstrain::testing
