// OpensshLogin: one `ssh HOST PROGRAM` of OpenSSH's client, from its start until the program there
// says its first word. ssh itself reports only its end; that it has logged in is seen from what the
// program writes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio.hpp>

#include "launcher/hosts/host_failure.h"
#include "launcher/process/local_stream.h"
#include "launcher/ssh/openssh_command.h"

namespace dstrain::launcher {

class OpensshLogin {
 public:
  struct Result {
    std::unique_ptr<ByteStream> stream{};  ///< with all that the program has written
    std::optional<HostFailure> failure{};  ///< if there is no stream
    bool is_program_missing = false;       ///< logged in; there is no such program on the host
    bool was_turned_away = false;          ///< worth another try when fewer log in
  };
  /// Called from the event loop, once.
  using Done = std::function<void(Result)>;

  OpensshLogin(asio::io_context& loop,
               OpensshOptions options,
               std::string host,
               const std::vector<std::string>& remote_argv,
               Done done);
  OpensshLogin(const OpensshLogin&) = delete;
  OpensshLogin& operator=(const OpensshLogin&) = delete;

 private:
  void on_output();
  void on_end(const StreamEnd& end);
  void fail(const std::string& why);
  void finish(Result result);

  const OpensshOptions options_;
  const std::string host_;
  Done done_;
  std::string words_;  ///< ssh's stderr
  asio::steady_timer deadline_;
  std::unique_ptr<LocalStream> ssh_;
  /// Owned by this object alone; handlers hold weak pointers to it.
  std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

/// The same for a program whose input is a file, until it ends.
void send_by_openssh(asio::io_context& loop,
                     const OpensshOptions& options,
                     const std::string& host,
                     const std::string& file,
                     const std::string& path_on_host,
                     int mode,
                     std::function<void(std::optional<HostFailure>)> done);

}  // namespace dstrain::launcher
