// AgentHost: one host as the launcher sees it: the agent at the other end of a ByteStream, and
// through it the host's ranks.
//
//   greet → hello, or why there is none      ask → what the launcher wants to know of the host
//   start → Process, whose output and end come back    silence or the stream's end → all are lost
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <asio.hpp>

#include "launcher/agent/agent_protocol.h"
#include "launcher/process/byte_stream.h"
#include "launcher/process/process.h"
#include "launcher/supervision/line_splitter.h"

namespace dstrain::launcher {

struct AgentHostOptions {
  std::chrono::milliseconds beat{1000};
  std::chrono::milliseconds patience{5000};          ///< a host that is silent for so long is lost
  std::chrono::milliseconds hello_patience{15'000};  ///< the time for its first word
  std::chrono::milliseconds agent_patience{8000};    ///< the agent's patience with the launcher
  std::chrono::milliseconds kill_grace{
      5000};  ///< between SIGTERM and SIGKILL when the agent ends the ranks
  /// A line that the agent, or the host's shell, wrote to stderr.
  std::function<void(std::string_view line)> on_words = [](std::string_view) {};
};

/// The reason why there is no agent to talk to.
struct GreetingFailure {
  bool is_missing = false;  ///< there is no such program on the host
  std::string why{};        ///< a clause
};

class AgentHost {
 public:
  using OnGreeted = std::function<void(const std::optional<GreetingFailure>&)>;

  AgentHost(asio::io_context& loop,
            std::string name,
            std::unique_ptr<ByteStream> stream,
            AgentHostOptions options = {});
  AgentHost(const AgentHost&) = delete;
  AgentHost& operator=(const AgentHost&) = delete;
  ~AgentHost();

  [[nodiscard]] const std::string& name() const { return name_; }

  /// Waits for the agent's hello; `done` is called from the event loop, once.
  void greet(OnGreeted done);
  [[nodiscard]] bool has_greeted() const { return hello_.has_value(); }
  /// Valid only after a greeting that went well.
  [[nodiscard]] const AgentHello& hello() const { return hello_.value(); }
  /// The time by which the host's clock is ahead of this one, give or take the time that the hello
  /// travelled.
  [[nodiscard]] std::chrono::microseconds clock_offset() const { return clock_offset_; }

  /// The answer's `error` is set if the host is lost before it answers. Called from the event loop.
  void ask(const HostQuestion& question, std::function<void(HostAnswer)> done);
  /// The process must not outlive this object. Its pid is 0 until the host has reported it.
  std::unique_ptr<Process> start(const ProcessSpec& spec, ProcessEvents events);
  /// Called after all processes have ended.
  void sweep();
  /// Tells the agent to end what still runs, and itself; has_closed() is true once it has.
  void say_bye(const Bye& bye = {});

  [[nodiscard]] bool has_closed() const { return phase_ == Phase::kClosed; }

 private:
  enum class Phase { kGreeting, kServing, kClosed };
  class RemoteProcess;

  void on_data(std::string_view bytes);
  void on_message(const AgentHello& hello);
  void on_message(const Started& started);
  void on_message(const StartFailed& failed);
  void on_message(const Output& output);
  void on_message(const Dropped& dropped);
  void on_message(const Exited& exited);
  void on_message(const HostAnswered& answered);
  void on_message(const Heartbeat& heartbeat);
  void on_closed(const StreamEnd& end);
  void beat();
  void send(const ToAgent& message);
  void fail_greeting(GreetingFailure failure);
  void lose(const std::string& why);
  void close_stream();
  [[nodiscard]] std::string describe(const StreamEnd& end) const;
  /// nullptr if it has ended.
  RemoteProcess* process_of(std::int32_t rank);

  asio::io_context& loop_;
  const std::string name_;
  const AgentHostOptions options_;
  std::unique_ptr<ByteStream> stream_;
  asio::steady_timer timer_;
  OnGreeted on_greeted_;
  std::string before_preamble_;  // the text that a login printed
  bool is_behind_preamble_ = false;
  FrameReader frames_;
  LineSplitter stderr_lines_;
  std::string last_words_;  // the last line of stderr
  std::optional<AgentHello> hello_;
  std::chrono::microseconds clock_offset_{};
  std::chrono::steady_clock::time_point last_heard_;
  std::chrono::steady_clock::time_point last_beat_;
  std::map<std::int32_t, RemoteProcess*> processes_;  // by rank; each takes itself out
  std::map<std::uint32_t, std::function<void(HostAnswer)>> questions_;
  std::uint32_t next_question_ = 1;
  std::string why_lost_;
  Phase phase_ = Phase::kGreeting;
  bool said_bye_ = false;
  /// Handlers hold weak pointers to it.
  std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace dstrain::launcher
