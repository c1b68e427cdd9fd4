// Cluster: several hosts and a launcher's machine on this one, joined by a switch, each with a
// real sshd. It serves tests and measurements of everything that goes over SSH.
//
//     launcher ── switch ── w0   sshd on ports 22 and 2222, root's home in /mnt/home
//     10.77.0.1      │      10.77.1.1  fd77::1:1
//                    └───── w1 …
//
// Each has one core, its own network, host name, process ids (the launcher's machine: the test's),
// /mnt (in memory), /run, /etc/hosts and root's home; programs and /tmp are those of the machine,
// as on a cluster with shared storage. Everything disappears with the test, however it ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/cluster/namespaces.h"
#include "tests/harness/program.h"

namespace dstrain::testing {

/// The reason why no cluster can be created here (not root, no sshd installed), or empty.
std::optional<std::string> why_no_cluster();

struct HostProcess {
  pid_t pid = -1;         ///< for the test: kill() takes it
  pid_t pid_on_host = 0;  ///< as the host's own processes see it
  std::string command;    ///< its arguments, joined by spaces
};

class ClusterHost {
 public:
  ClusterHost(std::string name, int index);

  [[nodiscard]] const std::string& name() const { return name_; }  ///< "w0"
  [[nodiscard]] std::string ipv4() const;
  [[nodiscard]] std::string ipv6() const;
  /// The same file, for the test: path("/mnt/home/x").
  [[nodiscard]] std::string path(const std::string& on_host) const;
  [[nodiscard]] std::string read(const std::string& on_host) const;
  void write(const std::string& on_host, const std::string& text) const;
  /// "ssh-ed25519 AAAA…"
  [[nodiscard]] std::string host_key() const;

  /// Runs a shell command on it and returns its output; throws if it fails.
  std::string run(const std::string& shell_command) const;
  /// All processes except those that keep the host itself up: its sshd's listener and first
  /// process.
  [[nodiscard]] std::vector<HostProcess> processes() const;

  /// Processes of programs of that name in this network; also for the launcher's machine, whose
  /// process ids are the test's.
  [[nodiscard]] std::vector<pid_t> processes_named(const std::string& name) const;

  void kill_sshd();   ///< the listener and every session
  void start_sshd();  ///< again, with the key that is there now
  void change_host_key();
  /// An empty disk of `bytes` at `folder`.
  void mount_small_disk(const std::string& folder, std::int64_t bytes);
  /// Ends everything that runs on it at once, sshd included; its disks stay. After unplug(), this
  /// is a crash, and start_sshd() and reconnect() bring the host back.
  void kill_everything();
  /// Ends the host and all that runs on it at once, for good, without any goodbye.
  void power_off() { holder_->kill(); }

  [[nodiscard]] NamespaceHolder& holder() { return *holder_; }
  [[nodiscard]] const NamespaceHolder& holder() const { return *holder_; }

 private:
  friend class Cluster;
  [[nodiscard]] std::vector<HostProcess> all_processes() const;

  std::string name_;
  int index_;
  std::unique_ptr<NamespaceHolder> holder_;
};

class Cluster {
 public:
  explicit Cluster(int hosts);

  [[nodiscard]] ClusterHost& host(int index) { return *hosts_.at(static_cast<size_t>(index)); }
  [[nodiscard]] int size() const { return static_cast<int>(hosts_.size()); }
  [[nodiscard]] ClusterHost& launcher() { return *launcher_; }

  /// Pulls the host's own cable: the carrier is lost.
  void unplug(const ClusterHost& host);
  /// Drops packets in the switch, both ways, while both ends see a healthy link: connections become
  /// half-open.
  void drop_packets(const ClusterHost& host);
  /// Undoes both.
  void reconnect(const ClusterHost& host);

  /// Starts a program on the launcher's machine, with HOME=/mnt/home: a key that every host
  /// accepts, every host's key in known_hosts. It ends with the test.
  std::unique_ptr<Program> launch(std::vector<std::string> argv,
                                  Program::Environment environment = {}) const;
  static constexpr const char* kHome = "/mnt/home";

 private:
  void in_switch(const std::string& commands) const;

  NamespaceHolder switch_;
  std::unique_ptr<ClusterHost> launcher_;
  std::vector<std::unique_ptr<ClusterHost>> hosts_;
};

}  // namespace dstrain::testing
