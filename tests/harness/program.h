// Program: dstrain itself, or anything else, started by a test, with its output kept in files.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/processes.h"

namespace dstrain::testing {

/// The program under test; the build says where it is.
inline std::string dstrain_binary() {
  const char* const path = std::getenv("DSTRAIN_BINARY");
  return path == nullptr || *path == '\0' ? "build/bin/dstrain" : path;
}

class Program {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  /// `in_child` runs in the new process, before anything else.
  explicit Program(std::vector<std::string> argv,
                   const Environment& environment = {},
                   const std::function<void()>& in_child = {}) {
    std::vector<char*> pointers;
    for (std::string& argument : argv)
      pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const std::string out = (folder_.path() / "out").string();
    const std::string err = (folder_.path() / "err").string();
    pid_ = fork();
    if (pid_ != 0) return;
    if (in_child) in_child();
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    close_range(STDERR_FILENO + 1, ~0U, 0);
    for (const auto& [name, value] : environment)
      setenv(name.c_str(), value.c_str(), 1);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (!status_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }

  /// The exit code as in a shell: 128 + n for a signal. Empty if it still runs after `patience`.
  std::optional<int> wait(std::chrono::milliseconds patience) {
    becomes_true([&] { return ended(); }, patience);
    return status_;
  }

  [[nodiscard]] std::string out() const { return folder_.read("out"); }
  [[nodiscard]] std::string err() const { return folder_.read("err"); }
  [[nodiscard]] std::string last_line() const {
    const std::string text = err();
    const size_t end = text.find_last_not_of('\n');
    const size_t begin = text.rfind('\n', end);
    return text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
  }
  /// Its children, in the order in which they were started.
  [[nodiscard]] std::vector<pid_t> children() const {
    const std::string id = std::to_string(pid_);
    std::ifstream list("/proc/" + id + "/task/" + id + "/children");
    std::vector<pid_t> pids;
    for (pid_t pid = 0; list >> pid;)
      pids.push_back(pid);
    return pids;
  }

 private:
  bool ended() {
    int status = 0;
    if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return status_.has_value();
  }

  TemporaryFolder folder_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

}  // namespace dstrain::testing
