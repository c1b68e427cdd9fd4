#include "launcher/ssh/openssh_login.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "launcher/agent/file_receiver.h"

namespace dstrain::launcher {
namespace {

// The exit codes of a shell where there is no such program, or it may not be run.
constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;
// ssh's own ConnectTimeout comes first, with better words; it does not bind a jump host's.
constexpr std::chrono::seconds kMoreThanConnectTimeout{1};

std::unique_ptr<LocalStream> start_ssh(asio::io_context& loop,
                                       const std::vector<std::string>& argv,
                                       const std::string& input_file = {}) {
  LocalStreamOptions options{.input_file = input_file, .broken_code = kOpensshFailed};
  // Otherwise an ssh that leads to a jump host, and knows nothing of BatchMode, may open a window
  // and ask.
  constexpr const char* kAskpass = "SSH_ASKPASS_REQUIRE";
  if (std::getenv(kAskpass) == nullptr) options.environment.emplace_back(kAskpass, "never");
  return std::make_unique<LocalStream>(loop, argv, options);
}

}  // namespace

OpensshLogin::OpensshLogin(asio::io_context& loop,
                           OpensshOptions options,
                           std::string host,
                           const std::vector<std::string>& remote_argv,
                           Done done)
    : options_(std::move(options)),
      host_(std::move(host)),
      done_(std::move(done)),
      deadline_(loop, options_.connect_timeout + kMoreThanConnectTimeout),
      ssh_(start_ssh(loop, openssh_command(options_, host_, remote_argv))) {
  ssh_->await_output({.on_data = [](std::string_view) {},
                      .on_error_data = [this](std::string_view bytes) { words_ += bytes; },
                      .on_closed = [this](const StreamEnd& end) { on_end(end); }},
                     [this, alive = std::weak_ptr(alive_)] {
                       if (!alive.expired()) on_output();
                     });
  deadline_.async_wait([this, alive = std::weak_ptr(alive_)](const asio::error_code& error) {
    if (error || alive.expired()) return;
    fail(fmt::format("nothing was heard from it within {} s", options_.connect_timeout.count()));
  });
}

void OpensshLogin::on_output() {
  if (words_.find("Permanently added") != std::string::npos) {
    spdlog::info("host={} new_host_key: accepted by ssh", host_);
  }
  finish({.stream = std::move(ssh_)});
}

void OpensshLogin::on_end(const StreamEnd& end) {
  if (end.exit_code == kNotFound || end.exit_code == kNotExecutable) {
    return finish({.failure = HostFailure{.host = host_}, .is_program_missing = true});
  }
  if (end.exit_code) {
    return fail(fmt::format("the program there ended with exit code {} before its first message",
                            *end.exit_code));
  }
  if (end.signal != 0) return fail(fmt::format("ssh was killed by signal {}", end.signal));
  fail(end.never_began ? end.why : "ssh could not log in");
}

void OpensshLogin::fail(const std::string& why) {
  finish({.failure = explain_openssh(options_, host_, words_, why),
          .was_turned_away = launcher::was_turned_away(words_)});
}

void OpensshLogin::finish(Result result) {
  deadline_.cancel();
  const Done done = std::exchange(done_, nullptr);
  if (!done) return;
  done(std::move(result));  // may end this object
}

void send_by_openssh(asio::io_context& loop,
                     const OpensshOptions& options,
                     const std::string& host,
                     const std::string& file,
                     const std::string& path_on_host,
                     int mode,
                     std::function<void(std::optional<HostFailure>)> done) {
  const std::vector<std::string> argv = openssh_command(
      options, host, receive_file_command(path_on_host, std::filesystem::file_size(file), mode));
  await_receipt(start_ssh(loop, argv, file), host, path_on_host, std::move(done));
}

}  // namespace dstrain::launcher
