// SshConnection: a host that is logged in to, and programs started there. SshConnector: all hosts
// of a job at once, with the failures of all of them.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio.hpp>

#include "launcher/hosts/host_failure.h"
#include "launcher/process/byte_stream.h"
#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/ssh_config.h"
#include "launcher/ssh/ssh_link.h"
#include "launcher/ssh/ssh_login.h"

namespace dstrain::launcher {

class SshConnection {
 public:
  SshConnection(std::string host,
                asio::io_context& loop,
                std::unique_ptr<SshSession> session,
                std::chrono::milliseconds start_deadline);
  SshConnection(const SshConnection&) = delete;
  SshConnection& operator=(const SshConnection&) = delete;
  /// Streams continue; the connection ends with the last of them.
  ~SshConnection();

  [[nodiscard]] const std::string& host() const { return host_; }

  struct Started {
    std::unique_ptr<ByteStream> stream{};
    std::optional<HostFailure> failure{};  ///< if there is no stream
  };
  /// Runs a program by the user's shell on the host: argv[0] is a path, or a name in its PATH. Its
  /// environment and folder are those of a login. `done` comes from the event loop.
  void start(const std::vector<std::string>& argv, std::function<void(Started)> done);

  /// Writes a file on the host: whole under its name, or not at all. A relative path starts in the
  /// user's home; folders are made. `content` is shared by the uploads to all hosts.
  void upload(std::shared_ptr<const std::string> content,
              const std::string& path,
              int mode,
              std::function<void(std::optional<HostFailure>)> done);

 private:
  const std::string host_;
  const std::chrono::milliseconds start_deadline_;
  std::shared_ptr<SshLink> link_;  ///< shared with the streams
};

class SshConnector {
 public:
  SshConnector(asio::io_context& loop, SshConfig config, SshOptions options);

  struct Connected {
    /// Sessions in the order of the hosts; nullptr for those that failed.
    std::vector<std::unique_ptr<SshConnection>> connections{};
    std::vector<HostFailure> failures{};  ///< in the order of the hosts
  };
  /// `hosts` as in the hostfile. `done` comes once, from the event loop, when the last host has
  /// been reached or given up. One call at a time.
  void connect(const std::vector<std::string>& hosts, std::function<void(Connected)> done);

 private:
  void log_in_to_next();
  void on_login(size_t index,
                std::unique_ptr<SshSession> session,
                std::optional<HostFailure> failure);
  KnownHosts& known_hosts_of(const SshHostSettings& settings);

  asio::io_context& loop_;
  const SshConfig config_;
  const SshOptions options_;
  /// Keyed by the list of their files, with one for all hosts that share the list: a key accepted
  /// for one name is known to the others at once.
  std::map<std::vector<std::string>, std::unique_ptr<KnownHosts>> known_hosts_;
  std::vector<std::string> hosts_;
  std::vector<std::unique_ptr<SshLogin>> logins_;
  std::vector<std::optional<HostFailure>> failures_;
  Connected result_;
  size_t next_ = 0;  ///< the first host whose login has not begun
  size_t left_ = 0;
  std::function<void(Connected)> done_;
  /// Owned by this object alone; handlers hold weak pointers to it.
  std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace dstrain::launcher
