#include "launcher/ssh/ssh_login.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>

#include "launcher/ssh/host_key_check.h"
#include "launcher/ssh/ssh_failure.h"

namespace dstrain::launcher {
namespace {

constexpr const char* kPhaseNames[] = {"resolve", "connect", "greeting", "host key",
                                       "authentication"};

int to_af(AddressFamily family) {
  if (family == AddressFamily::kIpv4) return AF_INET;
  return family == AddressFamily::kIpv6 ? AF_INET6 : AF_UNSPEC;
}

double seconds_of(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

SshLogin::SshLogin(asio::io_context& loop,
                   SshHostSettings host,
                   KnownHosts& known_hosts,
                   const SshOptions& options,
                   Done done)
    : loop_(loop),
      host_(std::move(host)),
      known_hosts_(known_hosts),
      options_(options),
      done_(std::move(done)),
      deadline_(loop, options.deadline),
      address_deadline_(loop),
      socket_(loop) {
  deadline_.async_wait([this, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (!alive.expired() && !error && !finished_) on_deadline();
  });
  lookup_.emplace(loop, host_.host_name, host_.port, to_af(host_.family),
                  [this](Addresses addresses) { connect_to(std::move(addresses)); });
}

void SshLogin::connect_to(Addresses addresses) {
  if (finished_) return;
  if (addresses.endpoints.empty()) {
    return fail(fmt::format("{}: {}", host_.host_name, addresses.error),
                "correct the name in the hostfile, or give it a HostName in ~/.ssh/config");
  }
  phase_ = Phase::kConnect;
  addresses_ = std::move(addresses.endpoints);
  try_next_address();
}

void SshLogin::try_next_address() {
  if (next_address_ == addresses_.size()) {
    return fail(fmt::format("{}", fmt::join(refusals_, "; ")),
                fmt::format("is the host up, does its sshd listen on port {}, and does a firewall "
                            "let this machine through?",
                            host_.port));
  }
  const asio::ip::tcp::endpoint& address = addresses_[next_address_];
  asio::error_code error;
  socket_.close(error);
  socket_.open(address.protocol(), error);
  if (!error && !host_.bind_address.empty()) {
    const asio::ip::address own = asio::ip::make_address(host_.bind_address, error);
    if (!error) socket_.bind({own, 0}, error);
    if (error) {
      return fail(fmt::format("BindAddress {}: {}", host_.bind_address, error.message()),
                  "use an address of this machine, of the same kind as the host's");
    }
  }
  if (error) return on_connected(error);

  // An address at which nobody answers must leave time for the next.
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline_.expiry() - std::chrono::steady_clock::now());
  auto limit = left / static_cast<int>(addresses_.size() - next_address_);
  if (host_.connect_timeout) limit = std::min<decltype(limit)>(limit, *host_.connect_timeout);
  const bool is_last = next_address_ + 1 == addresses_.size();
  if (!is_last || host_.connect_timeout) {
    address_deadline_.expires_after(limit);
    address_deadline_.async_wait(
        [this, limit, alive = std::weak_ptr(alive_)](const asio::error_code& timer_error) {
          if (alive.expired() || timer_error || finished_) return;
          refusals_.push_back(
              fmt::format("{} does not answer within {:.3g} s", peer(), seconds_of(limit)));
          ++next_address_;
          try_next_address();
        });
  }
  socket_.async_connect(address, [this, tried = next_address_, alive = std::weak_ptr(alive_)](
                                     const asio::error_code& connect_error) {
    if (alive.expired() || tried != next_address_ || finished_) return;
    on_connected(connect_error);
  });
}

void SshLogin::on_connected(const asio::error_code& error) {
  address_deadline_.cancel();
  if (error) {
    refusals_.push_back(fmt::format("{}: {}", peer(), error.message()));
    ++next_address_;
    return try_next_address();
  }
  phase_ = Phase::kGreeting;
  session_ = std::make_unique<SshSession>(std::move(socket_));
  session_->limit_silence(options_.silence_limit);
  prefer_known_key_types(session_->get(), host_, known_hosts_);
  session_->on_ready([this] { advance(); });
  advance();
}

void SshLogin::advance() {
  if (finished_) return;
  try {
    if (phase_ == Phase::kGreeting) {
      if (!shake_hands()) return session_->wait();
      phase_ = Phase::kHostKey;
      check_host_key(session_->get(), host_, known_hosts_, options_.accept_new_host_keys);
      phase_ = Phase::kAuthentication;
      authentication_.emplace(loop_, *session_, host_, [this] { advance(); });
    }
    if (!authentication_->advance()) return session_->wait();
  } catch (const SshFailure& failure) {
    return fail(failure.what(), failure.fix(), failure.openssh_for());
  }
  finish(std::move(session_), std::nullopt);
}

bool SshLogin::shake_hands() {
  const int result = libssh2_session_handshake(session_->get(), session_->socket());
  if (result == LIBSSH2_ERROR_EAGAIN) return false;
  if (result == 0) return true;
  const char* const fix =
      "is that port an SSH server's? See the host's own log (journalctl -u ssh)";
  if (result == LIBSSH2_ERROR_KEX_FAILURE || result == LIBSSH2_ERROR_METHOD_NONE ||
      result == LIBSSH2_ERROR_KEY_EXCHANGE_FAILURE) {
    throw SshFailure(
        fmt::format("{} and this client have no algorithms in common: {}", peer(), session_->why()),
        "allow one of curve25519-sha256 with ssh-ed25519 or ecdsa-sha2-nistp256 keys "
        "in its sshd_config",
        "the host's ciphers");
  }
  throw SshFailure(fmt::format("{}: {}", peer(), session_->why()), fix);
}

void SshLogin::on_deadline() {
  const double limit = seconds_of(options_.deadline);
  switch (phase_) {
    case Phase::kResolve:
      return fail(
          fmt::format("no name server answered for {} within {:.3g} s", host_.host_name, limit),
          "write the host's address in the hostfile, or add it to /etc/hosts");
    case Phase::kConnect:
      refusals_.push_back(fmt::format("{} does not answer within {:.3g} s", peer(), limit));
      next_address_ = addresses_.size();
      return try_next_address();
    case Phase::kGreeting:
    case Phase::kHostKey:
      return fail(
          fmt::format("{} accepted the connection and {} for {:.3g} s", peer(),
                      session_->has_received() ? "did not finish its greeting" : "sent nothing",
                      limit),
          "is that port an SSH server's, and is the host overloaded?");
    case Phase::kAuthentication:
      return fail(
          fmt::format("{} did not answer within {:.3g} s", authentication_->waits_for(), limit),
          "log in by hand (ssh -v) to see what it waits for");
  }
}

void SshLogin::fail(const std::string& what,
                    const std::string& fix,
                    const std::string& openssh_for) {
  finish(nullptr, HostFailure{.host = host_.written,
                              .phase = kPhaseNames[static_cast<int>(phase_)],
                              .what = what,
                              .fix = fix,
                              .openssh_for = openssh_for});
}

void SshLogin::finish(std::unique_ptr<SshSession> session, std::optional<HostFailure> failure) {
  if (std::exchange(finished_, true)) return;
  deadline_.cancel();
  address_deadline_.cancel();
  if (session) session->on_ready(nullptr);
  asio::error_code ignored;
  if (socket_.is_open()) socket_.close(ignored);
  // The caller may be a member of this object, which `done` may destroy.
  asio::post(loop_, [this, alive = std::weak_ptr(alive_),
                     result = std::make_shared<std::unique_ptr<SshSession>>(std::move(session)),
                     failure = std::move(failure)] {
    if (alive.expired()) return;
    const Done done = std::exchange(done_, nullptr);
    done(std::move(*result), failure);
  });
}

std::string SshLogin::peer() const {
  const asio::ip::tcp::endpoint& address =
      addresses_[std::min(next_address_, addresses_.size() - 1)];
  return fmt::format("{} port {}", address.address().to_string(), address.port());
}

}  // namespace dstrain::launcher
