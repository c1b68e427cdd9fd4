#include "launcher/ssh/ssh_connection.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent/file_receiver.h"
#include "launcher/process/errors.h"
#include "launcher/ssh/shell_quoting.h"
#include "launcher/ssh/ssh_stream.h"

namespace dstrain::launcher {
namespace {

/// The most logins under way at a time. Each takes milliseconds of this one thread and a few
/// descriptors; with more, the last of a thousand would be late through no fault of their own.
constexpr size_t kMostAtOnce = 128;

}  // namespace

SshConnection::SshConnection(std::string host,
                             asio::io_context& loop,
                             std::unique_ptr<SshSession> session,
                             std::chrono::milliseconds start_deadline)
    : host_(std::move(host)),
      start_deadline_(start_deadline),
      link_(std::make_shared<SshLink>(loop, std::move(session))) {}

SshConnection::~SshConnection() = default;

void SshConnection::start(const std::vector<std::string>& argv, std::function<void(Started)> done) {
  // "exec": the shell is replaced, so that signals and the exit code are the program's own.
  const auto channel = std::make_shared<std::weak_ptr<SshChannel>>();
  *channel = link_->start("exec " + shell_quoted(argv), start_deadline_,
                          [link = std::weak_ptr(link_), channel, host = host_, program = argv.at(0),
                           done = std::move(done)](const std::string& error) {
                            Started started;
                            if (error.empty()) {
                              started.stream =
                                  std::make_unique<SshStream>(link.lock(), channel->lock());
                            } else {
                              started.failure = HostFailure{
                                  .host = host,
                                  .phase = "start",
                                  .what = fmt::format("{} was not started: {}", program, error),
                                  .fix =
                                      "see the host's own log (journalctl -u ssh): ForceCommand, "
                                      "MaxSessions and the user's limits are the usual reasons"};
                            }
                            done(std::move(started));
                          });
}

void SshConnection::upload(std::shared_ptr<const std::string> content,
                           const std::string& path,
                           int mode,
                           std::function<void(std::optional<HostFailure>)> done) {
  start(receive_file_command(path, content->size(), mode),
        [host = host_, path, content, done = std::move(done)](Started started) {
          if (!started.stream) return done(std::move(started.failure));
          static_cast<SshStream&>(*started.stream)
              .take_input_from([content, sent = std::size_t{0}]() mutable {
                constexpr std::size_t kPiece = 1 << 18;
                std::string piece = content->substr(sent, kPiece);
                sent += piece.size();
                return piece;
              });
          await_receipt(std::move(started.stream), host, path, done);
        });
}

SshConnector::SshConnector(asio::io_context& loop, SshConfig config, SshOptions options)
    : loop_(loop), config_(std::move(config)), options_(options) {}

KnownHosts& SshConnector::known_hosts_of(const SshHostSettings& settings) {
  std::unique_ptr<KnownHosts>& known = known_hosts_[settings.known_hosts];
  if (!known) known = std::make_unique<KnownHosts>(settings.known_hosts, settings.user_known_hosts);
  return *known;
}

void SshConnector::connect(const std::vector<std::string>& hosts,
                           std::function<void(Connected)> done) {
  hosts_ = hosts;
  done_ = std::move(done);
  result_ = {};
  result_.connections.resize(hosts.size());
  failures_.assign(hosts.size(), std::nullopt);
  logins_.clear();
  logins_.resize(hosts.size());
  left_ = hosts.size();
  next_ = 0;
  if (hosts.empty()) {
    asio::post(loop_, [done = std::exchange(done_, nullptr)] { done({}); });
  }
  for (size_t i = 0; i < kMostAtOnce; ++i)
    log_in_to_next();
}

void SshConnector::log_in_to_next() {
  if (next_ == hosts_.size()) return;
  const size_t index = next_++;
  const auto refuse = [&](const char* what, const char* fix, const std::string& openssh_for) {
    const HostFailure failure{.host = hosts_[index],
                              .phase = "configuration",
                              .what = what,
                              .fix = fix,
                              .openssh_for = openssh_for};
    asio::post(loop_, [this, index, failure, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) on_login(index, nullptr, failure);
    });
  };
  try {
    const SshHostSettings settings = config_.settings_for(hosts_[index]);
    logins_[index] = std::make_unique<SshLogin>(
        loop_, settings, known_hosts_of(settings), options_,
        [this, index](std::unique_ptr<SshSession> session, std::optional<HostFailure> failure) {
          on_login(index, std::move(session), std::move(failure));
        });
  } catch (const SshConfigError& error) {
    refuse(error.what(), "", error.openssh_for());
  } catch (const HostfileError& error) {
    refuse(error.what(), "correct the hostfile", "");
  }
}

void SshConnector::on_login(size_t index,
                            std::unique_ptr<SshSession> session,
                            std::optional<HostFailure> failure) {
  if (session) {
    result_.connections[index] = std::make_unique<SshConnection>(
        hosts_[index], loop_, std::move(session), options_.deadline);
  }
  failures_[index] = std::move(failure);
  if (--left_ > 0) return log_in_to_next();
  for (std::optional<HostFailure>& each : failures_) {
    if (each) result_.failures.push_back(std::move(*each));
  }
  std::exchange(done_, nullptr)(std::move(result_));
}

}  // namespace dstrain::launcher
