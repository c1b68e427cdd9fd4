// dstrain as it looks to a user at a terminal of 60 columns: a live line that never wraps, colours,
// Ctrl-C, and a window that is closed.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>

#include "tests/failure/tiny_run.h"

namespace dstrain::testing {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;

constexpr std::size_t kColumns = 60;

/// A program in a terminal of its own, which it and its terminal's signals belong to.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> argv) {
    winsize size{.ws_row = 20, .ws_col = kColumns, .ws_xpixel = 0, .ws_ypixel = 0};
    std::vector<char*> pointers;
    for (std::string& argument : argv)
      pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_ = forkpty(&screen_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (!status_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close_window();
  }

  void type(const std::string& keys) const {
    REQUIRE(write(screen_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
  }
  void close_window() {
    if (screen_ >= 0) close(screen_);
    screen_ = -1;
  }
  /// All that was shown so far.
  const std::string& shown() {
    pollfd ready{.fd = screen_, .events = POLLIN, .revents = 0};
    while (screen_ >= 0 && poll(&ready, 1, /*milliseconds=*/10) > 0) {
      std::array<char, 4096> buffer{};
      const ssize_t size = read(screen_, buffer.data(), buffer.size());
      if (size <= 0) break;
      shown_.append(buffer.data(), static_cast<std::size_t>(size));
    }
    return shown_;
  }
  std::optional<int> wait(std::chrono::milliseconds patience) {
    becomes_true(
        [&] {
          shown();
          int status = 0;
          if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) {
            status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
          }
          return status_.has_value();
        },
        patience);
    shown();
    return status_;
  }

 private:
  int screen_ = -1;
  pid_t pid_ = 0;
  std::string shown_;
  std::optional<int> status_;
};

/// The final content of each line of a screen, and the width of the widest line that is not a log
/// line: enough of a terminal for '\r', '\n', "erase to the end" and colours.
struct Picture {
  std::vector<std::string> lines{""};
  std::size_t widest_status = 0;
};

Picture picture_of(const std::string& bytes) {
  Picture picture;
  std::vector<std::string> line;  // characters
  std::size_t column = 0;
  const auto end_status = [&] {
    picture.widest_status = std::max(picture.widest_status, column);
    column = 0;
  };
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes.substr(i, 2) == "\x1b[") {
      i = bytes.find_first_not_of("0123456789;?", i + 2);
      if (i == std::string::npos) break;
      if (bytes[i] == 'K') line.resize(std::min(line.size(), column));
    } else if (bytes[i] == '\n') {
      picture.lines.emplace_back();
      line.clear();
    } else if (bytes[i] == '\r') {
      const bool ends_line = i + 1 < bytes.size() && bytes[i + 1] == '\n';
      ends_line ? static_cast<void>(column = 0) : end_status();
    } else if ((static_cast<unsigned char>(bytes[i]) & 0xC0U) == 0x80U) {
      if (column > 0) line[column - 1] += bytes[i];
    } else {
      if (column >= line.size()) line.resize(column + 1);
      line[column++] = bytes[i];
    }
    picture.lines.back().clear();
    for (const std::string& character : line)
      picture.lines.back() += character;
  }
  return picture;
}

TEST_CASE("in a narrow terminal the live line fits, and Ctrl-C leaves an empty one",
          "[failure][terminal]") {
  const TinyRun run;
  const bool launched = GENERATE(true, false);
  std::vector<std::string> argv = run.launch({"--set", "steps_per_print=1000000"});
  if (!launched) {
    argv = {dstrain_binary(), "train", run.path("config.json"), "--set", "steps_per_print=1000000"};
  }
  Terminal terminal(argv);
  REQUIRE(run.reaches_step(20));
  REQUIRE(becomes_true([&] { return terminal.shown().find(" left") != std::string::npos; },
                       seconds{20}));
  terminal.type("\x03");
  REQUIRE(terminal.wait(seconds{30}) == 130);
  CAPTURE(terminal.shown());
  const Picture picture = picture_of(terminal.shown());
  CHECK(picture.widest_status > 20);
  CHECK(picture.widest_status < kColumns);
  CHECK(picture.lines.back().empty());
  for (const std::string& line : picture.lines)
    CHECK_THAT(line, !Contains(" left") || Contains("step 1/"));
}

TEST_CASE("a window that is closed ends the run like SIGTERM, with a checkpoint and code 129",
          "[failure][terminal]") {
  const TinyRun run;
  const bool launched = GENERATE(true, false);
  std::vector<std::string> argv = run.launch();
  if (!launched) argv = {dstrain_binary(), "train", run.path("config.json")};
  Terminal terminal(argv);
  REQUIRE(run.reaches_step(5));
  terminal.close_window();
  CHECK(terminal.wait(seconds{30}) == 129);
  CHECK_FALSE(run.read("run/checkpoints/latest").empty());
}

TEST_CASE("warnings are yellow and errors red on a terminal, and nowhere else",
          "[failure][terminal]") {
  const TinyRun run;
  const std::string yellow = "\x1b[33mwarning: \x1b[";
  const std::string red = "dstrain: \x1b[31merror: \x1b[0m";
  const std::vector<std::string> no_data =
      run.launch({"--set", "data.train=" + run.path("missing")});
  const std::vector<std::string> checked =
      run.launch({"--set", "data.train=" + run.path("missing"), "--check"});
  Terminal refused(no_data);
  CHECK(refused.wait(seconds{30}) == 2);
  CHECK_THAT(refused.shown(), Contains(red));
  Terminal warned(checked);
  CHECK(warned.wait(seconds{30}) == 0);
  CHECK_THAT(warned.shown(), Contains(yellow) && Contains("a start would be refused: "));
  Program piped(no_data);
  CHECK(piped.wait(seconds{30}) == 2);
  CHECK_THAT(piped.err(), !Contains("\x1b"));
}

TEST_CASE("a run is watched on a page that leaves the screen as it was, by whatever end",
          "[failure][terminal]") {
  const TinyRun run;
  Program launch(run.launch());
  REQUIRE(run.reaches_step(20));
  const std::string takes = "\x1b[?1049h";
  const std::string gives_back = "\x1b[?1049l";
  const std::vector<std::string> watch = {dstrain_binary(), "watch", run.path("run")};
  const auto [keys, code] = GENERATE(table<std::string, int>({{"q", 0}, {"\x03", 130}}));
  Terminal terminal(watch);
  const auto shows = [&](const std::string& text) {
    return becomes_true([&] { return terminal.shown().find(text) != std::string::npos; },
                        seconds{20});
  };
  REQUIRE(shows("the run goes on"));
  CHECK_THAT(terminal.shown(), Contains(takes) && Contains("running") && Contains("1,000,000") &&
                                   !Contains(gives_back));
  terminal.type(keys);
  CHECK(terminal.wait(seconds{10}) == code);
  CHECK_THAT(terminal.shown(), Contains(gives_back));

  // Piped, it is plain lines, and ends with the run.
  Program piped(watch);
  REQUIRE(
      becomes_true([&] { return piped.out().find("tokens/s") != std::string::npos; }, seconds{20}));
  launch.signal(SIGTERM);
  CHECK(launch.wait(seconds{30}) == 143);
  CHECK(piped.wait(seconds{20}) == 0);
  CHECK_THAT(piped.out(), !Contains("\x1b") && Contains("stopped by signal 15"));
}

TEST_CASE("a missing file is reported once, and no rank is started for it", "[failure]") {
  const TinyRun run;
  const auto [key, what] = GENERATE(table<std::string, std::string>(
      {{"data.train", "no token file"}, {"checkpoint.resume", "is not a checkpoint"}}));
  Program launch(run.launch({"--set", key + "=" + run.path("missing")}));
  REQUIRE(launch.wait(seconds{30}));
  const std::string said = launch.err();
  CAPTURE(said);
  CHECK(launch.wait(seconds{0}) == (key == "data.train" ? 2 : 5));
  CHECK(said.find(what) != std::string::npos);
  CHECK(said.find(what) == said.rfind(what));
  CHECK_THAT(said, !Contains("rank 0") && !Contains("[localhost:"));
}

}  // namespace
}  // namespace dstrain::testing
