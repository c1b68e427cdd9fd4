#include "engine/train/policy/reward_program.h"

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace dstrain {
namespace {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Pipe make_pipe() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw ConfigError(fmt::format("grpo.reward_command: no pipe: {}", std::strerror(errno)));
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// Writes without the signal that a reader who went away raises.
ssize_t write_quietly(int file, const char* bytes, std::size_t size) {
  sigset_t pipe_signal;
  sigset_t before;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const ssize_t written = ::write(file, bytes, size);
  const int error = errno;
  if (written < 0 && error == EPIPE) {
    const timespec now{};
    sigtimedwait(&pipe_signal, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

}  // namespace

RewardProgram::RewardProgram(std::string command) : command_(std::move(command)) {
  Pipe to_program = make_pipe();
  Pipe from_program = make_pipe();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_program.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_program.write.get(), STDOUT_FILENO);
  const std::string shell = "sh";
  const std::string flag = "-c";
  char* const arguments[] = {const_cast<char*>(shell.c_str()), const_cast<char*>(flag.c_str()),
                             command_.data(), nullptr};
  // Ranks block signals that they take by other ways.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int error = ::posix_spawn(&process_, "/bin/sh", &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw ConfigError(fmt::format("grpo.reward_command: {}: cannot be started: {}", command_,
                                  std::strerror(error)));
  }
  input_ = std::move(to_program.write);
  output_ = std::move(from_program.read);
  ::fcntl(input_.get(), F_SETFL, O_NONBLOCK);
}

RewardProgram::~RewardProgram() {
  if (process_ > 0) static_cast<void>(end());
}

std::string RewardProgram::end() {
  input_ = {};
  output_ = {};
  constexpr int kPatience = 100;  // tenths of a second
  const pid_t process = std::exchange(process_, -1);
  int status = 0;
  pid_t ended = 0;
  for (int waited = 0; ended == 0; ++waited) {
    if (waited == kPatience) ::kill(process, SIGKILL);
    ended = ::waitpid(process, &status, waited < kPatience ? WNOHANG : 0);
    if (ended < 0 && errno == EINTR) ended = 0;
    if (ended == 0) ::usleep(100'000);
  }
  if (ended > 0 && WIFSIGNALED(status)) {
    return fmt::format("was ended by signal {}", WTERMSIG(status));
  }
  return ended > 0 && WIFEXITED(status) ? fmt::format("ended with status {}", WEXITSTATUS(status))
                                        : "ended";
}

double RewardProgram::reward_of(const std::string& answer) const {
  const nlohmann::json json = nlohmann::json::parse(answer, nullptr, false);
  const nlohmann::json number = json.is_object() ? json.value("reward", nlohmann::json()) : json;
  if (!number.is_number() || !std::isfinite(number.get<double>())) {
    throw ConfigError(fmt::format(
        "grpo.reward_command: {}: answered {}, expected a number, or {{\"reward\": number}}",
        command_,
        nlohmann::json(answer).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  }
  return number.get<double>();
}

// Both ways at once: a program may answer line by line, and neither pipe holds all of them.
std::vector<double> RewardProgram::rewards(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += line + "\n";
  }
  std::vector<double> rewards;
  std::size_t sent = 0;
  while (rewards.size() < lines.size()) {
    pollfd waits[2] = {
        {.fd = output_.get(), .events = POLLIN, .revents = 0},
        {.fd = sent < text.size() ? input_.get() : -1, .events = POLLOUT, .revents = 0}};
    if (::poll(waits, 2, -1) < 0 && errno != EINTR) {
      throw ConfigError(fmt::format("grpo.reward_command: {}", std::strerror(errno)));
    }
    if (waits[1].revents != 0) {
      const ssize_t written = write_quietly(input_.get(), text.data() + sent, text.size() - sent);
      if (written > 0) sent += static_cast<std::size_t>(written);
      if (written < 0 && errno == EPIPE) sent = text.size();  // its output says the rest
    }
    if (waits[0].revents == 0) continue;
    char bytes[65536];
    const ssize_t read = ::read(output_.get(), bytes, sizeof(bytes));
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) {
      throw ConfigError(fmt::format("grpo.reward_command: {}: {} after {} of {} rewards", command_,
                                    end(), rewards.size(), lines.size()));
    }
    unread_.append(bytes, static_cast<std::size_t>(read));
    for (std::size_t at = 0; (at = unread_.find('\n')) != std::string::npos;) {
      if (rewards.size() == lines.size()) {
        throw ConfigError(
            fmt::format("grpo.reward_command: {}: answered more lines than it was "
                        "given, {}",
                        command_, lines.size()));
      }
      rewards.push_back(reward_of(unread_.substr(0, at)));
      unread_.erase(0, at + 1);
    }
  }
  return rewards;
}

}  // namespace dstrain
