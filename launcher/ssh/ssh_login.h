// SshLogin: the way to one host, from its name to a session that is logged in:
//   resolve -> connect -> greeting (versions, keys for the connection) -> host key ->
//   authentication
// All of it happens in the event loop, under one deadline; each host has a login of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio.hpp>

#include "launcher/hosts/host_failure.h"
#include "launcher/hosts/name_lookup.h"
#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/ssh_authentication.h"
#include "launcher/ssh/ssh_config.h"
#include "launcher/ssh/ssh_session.h"

namespace dstrain::launcher {

struct SshOptions {
  /// The time allowed for a login, and again for the start of each program.
  std::chrono::milliseconds deadline{20'000};
  /// A host that does not answer for so long is lost.
  std::chrono::milliseconds silence_limit{5'000};
  bool accept_new_host_keys = false;
};

class SshLogin {
 public:
  /// Gets either a session or a failure.
  using Done = std::function<void(std::unique_ptr<SshSession>, std::optional<HostFailure>)>;

  /// `known_hosts` may be shared by the logins of one thread, and outlives them. `done` comes once,
  /// from the event loop.
  SshLogin(asio::io_context& loop,
           SshHostSettings host,
           KnownHosts& known_hosts,
           const SshOptions& options,
           Done done);
  SshLogin(const SshLogin&) = delete;
  SshLogin& operator=(const SshLogin&) = delete;

 private:
  enum class Phase { kResolve, kConnect, kGreeting, kHostKey, kAuthentication };

  void connect_to(Addresses addresses);
  void try_next_address();
  void on_connected(const asio::error_code& error);
  void advance();
  bool shake_hands();
  void on_deadline();
  void fail(const std::string& what, const std::string& fix, const std::string& openssh_for = {});
  void finish(std::unique_ptr<SshSession> session, std::optional<HostFailure> failure);
  [[nodiscard]] std::string peer() const;

  asio::io_context& loop_;
  const SshHostSettings host_;
  KnownHosts& known_hosts_;
  const SshOptions options_;
  Done done_;

  Phase phase_ = Phase::kResolve;
  asio::steady_timer deadline_;
  asio::steady_timer address_deadline_;
  std::optional<NameLookup> lookup_;
  std::vector<asio::ip::tcp::endpoint> addresses_;
  size_t next_address_ = 0;
  std::vector<std::string> refusals_;  ///< why each address so far was no use
  asio::ip::tcp::socket socket_;
  std::unique_ptr<SshSession> session_;
  std::optional<SshAuthentication> authentication_;
  bool finished_ = false;  ///< `done_` is on its way; what comes now comes too late
  /// Owned by this object alone; handlers hold weak pointers to it.
  std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace dstrain::launcher
