// LocalAgents: hosts of a job that are agents of this machine, reached through pipes: everything
// that a job over SSH does, without SSH.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <asio.hpp>

#include "launcher/agent/agent_host.h"
#include "launcher/agent/agent_spawner.h"
#include "launcher/process/local_stream.h"
#include "launcher/process/run_until.h"
#include "tests/harness/program.h"

namespace dstrain::testing {

/// Runs the loop until `done()`, at most for the given time.
template <typename Condition>
bool run_until(asio::io_context& loop,
               const Condition& done,
               std::chrono::milliseconds patience = std::chrono::seconds{20}) {
  return launcher::run_until(loop, done, patience);
}

/// One agent that has been greeted.
class LocalAgent {
 public:
  explicit LocalAgent(asio::io_context& loop,
                      const std::string& name,
                      launcher::AgentHostOptions options = {},
                      std::vector<std::string> argv = {dstrain_binary(), "agent"}) {
    options.on_words = [this](std::string_view line) { words_ += std::string(line) + '\n'; };
    auto stream = std::make_unique<launcher::LocalStream>(loop, argv);
    pid_ = stream->pid();
    host_ = std::make_unique<launcher::AgentHost>(loop, name, std::move(stream), options);
    bool is_greeted = false;
    host_->greet([&](const std::optional<launcher::GreetingFailure>& why) {
      failure_ = why;
      is_greeted = true;
    });
    run_until(loop, [&] { return is_greeted; });
  }

  [[nodiscard]] launcher::AgentHost& host() { return *host_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] const std::optional<launcher::GreetingFailure>& failure() const { return failure_; }
  /// What the agent wrote to stderr.
  [[nodiscard]] const std::string& words() const { return words_; }

 private:
  std::string words_;
  std::unique_ptr<launcher::AgentHost> host_;
  pid_t pid_ = -1;
  std::optional<launcher::GreetingFailure> failure_;
};

/// A rank that is a shell script, and what it has reported.
struct ShellRank {
  ShellRank(launcher::AgentHost& host, const std::string& script, int rank = 0)
      : ShellRank(host,
                  launcher::ProcessSpec{.host = host.name(),
                                        .rank = rank,
                                        .executable = "/bin/sh",
                                        .argv = {"sh", "-c", script}}) {}
  ShellRank(launcher::AgentHost& host, const launcher::ProcessSpec& spec) {
    process =
        host.start(spec, {.on_output =
                              [this](launcher::OutputStream stream, std::string_view bytes) {
                                (stream == launcher::OutputStream::kStdout ? out : err) += bytes;
                              },
                          .on_exit = [this](const launcher::ExitStatus& how) { status = how; },
                          .on_lost = [this](const std::string& why) { lost = why; }});
  }
  [[nodiscard]] bool has_ended() const { return status.has_value() || lost.has_value(); }

  std::string out;
  std::string err;
  std::optional<launcher::ExitStatus> status;
  std::optional<std::string> lost;
  std::unique_ptr<launcher::Process> process;
};

}  // namespace dstrain::testing
