// SshClient: the launcher's side of SSH in a test: this thread on the launcher's machine of a
// cluster, its event loop, its keys; and calls that wait for what callbacks report.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <asio.hpp>

#include "launcher/ssh/ssh_connection.h"
#include "tests/cluster/cluster.h"

namespace dstrain::testing {

/// A program's output, and how it ended.
struct Outcome {
  std::string out{};
  std::string err{};
  std::optional<launcher::StreamEnd> end{};
};

class SshClient {
 public:
  explicit SshClient(Cluster& cluster)
      : inside_(cluster.launcher().holder()), home_(cluster.launcher().path(Cluster::kHome)) {}

  asio::io_context& loop() { return loop_; }
  launcher::SshOptions& options() { return options_; }
  [[nodiscard]] const std::string& home() const { return home_; }
  void use_agent(const std::string& socket) { agent_ = socket; }

  /// Runs the event loop until `done()`, at most for the given time; returns whether it became
  /// true.
  bool run_until(const std::function<bool()>& done, std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      loop_.restart();
      loop_.run_for(std::chrono::milliseconds{5});
    }
    return true;
  }

  launcher::SshConnector::Connected connect(const std::vector<std::string>& hosts) {
    launcher::SshConnector connector(
        loop_,
        launcher::SshConfig(
            {.home = home_, .name = "root", .hostname = "launcher", .agent_socket = agent_},
            home_ + "/.ssh/config", "/no/system/file"),
        options_);
    std::optional<launcher::SshConnector::Connected> result;
    connector.connect(
        hosts, [&](launcher::SshConnector::Connected connected) { result = std::move(connected); });
    run_until([&] { return result.has_value(); }, std::chrono::seconds{60});
    if (!result) throw std::runtime_error("no end of connecting");
    return std::move(*result);
  }

  /// Throws std::runtime_error with the failure.
  std::unique_ptr<launcher::ByteStream> start(launcher::SshConnection& connection,
                                              const std::vector<std::string>& argv) {
    std::optional<launcher::SshConnection::Started> started;
    connection.start(argv, [&](launcher::SshConnection::Started s) { started = std::move(s); });
    run_until([&] { return started.has_value(); }, std::chrono::seconds{60});
    if (!started) throw std::runtime_error("no end of starting");
    if (started->failure) throw std::runtime_error(started->failure->what);
    return std::move(started->stream);
  }

  /// Listens to the stream; `outcome` fills as the loop runs.
  static void record(launcher::ByteStream& stream, Outcome& outcome) {
    stream.listen({.on_data = [&](std::string_view bytes) { outcome.out += bytes; },
                   .on_error_data = [&](std::string_view bytes) { outcome.err += bytes; },
                   .on_closed = [&](const launcher::StreamEnd& end) { outcome.end = end; }});
  }

  Outcome run(launcher::SshConnection& connection,
              const std::vector<std::string>& argv,
              const std::string& input = {}) {
    const auto stream = start(connection, argv);
    Outcome outcome;
    record(*stream, outcome);
    stream->write(input);
    stream->close_input();
    run_until([&] { return outcome.end.has_value(); }, std::chrono::seconds{60});
    return outcome;
  }

 private:
  InNetworkOf inside_;
  asio::io_context loop_;
  launcher::SshOptions options_{};
  std::string home_;
  std::string agent_;
};

}  // namespace dstrain::testing
