// Child: a program of this machine that this process started, followed on an event loop: whether it
// became the program, its input, its output, its end. What is built on it (local_process.h,
// local_stream.h) differs in what the program is for.
//
// A child is shared with the handlers that wait in the event loop. Its owner calls abandon() when
// it has no more use for it.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <asio.hpp>
#include <sys/types.h>

#include "launcher/process/process.h"
#include "launcher/process/program_start.h"

namespace dstrain::launcher {

/// The longest time from fork to exec. In between, only opening the executable and the working
/// folder can take time.
constexpr std::chrono::milliseconds kStartPatience{60'000};

/// Called from the event loop.
struct ChildEvents {
  std::function<void(OutputStream, std::string_view bytes)> on_output{};
  /// Called when the program has ended, and its id and its process group are still its own: the
  /// last moment to look at it in /proc, to signal its group, and to add to what on_exit is told.
  std::function<void(ExitStatus&)> before_reaping{};
  /// Called once, after the last output.
  std::function<void(const ExitStatus&)> on_exit{};
};

class Child : public std::enable_shared_from_this<Child> {
 public:
  /// Throws std::system_error where there can be no child.
  Child(asio::io_context& loop,
        const ProcessSpec& spec,
        const ProgramTies& ties,
        std::chrono::milliseconds start_patience = kStartPatience);

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool has_ended() const { return has_ended_; }

  /// Sets who listens from now on, in place of the listener before. Output comes once it is asked
  /// for by read(), or when the program ends.
  void listen(ChildEvents events);
  /// Reads that stream until its end.
  void read(OutputStream stream);
  /// Calls `then` when there is some output to read, and takes nothing of it.
  void await_output(OutputStream stream, std::function<void()> then);
  /// Queues bytes for its stdin, unless that is a file or has ended.
  void write(std::string_view bytes);
  /// The number of those bytes that are not handed over yet.
  [[nodiscard]] std::size_t queued_bytes() const { return waiting_.size() + writing_.size(); }
  /// Ends its stdin after what is queued.
  void end_input();
  /// Ends its stdin now, and reads nothing more.
  void close();
  /// Sends to the whole process group. Nothing happens if the program has ended.
  void signal(int number) noexcept;
  /// Kills the program with its process group if it still runs. No event comes after this.
  void abandon() noexcept;

 private:
  struct Output {
    asio::posix::stream_descriptor pipe;
    bool is_read = false;
  };

  Output& output(OutputStream stream) { return outputs_[static_cast<std::size_t>(stream)]; }
  void write_more();
  void close_input();
  void read_when_ready(OutputStream stream);
  std::size_t read_some(OutputStream stream);
  void await_exec();
  void learn_of_exec();
  [[nodiscard]] bool is_starting() const { return exec_result_.is_open(); }
  void give_up_starting_after(std::chrono::milliseconds patience);
  void await_end();
  void on_end();
  void end(const ExitStatus& status);
  void reap_killed() noexcept;

  const ProcessSpec spec_;
  const std::chrono::milliseconds start_patience_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  asio::local::stream_protocol::socket input_;
  std::string waiting_;  // for input_, behind what is being written
  std::string writing_;
  bool input_ends_ = false;
  std::array<Output, 2> outputs_;               // by OutputStream
  asio::posix::stream_descriptor exec_result_;  // open until it is known
  asio::steady_timer start_timer_;
  asio::posix::stream_descriptor end_;  // a pidfd: readable once the program has ended
  pid_t pid_ = -1;
  ChildEvents events_;
  std::string why_not_begun_;
  bool is_followed_ = false;  // by the handlers of its start and its end
  bool has_ended_ = false;
};

}  // namespace dstrain::launcher
