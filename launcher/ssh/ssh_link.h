// SshLink: a session that is logged in, and the programs that run over it, each on a channel of its
// own. It does the work of every program's ByteStream.
//
// One round of serve() gives every channel a turn: what waits to be sent, what has come, how it
// ended. A call of libssh2 that could not send its whole packet is repeated before anything else
// is done (ssh_session.h); the peer reads on meanwhile, so this cannot stand still for ever. What
// comes in is bounded by the channel's window (2 MiB), which only grows as it is read here.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <asio.hpp>
#include <libssh2.h>

#include "launcher/process/byte_stream.h"
#include "launcher/ssh/ssh_session.h"

namespace dstrain::launcher {

/// A program that is being started, runs, or has ended.
struct SshChannel {
  enum class State { kOpening, kStarting, kRunning, kClosing, kOver };
  /// Calls that may send; in the order of a turn.
  enum class Call { kWrite, kReadOut, kReadErr, kSendEnd, kAwaitClose, kClose };

  std::string command{};
  std::function<void(std::string error)> on_started{};  ///< empty error: it runs
  std::unique_ptr<asio::steady_timer> start_deadline{};

  State state = State::kOpening;
  LIBSSH2_CHANNEL* handle = nullptr;
  std::optional<Call> interrupted{};  ///< the call to repeat first

  std::string outgoing{};
  std::size_t handed_over = 0;                ///< bytes of outgoing
  std::function<std::string()> more_input{};  ///< asked when outgoing is empty; "" is the end
  bool input_ends = false;
  bool end_sent = false;
  bool to_close = false;

  std::shared_ptr<StreamEvents> listener{};  ///< shared with the callback that is running
  std::optional<StreamEnd> end{};
  bool end_told = false;
};

class SshLink : public std::enable_shared_from_this<SshLink> {
 public:
  SshLink(asio::io_context& loop, std::unique_ptr<SshSession> session);
  SshLink(const SshLink&) = delete;
  SshLink& operator=(const SshLink&) = delete;
  /// The connection is closed at once: programs see the end of their input.
  ~SshLink();

  /// Hands a command line to the user's shell on the host.
  std::shared_ptr<SshChannel> start(std::string command,
                                    std::chrono::milliseconds deadline,
                                    std::function<void(std::string error)> on_started);
  /// Serves the channels soon.
  void schedule();
  /// The connection broke, or is given up: every program's stream ends with this reason.
  void lose(const std::string& why);

  [[nodiscard]] static std::size_t queued_bytes(const SshChannel& channel) {
    return channel.outgoing.size() - channel.handed_over;
  }

 private:
  using Channel = SshChannel;
  enum class Turn { kIdle, kMoved, kInterrupted };

  void serve();
  Turn serve(Channel& channel);
  Turn start(Channel& channel);
  Turn run(Channel& channel);
  Turn make(Channel& channel, Channel::Call call);
  Turn write(Channel& channel);
  Turn read(Channel& channel, Channel::Call call);
  Turn await_close(Channel& channel);
  Turn close(Channel& channel);
  Turn judge(long result);
  void finish_start(Channel& channel, const std::string& error);
  void tell_end(Channel& channel);
  [[nodiscard]] StreamEnd how_it_ended(const Channel& channel) const;

  asio::io_context& loop_;
  std::unique_ptr<SshSession> session_;
  std::vector<std::shared_ptr<Channel>> channels_;  ///< shared with their streams
  Channel* interrupted_ = nullptr;                  ///< its call is repeated before all others
  Channel* opening_ = nullptr;                      ///< libssh2 opens one at a time
  bool scheduled_ = false;
  std::optional<std::string> lost_;
};

}  // namespace dstrain::launcher
