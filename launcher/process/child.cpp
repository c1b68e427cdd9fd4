#include "launcher/process/child.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/process/process_state.h"

namespace dstrain::launcher {
namespace {

using std::chrono::steady_clock;
using Descriptor = asio::posix::stream_descriptor;

/// The longest wait for a process that cannot run, once it is to end.
constexpr std::chrono::seconds kEndPatience{3};
constexpr std::size_t kReadBytes = 1 << 16;  // a pipe's capacity

/// "dstrain train CONFIG …", shortened.
std::string command_text(const ProcessSpec& spec) {
  constexpr std::size_t kLongest = 200;
  std::string text = fmt::format("{}", fmt::join(spec.argv, " "));
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "…";
  return text;
}

void close_now(Descriptor& descriptor) noexcept {
  asio::error_code ignored;
  descriptor.close(ignored);
}

}  // namespace

Child::Child(asio::io_context& loop,
             const ProcessSpec& spec,
             const ProgramTies& ties,
             std::chrono::milliseconds start_patience)
    : spec_(spec),
      start_patience_(start_patience),
      input_(loop),
      outputs_{Output{Descriptor(loop)}, Output{Descriptor(loop)}},
      exec_result_(loop),
      start_timer_(loop),
      end_(loop) {
  StartedProgram program = start_program(spec_, ties);
  pid_ = program.pid;
  if (program.in) {
    input_.assign(asio::local::stream_protocol(), program.in.release());
    input_.non_blocking(true);
  }
  outputs_[0].pipe.assign(program.out.release());
  outputs_[1].pipe.assign(program.err.release());
  exec_result_.assign(program.exec_result.release());
  for (Output& output : outputs_)
    output.pipe.non_blocking(true);
  exec_result_.non_blocking(true);
  // glibc 2.36 declares pidfd_open without C linkage.
  const auto handle = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  if (handle < 0) {
    const int error = errno;
    abandon();
    throw std::system_error(error, std::generic_category(), "pidfd_open");
  }
  end_.assign(handle);
}

void Child::listen(ChildEvents events) {
  events_ = std::move(events);
  if (has_ended_ || std::exchange(is_followed_, true)) return;
  await_exec();
  give_up_starting_after(start_patience_);
  await_end();
}

void Child::read(OutputStream stream) {
  if (!std::exchange(output(stream).is_read, true)) read_when_ready(stream);
}

void Child::await_output(OutputStream stream, std::function<void()> then) {
  Descriptor& pipe = output(stream).pipe;
  pipe.async_wait(Descriptor::wait_read, [self = shared_from_this(), stream,
                                          then = std::move(then)](asio::error_code error) {
    if (error) return;
    pollfd state{self->output(stream).pipe.native_handle(), POLLIN, 0};
    poll(&state, 1, 0);
    if ((state.revents & POLLIN) != 0) return then();
    // This is neither output nor the end of output: asio may have woken the wrong one, as in
    // on_end().
    if (state.revents == 0) self->await_output(stream, then);
  });
}

void Child::read_when_ready(OutputStream stream) {
  output(stream).pipe.async_wait(
      Descriptor::wait_read, [self = shared_from_this(), stream](const asio::error_code& error) {
        if (error) return;
        // One read, so that no program's flood keeps the others waiting.
        self->read_some(stream);
        if (self->output(stream).pipe.is_open()) self->read_when_ready(stream);
      });
}

/// Closes the pipe at its end. Returns how many bytes it has delivered.
std::size_t Child::read_some(OutputStream stream) {
  Descriptor& pipe = output(stream).pipe;
  std::array<char, kReadBytes> buffer;
  asio::error_code error;
  const std::size_t size = pipe.read_some(asio::buffer(buffer), error);
  const auto on_output = events_.on_output;  // a copy: the listener may replace itself from within
  if (size > 0 && on_output) on_output(stream, {buffer.data(), size});
  if (error && error != asio::error::would_block && error != asio::error::interrupted)
    close_now(pipe);
  return size;
}

void Child::write(std::string_view bytes) {
  if (!input_.is_open() || input_ends_) return;
  waiting_ += bytes;
  write_more();
}

void Child::write_more() {
  if (!writing_.empty() || waiting_.empty()) return;
  writing_ = std::exchange(waiting_, {});
  asio::async_write(input_, asio::buffer(writing_),
                    [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                      self->writing_.clear();
                      if (error) return self->close_input();  // the program's end will say why
                      self->write_more();
                      if (self->input_ends_ && self->queued_bytes() == 0) self->close_input();
                    });
}

void Child::end_input() {
  input_ends_ = true;
  if (queued_bytes() == 0) close_input();
}

void Child::close_input() {
  asio::error_code ignored;
  input_.close(ignored);
  waiting_.clear();
}

void Child::close() {
  close_input();
  for (Output& output : outputs_)
    close_now(output.pipe);
}

void Child::signal(int number) noexcept {
  if (has_ended_) return;
  // Until the child leads its group there is no such group.
  if (kill(-pid_, number) != 0) kill(pid_, number);
  // The signal stays pending as long as the child cannot run; it is not worth waiting for.
  if (is_starting() && (number == SIGTERM || number == SIGINT)) {
    give_up_starting_after(kEndPatience);
  }
}

void Child::abandon() noexcept {
  events_ = {};
  close();
  close_now(exec_result_);
  close_now(end_);
  start_timer_.cancel();
  if (has_ended_) return;
  signal(SIGKILL);
  has_ended_ = true;
  reap_killed();
}

/// A process that the kernel cannot end now (waiting for a dead disk) is left to it.
void Child::reap_killed() noexcept {
  constexpr int kRounds = 1000;
  constexpr useconds_t kRoundMicroseconds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    const pid_t reaped = waitpid(pid_, nullptr, WNOHANG);
    if (reaped == pid_ || (reaped < 0 && errno != EINTR)) return;
    usleep(kRoundMicroseconds);
  }
}

void Child::await_exec() {
  exec_result_.async_wait(Descriptor::wait_read,
                          [self = shared_from_this()](const asio::error_code& error) {
                            if (error || !self->is_starting()) return;
                            self->learn_of_exec();
                            if (self->is_starting()) self->await_exec();  // as in on_end()
                          });
}

/// The child's end of the pipe is closed, or tells why there is no program; then it ends in a
/// moment.
void Child::learn_of_exec() {
  const auto result = read_exec_result(exec_result_.native_handle(), spec_);
  if (!result) return;
  why_not_begun_ = *result;
  close_now(exec_result_);
  start_timer_.cancel();
}

void Child::give_up_starting_after(std::chrono::milliseconds patience) {
  start_timer_.expires_after(patience);
  start_timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (error || !self->is_starting()) return;
    const std::chrono::duration<double> waited = steady_clock::now() - self->began_;
    const ProcessState state = process_state(self->pid_);
    self->signal(SIGKILL);  // its end is not waited for: it may hang in the kernel
    self->end({.code = kNotStarted,
               .detail = fmt::format("{} has not begun {:.1f} s after its process was made: it {}",
                                     command_text(self->spec_), waited.count(), describe(state)),
               .never_began = true});
  });
}

void Child::await_end() {
  end_.async_wait(Descriptor::wait_read,
                  [self = shared_from_this()](const asio::error_code& error) {
                    if (!error && !self->has_ended_) self->on_end();
                  });
}

void Child::on_end() {
  siginfo_t info{};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
  // asio may deliver what was meant for a closed descriptor that had the same number.
  if (info.si_pid == 0) return await_end();
  if (is_starting()) learn_of_exec();  // which may not have been reported yet
  ExitStatus status;
  (info.si_code == CLD_EXITED ? status.code : status.signal) = info.si_status;
  if (!why_not_begun_.empty()) {
    status = {.code = kNotStarted, .detail = why_not_begun_, .never_began = true};
  }
  if (events_.before_reaping) events_.before_reaping(status);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  end(status);
}

void Child::end(const ExitStatus& status) {
  has_ended_ = true;
  start_timer_.cancel();
  close_now(exec_result_);
  close_now(end_);
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    // Something that the program left behind may still be writing; one pipe's capacity is as much
    // as the program itself can have left.
    std::size_t drained = 0;
    while (output(stream).pipe.is_open() && drained < kReadBytes) {
      const std::size_t size = read_some(stream);
      if (size == 0) break;
      drained += size;
    }
  }
  close();
  const auto on_exit = events_.on_exit;
  if (on_exit) on_exit(status);
}

}  // namespace dstrain::launcher
