#include "launcher/process/local_stream.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"

namespace dstrain::launcher {
namespace {

void require(int error, const std::string& what) {
  if (error != 0) throw std::system_error(error, std::generic_category(), what);
}

struct Ends {
  FileDescriptor ours;
  FileDescriptor theirs;
};

/// A socket pair for the program's stdin: unlike a pipe, writing to one that nobody reads any more
/// is an error and no signal. With a file there is no end of ours.
Ends make_input(const std::string& file) {
  if (!file.empty()) {
    Ends ends{{}, FileDescriptor(open(file.c_str(), O_RDONLY | O_CLOEXEC))};
    if (!ends.theirs) require(errno, file);
    return ends;
  }
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    require(errno, "socketpair");
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Ends make_output() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) require(errno, "pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

class SpawnActions {
 public:
  SpawnActions() { require(posix_spawn_file_actions_init(&actions_), "posix_spawn"); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }
  void dup(int from, int to) {
    require(posix_spawn_file_actions_adddup2(&actions_, from, to), "posix_spawn");
  }
  void close_from(int first) {
    require(posix_spawn_file_actions_addclosefrom_np(&actions_, first), "posix_spawn");
  }
  [[nodiscard]] const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

class SpawnAttributes {
 public:
  /// A session of its own, and every signal as a fresh program expects it.
  SpawnAttributes() {
    require(posix_spawnattr_init(&attributes_), "posix_spawn");
    sigset_t all;
    sigset_t none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setflags(&attributes_,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  [[nodiscard]] const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

pid_t spawn(const std::vector<std::string>& argv, int in, int out, int err) {
  SpawnActions actions;
  actions.dup(in, STDIN_FILENO);
  actions.dup(out, STDOUT_FILENO);
  actions.dup(err, STDERR_FILENO);
  actions.close_from(STDERR_FILENO + 1);
  const SpawnAttributes attributes;
  std::vector<std::string> arguments = argv;
  std::vector<char*> pointers;
  for (std::string& argument : arguments)
    pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  require(posix_spawn(&pid, pointers[0], actions.get(), attributes.get(), pointers.data(), environ),
          argv[0]);
  return pid;
}

}  // namespace

class LocalStream::Child : public std::enable_shared_from_this<Child> {
 public:
  Child(asio::io_context& loop,
        const std::vector<std::string>& argv,
        const LocalStreamOptions& options)
      : broken_code_(options.broken_code),
        input_(loop),
        outputs_{Output(loop), Output(loop)},
        end_(loop) {
    Ends in = make_input(options.input_file);
    Ends out = make_output();
    Ends err = make_output();
    pid_ = spawn(argv, in.theirs.get(), out.theirs.get(), err.theirs.get());
    if (in.ours) {
      input_.assign(asio::local::stream_protocol(), in.ours.release());
      input_.non_blocking(true);
    }
    outputs_[0].pipe.assign(out.ours.release());
    outputs_[1].pipe.assign(err.ours.release());
    for (Output& output : outputs_)
      output.pipe.non_blocking(true);
    // glibc 2.36 declares pidfd_open without C linkage.
    const auto handle = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    if (handle < 0) {
      const int error = errno;
      reap_now();
      require(error, "pidfd_open");
    }
    end_.assign(handle);
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::size_t queued_bytes() const { return waiting_.size() + writing_.size(); }

  void await_output(StreamEvents events, std::function<void()> on_output) {
    hear(std::move(events));
    await_first_byte(std::move(on_output));
  }

  void listen(StreamEvents events) {
    hear(std::move(events));
    if (std::exchange(outputs_[0].is_read, true)) return;
    read_when_ready(outputs_[0]);
  }

  void write(std::string_view bytes) {
    if (!input_.is_open() || input_ends_) return;
    waiting_ += bytes;
    write_more();
  }

  void close_input() {
    input_ends_ = true;
    if (queued_bytes() == 0) close_input_now();
  }

  void close() {
    close_input_now();
    asio::error_code ignored;
    for (Output& output : outputs_)
      output.pipe.close(ignored);
  }

  /// No event is reported after it.
  void abandon() {
    close();
    asio::error_code ignored;
    end_.close(ignored);
    events_ = {};
    if (!ended_) reap_now();
  }

 private:
  struct Output {
    explicit Output(asio::io_context& loop) : pipe(loop) {}
    asio::posix::stream_descriptor pipe;
    bool is_read = false;
  };
  static constexpr std::size_t kReadBytes = 1 << 16;  // a pipe's capacity

  /// stderr and the end; stdout is listen()'s.
  void hear(StreamEvents events) {
    events_ = std::move(events);
    if (std::exchange(outputs_[1].is_read, true)) return;
    read_when_ready(outputs_[1]);
    await_end();
  }

  void await_first_byte(std::function<void()> on_output) {
    asio::posix::stream_descriptor& pipe = outputs_[0].pipe;
    pipe.async_wait(
        asio::posix::stream_descriptor::wait_read,
        [self = shared_from_this(), on_output = std::move(on_output)](asio::error_code error) {
          if (error) return;
          pollfd state{self->outputs_[0].pipe.native_handle(), POLLIN, 0};
          poll(&state, 1, 0);
          if ((state.revents & POLLIN) != 0) return on_output();
          // This is neither output nor its end: asio may have woken the wrong one, as in on_end().
          if (state.revents == 0) self->await_first_byte(on_output);
        });
  }

  void await_end() {
    end_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const asio::error_code& error) {
                      if (!error) self->on_end();
                    });
  }

  void read_when_ready(Output& output) {
    output.pipe.async_wait(asio::posix::stream_descriptor::wait_read,
                           [self = shared_from_this(), &output](const asio::error_code& error) {
                             if (!error && self->read_some(output)) self->read_when_ready(output);
                           });
  }

  void tell(const Output& output, std::string_view bytes) {
    // A copy: the listener may replace itself from within.
    const auto listener = &output == &outputs_[0] ? events_.on_data : events_.on_error_data;
    if (listener) listener(bytes);
  }

  bool read_some(Output& output) {
    std::array<char, kReadBytes> buffer;
    asio::error_code error;
    const std::size_t size = output.pipe.read_some(asio::buffer(buffer), error);
    if (size > 0) tell(output, {buffer.data(), size});
    if (error && error != asio::error::would_block && error != asio::error::interrupted) {
      output.pipe.close(error);
    }
    return output.pipe.is_open();
  }

  void write_more() {
    if (!writing_.empty() || waiting_.empty()) return;
    writing_ = std::exchange(waiting_, {});
    asio::async_write(input_, asio::buffer(writing_),
                      [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                        self->writing_.clear();
                        if (error) {
                          self->close_input_now();  // why is told by the program's end
                          return;
                        }
                        self->write_more();
                        if (self->input_ends_ && self->queued_bytes() == 0) self->close_input_now();
                      });
  }

  void close_input_now() {
    asio::error_code ignored;
    input_.close(ignored);
    waiting_.clear();
  }

  void on_end() {
    siginfo_t info{};
    while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0 &&
           errno == EINTR) {
    }
    // asio may hand on what was meant for a closed descriptor of which this one has the place.
    if (info.si_pid == 0) return await_end();
    ended_ = true;
    // Something that the program left behind may still be writing; one pipe's capacity is as much
    // as the program itself can have left.
    for (Output& output : outputs_) {
      if (output.pipe.is_open()) read_some(output);
    }
    close();
    const auto on_closed = events_.on_closed;
    if (!on_closed) return;
    if (info.si_code != CLD_EXITED) return on_closed({.signal = info.si_status});
    if (info.si_status == broken_code_) return on_closed({.why = "its connection broke"});
    on_closed({.exit_code = info.si_status});
  }

  void reap_now() {
    kill(-pid_, SIGKILL);  // also what it reaches its host through: a ProxyCommand, another ssh
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    ended_ = true;
  }

  const int broken_code_;
  pid_t pid_ = -1;
  asio::local::stream_protocol::socket input_;
  std::array<Output, 2> outputs_;
  asio::posix::stream_descriptor end_;  // a pidfd: readable once the program has ended
  StreamEvents events_;
  std::string writing_;
  std::string waiting_;
  bool input_ends_ = false;
  bool ended_ = false;
};

LocalStream::LocalStream(asio::io_context& loop,
                         const std::vector<std::string>& argv,
                         const LocalStreamOptions& options)
    : child_(std::make_shared<Child>(loop, argv, options)) {}
LocalStream::~LocalStream() {
  child_->abandon();
}
pid_t LocalStream::pid() const {
  return child_->pid();
}
void LocalStream::await_output(StreamEvents events, std::function<void()> on_output) {
  child_->await_output(std::move(events), std::move(on_output));
}
void LocalStream::listen(StreamEvents events) {
  child_->listen(std::move(events));
}
void LocalStream::write(std::string_view bytes) {
  child_->write(bytes);
}
std::size_t LocalStream::queued_bytes() const {
  return child_->queued_bytes();
}
void LocalStream::close_input() {
  child_->close_input();
}
void LocalStream::close() {
  child_->close();
}

}  // namespace dstrain::launcher
