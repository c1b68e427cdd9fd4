#include "launcher/ssh/ssh_link.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace dstrain::launcher {
namespace {

using Call = SshChannel::Call;
using State = SshChannel::State;

constexpr std::array kTurn = {Call::kWrite,   Call::kReadOut,    Call::kReadErr,
                              Call::kSendEnd, Call::kAwaitClose, Call::kClose};
constexpr std::size_t kBytesPerRead = 1 << 16;
/// The most bytes that one channel may move in one turn, so that a flood from one program leaves
/// time for the others.
constexpr int kCallsPerTurn = 16;

/// "TERM" of an SSH message as a number; 0 if this system has no such signal.
int signal_number(const char* name) {
  for (int number = 1; number < NSIG; ++number) {
    const char* const own = sigabbrev_np(number);
    if (own != nullptr && std::strcmp(own, name) == 0) return number;
  }
  return 0;
}

}  // namespace

SshLink::SshLink(asio::io_context& loop, std::unique_ptr<SshSession> session)
    : loop_(loop), session_(std::move(session)) {
  // The session is a member of this object, so `this` is there whenever it calls.
  session_->on_ready([this] { serve(); });
}

SshLink::~SshLink() = default;

std::shared_ptr<SshChannel> SshLink::start(std::string command,
                                           std::chrono::milliseconds deadline,
                                           std::function<void(std::string)> on_started) {
  auto channel = std::make_shared<Channel>();
  channel->command = std::move(command);
  channel->on_started = std::move(on_started);
  channel->start_deadline = std::make_unique<asio::steady_timer>(loop_, deadline);
  channel->start_deadline->async_wait(
      [link = weak_from_this(), weak = std::weak_ptr(channel), deadline](const auto& error) {
        const auto self = link.lock();
        const auto late = weak.lock();
        if (!self || !late || error || !late->on_started) return;
        self->lose(fmt::format("no answer to the start of a program within {:.3g} s",
                               std::chrono::duration<double>(deadline).count()));
      });
  channels_.push_back(channel);
  schedule();
  return channel;
}

void SshLink::schedule() {
  if (std::exchange(scheduled_, true)) return;
  asio::post(loop_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->scheduled_ = false;
    self->serve();
  });
}

void SshLink::serve() {
  const auto self = shared_from_this();  // a callback may drop the last handle
  const std::int64_t received_before = session_->received_bytes();
  bool moved = false;
  const std::vector<std::shared_ptr<Channel>> channels = channels_;
  for (const auto& channel : channels) {
    if (lost_) break;
    if (interrupted_ != nullptr && interrupted_ != channel.get()) continue;
    interrupted_ = nullptr;
    const Turn turn = serve(*channel);
    if (turn == Turn::kInterrupted) interrupted_ = channel.get();
    moved = moved || turn == Turn::kMoved;
  }
  if (lost_) {
    for (const auto& channel : channels) {
      if (channel->on_started) finish_start(*channel, *lost_);
      if (!channel->end) channel->end = StreamEnd{.why = *lost_};
      channel->state = State::kOver;
    }
  }
  for (const auto& channel : channels)
    tell_end(*channel);
  std::erase_if(channels_, [](const auto& channel) {
    return channel->state == State::kOver && (channel->end_told || channel->to_close);
  });
  if (lost_) return;
  // Bytes that one channel's calls took from the socket may be for another whose turn was over, and
  // the event loop will not report them again.
  moved = moved || session_->received_bytes() != received_before;
  if (moved && interrupted_ == nullptr) return schedule();
  // A program without a listener has nobody to read its output, and waiting for its bytes would not
  // end.
  const bool anybody_reads =
      std::any_of(channels_.begin(), channels_.end(), [](const auto& channel) {
        return channel->state != State::kOver &&
               (channel->state != State::kRunning || channel->listener || channel->to_close);
      });
  if (anybody_reads || interrupted_ != nullptr) session_->wait();
}

SshLink::Turn SshLink::serve(Channel& channel) {
  switch (channel.state) {
    case State::kOpening:
    case State::kStarting:
      return start(channel);
    case State::kRunning:
    case State::kClosing:
      return run(channel);
    case State::kOver:
      break;
  }
  return Turn::kIdle;
}

SshLink::Turn SshLink::start(Channel& channel) {
  const auto again = [this] {
    return session_->wants_to_send() ? Turn::kInterrupted : Turn::kIdle;
  };
  if (channel.state == State::kOpening) {
    if (opening_ != nullptr && opening_ != &channel) return Turn::kIdle;
    opening_ = &channel;
    channel.handle = libssh2_channel_open_session(session_->get());
    const int error = channel.handle == nullptr ? libssh2_session_last_errno(session_->get()) : 0;
    if (error == LIBSSH2_ERROR_EAGAIN) return again();
    opening_ = nullptr;
    if (error != 0) {
      finish_start(channel, session_->why());
      channel.to_close = true;
      channel.state = State::kOver;
      return Turn::kMoved;
    }
    channel.state = State::kStarting;
  }
  const int result =
      libssh2_channel_process_startup(channel.handle, "exec", 4, channel.command.data(),
                                      static_cast<unsigned>(channel.command.size()));
  if (result == LIBSSH2_ERROR_EAGAIN) return again();
  if (result != 0) {
    finish_start(channel, session_->why());
    channel.to_close = true;
  } else {
    finish_start(channel, {});
  }
  channel.state = State::kRunning;
  return Turn::kMoved;
}

void SshLink::finish_start(Channel& channel, const std::string& error) {
  channel.start_deadline->cancel();
  if (!error.empty()) channel.end = StreamEnd{.why = error};
  if (channel.on_started) std::exchange(channel.on_started, nullptr)(error);
}

SshLink::Turn SshLink::run(Channel& channel) {
  Turn turn = Turn::kIdle;
  const Call first = channel.interrupted.value_or(kTurn.front());
  channel.interrupted.reset();
  for (const Call call : kTurn) {
    if (call < first || channel.state == State::kOver || lost_) continue;
    const Turn made = make(channel, call);
    if (made == Turn::kInterrupted) {
      channel.interrupted = call;
      return made;
    }
    if (made == Turn::kMoved) turn = made;
  }
  // The calls before `first` were left out of this turn.
  return first == kTurn.front() ? turn : Turn::kMoved;
}

SshLink::Turn SshLink::make(Channel& channel, Call call) {
  const bool open = channel.state == State::kRunning && !channel.end;
  switch (call) {
    case Call::kWrite:
      return open && !channel.end_sent && !channel.to_close ? write(channel) : Turn::kIdle;
    case Call::kReadOut:
    case Call::kReadErr:
      return open && channel.listener && !channel.to_close ? read(channel, call) : Turn::kIdle;
    case Call::kSendEnd:
      if (!open || channel.end_sent || !channel.input_ends || queued_bytes(channel) > 0) break;
      if (const Turn sent = judge(libssh2_channel_send_eof(channel.handle)); sent != Turn::kMoved) {
        return sent;
      }
      channel.end_sent = true;
      return Turn::kMoved;
    case Call::kAwaitClose:
      return open && channel.listener && !channel.to_close ? await_close(channel) : Turn::kIdle;
    case Call::kClose:
      return channel.end || channel.to_close ? close(channel) : Turn::kIdle;
  }
  return Turn::kIdle;
}

/// Decides from the return value of a libssh2 call how the turn continues. Anything but success and
/// "again" is the end of the connection; errors of one channel alone are handled before.
SshLink::Turn SshLink::judge(long result) {
  if (result == LIBSSH2_ERROR_EAGAIN) {
    return session_->wants_to_send() ? Turn::kInterrupted : Turn::kIdle;
  }
  if (result >= 0) return Turn::kMoved;
  lost_ = session_->why();
  return Turn::kMoved;
}

SshLink::Turn SshLink::write(Channel& channel) {
  Turn turn = Turn::kIdle;
  for (int i = 0; i < kCallsPerTurn; ++i) {
    if (queued_bytes(channel) == 0) {
      channel.outgoing.clear();
      channel.handed_over = 0;
      if (!channel.more_input || channel.input_ends) return turn;
      channel.outgoing = channel.more_input();
      channel.input_ends = channel.outgoing.empty();
      if (channel.input_ends) return Turn::kMoved;
    }
    const long sent = libssh2_channel_write_ex(
        channel.handle, 0, channel.outgoing.data() + channel.handed_over, queued_bytes(channel));
    if (sent == 0) return turn;  // the window is full
    if (sent == LIBSSH2_ERROR_CHANNEL_CLOSED || sent == LIBSSH2_ERROR_CHANNEL_EOF_SENT) {
      channel.outgoing.clear();  // the program is gone; its end is on the way
      channel.handed_over = 0;
      channel.input_ends = true;
      return Turn::kMoved;
    }
    const Turn judged = judge(sent);
    if (judged == Turn::kInterrupted) return judged;
    if (judged == Turn::kIdle || lost_) return turn;
    turn = judged;
    channel.handed_over += static_cast<std::size_t>(sent);
    constexpr std::size_t kWorthMoving = 1 << 20;
    if (channel.handed_over > kWorthMoving && channel.handed_over > queued_bytes(channel)) {
      channel.outgoing.erase(0, channel.handed_over);
      channel.handed_over = 0;
    }
  }
  return turn;
}

SshLink::Turn SshLink::read(Channel& channel, Call call) {
  std::array<char, kBytesPerRead> buffer;
  const bool is_error = call == Call::kReadErr;
  Turn turn = Turn::kIdle;
  for (int i = 0; i < kCallsPerTurn && channel.listener && !lost_; ++i) {
    const long size = libssh2_channel_read_ex(
        channel.handle, is_error ? SSH_EXTENDED_DATA_STDERR : 0, buffer.data(), buffer.size());
    if (size == 0 || size == LIBSSH2_ERROR_CHANNEL_CLOSED) return turn;
    const Turn judged = judge(size);
    if (judged == Turn::kInterrupted) return judged;
    if (judged == Turn::kIdle || lost_) return turn;
    turn = judged;
    const auto listener = channel.listener;
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(size));
    is_error ? listener->on_error_data(bytes) : listener->on_data(bytes);
  }
  return turn;
}

/// Called after the last byte: waits for the host to close the channel, with the program's exit
/// code.
SshLink::Turn SshLink::await_close(Channel& channel) {
  if (libssh2_channel_eof(channel.handle) != 1) return Turn::kIdle;
  const Turn judged = judge(libssh2_channel_wait_closed(channel.handle));
  if (judged != Turn::kMoved || lost_) return judged;
  channel.end = how_it_ended(channel);
  return Turn::kMoved;
}

StreamEnd SshLink::how_it_ended(const Channel& channel) const {
  char* name = nullptr;
  libssh2_channel_get_exit_signal(channel.handle, &name, nullptr, nullptr, nullptr, nullptr,
                                  nullptr);
  if (name == nullptr) {
    return {.exit_code = libssh2_channel_get_exit_status(channel.handle)};
  }
  StreamEnd end{.signal = signal_number(name)};
  if (end.signal == 0) end.why = fmt::format("killed by signal {}", name);
  libssh2_free(session_->get(), name);
  return end;
}

SshLink::Turn SshLink::close(Channel& channel) {
  channel.state = State::kClosing;
  const Turn judged = judge(libssh2_channel_free(channel.handle));
  if (judged == Turn::kInterrupted) return judged;
  // "Again" now means that the host has not closed its side yet, which need not be waited for.
  if (!channel.end) channel.end = StreamEnd{.why = "closed by the launcher"};
  if (judged == Turn::kMoved) channel.state = State::kOver;
  return judged;
}

void SshLink::tell_end(Channel& channel) {
  if (!channel.end || channel.end_told || !channel.listener) return;
  channel.end_told = true;
  const auto listener = std::exchange(channel.listener, nullptr);
  listener->on_closed(*channel.end);
}

void SshLink::lose(const std::string& why) {
  if (!lost_) lost_ = why;
  schedule();
}

}  // namespace dstrain::launcher
