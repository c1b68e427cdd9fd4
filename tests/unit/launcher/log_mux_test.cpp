#include "launcher/supervision/log_mux.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include "launcher/supervision/screen_text.h"
#include "tests/harness/skip.h"

namespace dstrain::launcher {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
namespace fs = std::filesystem;

/// Two ranks whose output goes to files and to two "screens".
class Setup {
 public:
  Setup() {
    std::string pattern = (fs::temp_directory_path() / "log_mux_XXXXXX").string();
    folder = mkdtemp(pattern.data());
    out = FileDescriptor(open((folder / "out").c_str(), O_RDWR | O_CREAT, 0600));
    err = FileDescriptor(open((folder / "err").c_str(), O_RDWR | O_CREAT, 0600));
    job.processes = {{.host = "w0", .rank = 0}, {.host = "w1", .rank = 1}};
  }
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;
  ~Setup() { fs::remove_all(folder); }

  [[nodiscard]] LogMuxOptions options() const {
    return {.folder = folder, .stdout_fd = out.get(), .stderr_fd = err.get()};
  }
  [[nodiscard]] std::string read(const char* name) const {
    std::ifstream file(folder / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// The text of a rank's log, without the heading.
  [[nodiscard]] std::string log(const char* name) const {
    const std::string text = read(name);
    CHECK(text.starts_with("==== started "));
    return text.substr(text.find('\n') + 1);
  }

  fs::path folder;
  FileDescriptor out;
  FileDescriptor err;
  Job job;
};

std::vector<std::string> split(const std::vector<std::string>& chunks) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const auto emit = [&](LineKind kind, std::string_view line) {
    constexpr std::array kNames = {"log ", "part ", "status "};
    lines.push_back(kNames[static_cast<size_t>(kind)] + std::string(line));
  };
  for (const std::string& chunk : chunks)
    splitter.feed(chunk, emit);
  splitter.flush(emit);
  return lines;
}

TEST_CASE("bytes become the same lines however they are cut", "[launcher][log]") {
  using Lines = std::vector<std::string>;
  CHECK(split({"a\nb\n"}) == Lines{"log a", "log b"});
  CHECK(split({"a", "b", "\n\nc"}) == Lines{"log ab", "log ", "part c"});
  CHECK(split({"10%\r20%\rdone\n"}) == Lines{"status 10%", "status 20%", "log done"});
  CHECK(split({"10%\r", "20%\r", "done\n"}) == Lines{"status 10%", "status 20%", "log done"});
  CHECK(split({"dos\r\nlines\r\n"}) == Lines{"log dos", "log lines"});
  CHECK(split({"dos\r", "\n", "x\n"}) == Lines{"status dos", "log dos", "log x"});
  CHECK(split({"\r\r\n"}) == Lines{"status ", "log "});
  const std::string flood(LineSplitter::kMaxBytes + 1, 'x');
  CHECK(split({flood, "y\n"}) == Lines{"part " + flood, "log y"});
}

TEST_CASE("lines get their rank in front on screen, and stay as they are in the files",
          "[launcher][log]") {
  Setup setup;
  LogMux mux(setup.job, setup.options());
  mux.output(0, OutputStream::kStderr, "one\ntw");
  mux.output(1, OutputStream::kStderr, "uno\n");
  mux.output(0, OutputStream::kStderr, "o\n");
  mux.output(1, OutputStream::kStdout, "result 7\n");
  mux.output(1, OutputStream::kStderr, "cut off");
  mux.end_of_output(1);
  mux.announce("bye");
  mux.finish();
  CHECK_THAT(setup.read("err"),
             StartsWith("[w0:0] one\n[w1:1] uno\n[w0:0] two\n[w1:1] cut off\n[launch] ") &&
                 EndsWith(" bye\n"));
  CHECK(setup.read("out") == "[w1:1] result 7\n");
  CHECK(setup.log("rank-00000.log") == "one\ntwo\n");
  CHECK(setup.log("rank-00001.log") == "uno\nresult 7\ncut off\n");
  CHECK(mux.last_words(0) == "two");
  CHECK(mux.last_words(1) == "cut off");
}

TEST_CASE("status lines are neither in files nor on a screen that is no terminal",
          "[launcher][log]") {
  Setup setup;
  LogMux mux(setup.job, setup.options());
  mux.output(0, OutputStream::kStderr, "10%\r");
  mux.output(0, OutputStream::kStderr, "20%\rdone\n");
  mux.finish();
  CHECK(setup.read("err") == "[w0:0] done\n");
  CHECK(setup.log("rank-00000.log") == "done\n");
}

TEST_CASE("why ranks fail is shown once where they say it in the same words", "[launcher][log]") {
  Setup setup;
  LogMuxOptions options = setup.options();
  options.error_prefix = "app: error: ";
  LogMux mux(setup.job, options);
  mux.output(1, OutputStream::kStderr, "same\napp: error: no file\n");
  mux.output(0, OutputStream::kStderr, "same\napp: error: no file\n");
  CHECK(mux.has_just_said_why(0));
  CHECK(mux.in_the_same_words(0) == std::set<int>{0, 1});
  for (int i = 0; i < 20; ++i)
    mux.announce("something else");
  CHECK_FALSE(mux.has_just_said_why(1));
  mux.output(0, OutputStream::kStderr, "app: error: another one\n");
  CHECK(mux.has_just_said_why(0));
  CHECK(mux.in_the_same_words(0) == std::set<int>{0});
  CHECK(mux.in_the_same_words(1) == std::set<int>{0, 1});
  mux.finish();
  CHECK_THAT(setup.read("err"),
             StartsWith("[w1:1] same\n[w1:1] app: error: no file\n[w0:0] same\n[launch] ") &&
                 EndsWith("[w0:0] app: error: another one\n"));
  CHECK(setup.log("rank-00000.log") == "same\napp: error: no file\napp: error: another one\n");
}

TEST_CASE("a status line loses parts from the left until it fits", "[launcher][log]") {
  const std::string status = "███░  12/50  loss 3.5  1:00 left";
  CHECK(fit_into_columns(status, 32) == status);
  CHECK(fit_into_columns(status, 31) == "12/50  loss 3.5  1:00 left");
  CHECK(fit_into_columns(status, 25) == "loss 3.5  1:00 left");
  CHECK(fit_into_columns(status, 9) == "1:00 left");
  CHECK(fit_into_columns(status, 4) == "1:00");
  CHECK(fit_into_columns("███", 2) == "██");
  CHECK(fit_into_columns("███", 0).empty());
}

TEST_CASE("the level that a line begins with is coloured, and no other word", "[launcher][log]") {
  CHECK(with_coloured_level("12:34:56 warning: tight") == "12:34:56 \x1b[33mwarning: \x1b[0mtight");
  CHECK(with_coloured_level("error: rank 1") == "\x1b[31merror: \x1b[0mrank 1");
  CHECK(with_coloured_level("app: error: no") == "app: \x1b[31merror: \x1b[0mno");
  for (const char* plain : {"12:34:56 an error: no", "the app: error: no", "12:34:5x error: no",
                            "errors", "", "a: b", "12:34:56 "})
    CHECK(with_coloured_level(plain) == plain);
}

TEST_CASE("ranks are listed in ranges", "[launcher][log]") {
  CHECK(ranges_text(std::set<int>{}).empty());
  CHECK(ranges_text(std::set<int>{3}) == "3");
  CHECK(ranges_text(std::set<int>{0, 1, 2, 5, 7, 8}) == "0-2, 5, 7-8");
}

TEST_CASE("a second run keeps the log of the first", "[launcher][log]") {
  Setup setup;
  for (const char* line : {"first\n", "second\n"}) {
    LogMux mux(setup.job, setup.options());
    mux.output(0, OutputStream::kStderr, line);
    mux.finish();
  }
  CHECK_THAT(setup.log("rank-00000.log"), Contains("first\n==== started") && Contains("second\n"));
}

TEST_CASE("on a terminal the status line stays below the log lines and is erased at the end",
          "[launcher][log]") {
  int screen = -1;
  int terminal = -1;
  if (openpty(&screen, &terminal, nullptr, nullptr, nullptr) != 0) {
    testing::skip(std::string("there is no pseudo-terminal here: ") + std::strerror(errno));
    return;
  }
  const FileDescriptor screen_end(screen);
  const FileDescriptor terminal_end(terminal);
  Setup setup;
  setenv("NO_COLOR", "1", 1);
  LogMux mux(setup.job, {.folder = {}, .stdout_fd = terminal, .stderr_fd = terminal});
  mux.output(0, OutputStream::kStderr, "10%\r");
  mux.finish();  // so that the next status is not skipped for being behind
  mux.output(0, OutputStream::kStderr, "20%\r");
  mux.output(1, OutputStream::kStdout, "result\n");
  mux.finish();
  unsetenv("NO_COLOR");

  // The kernel hands a terminal's bytes over in pieces, some a moment later.
  std::string shown;
  pollfd ready{.fd = screen, .events = POLLIN, .revents = 0};
  while (poll(&ready, 1, /*milliseconds=*/300) > 0) {
    std::array<char, 4096> buffer{};
    const ssize_t size = read(screen, buffer.data(), buffer.size());
    if (size <= 0) break;
    shown.append(buffer.data(), static_cast<size_t>(size));
  }
  const std::string erase = "\r\x1b[K";
  const auto status = [](const std::string& text) { return "\x1b[?7l" + text + "\x1b[?7h"; };
  CHECK(shown == erase + status("10%") + erase + erase + status("20%") + erase +
                     "[w1:1] result\r\n" + status("20%") + erase);
}

TEST_CASE("a screen that nobody reads holds nothing up; what it misses is counted",
          "[launcher][log]") {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  const FileDescriptor read_end(ends[0]);
  const FileDescriptor write_end(ends[1]);
  Setup setup;
  LogMuxOptions options = setup.options();
  options.stderr_fd = write_end.get();
  LogMux mux(setup.job, options);

  const std::string line = std::string(99, 'x') + '\n';
  constexpr int kLines = 50'000;  // 5 MB, more than the pipe and the backlog hold
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kLines; ++i)
    mux.output(0, OutputStream::kStderr, line);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds{20});

  // Somebody begins to read: first what was kept, then how much was not.
  std::string shown;
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  const auto read_all = [&] {
    std::array<char, 65536> buffer{};
    const auto in_a_moment = [] {
      return std::chrono::steady_clock::now() + std::chrono::milliseconds{200};
    };
    auto deadline = in_a_moment();  // of silence, however slow the writer is on a busy machine
    while (std::chrono::steady_clock::now() < deadline) {
      const ssize_t size = read(read_end.get(), buffer.data(), buffer.size());
      if (size > 0) {
        shown.append(buffer.data(), static_cast<size_t>(size));
        deadline = in_a_moment();
      } else {
        usleep(1000);
      }
    }
  };
  read_all();
  mux.output(0, OutputStream::kStderr, "after\n");
  read_all();
  CHECK_THAT(shown,
             EndsWith(" lines are not shown here: nobody read them in time\n[w0:0] after\n"));
  // On a busy machine the writer comes late, and there are gaps before the long one as well.
  int kept = 0;
  int missed = 0;
  std::istringstream lines(shown);
  for (std::string text; std::getline(lines, text);) {
    const std::string warning = "[launch] warning: ";
    if (text.starts_with(warning)) {
      missed += std::stoi(text.substr(warning.size()));
    } else {
      kept += text.ends_with('x') ? 1 : 0;
    }
  }
  CHECK(missed > 0);
  CHECK(kept + missed == kLines);
  mux.finish();
  CHECK(setup.log("rank-00000.log").size() == kLines * line.size() + 6);
}

TEST_CASE("a full disk is reported once and holds nothing up", "[launcher][log]") {
  Setup setup;
  fs::create_symlink("/dev/full", setup.folder / "rank-00000.log");
  LogMux mux(setup.job, setup.options());
  for (int i = 0; i < 3; ++i) {
    mux.output(0, OutputStream::kStderr, "line\n");
    usleep(20'000);  // the writer's thread meets the error
  }
  mux.finish();
  const std::string shown = setup.read("err");
  CHECK_THAT(shown, Contains("rank-00000.log: No space left on device"));
  CHECK(shown.find("No space") == shown.rfind("No space"));
  CHECK(std::count(shown.begin(), shown.end(), '\n') == 4);
}

TEST_CASE("a log file that cannot be opened is an error that names it", "[launcher][log]") {
  Setup setup;
  LogMuxOptions options = setup.options();
  options.folder = (setup.folder / "absent").string();
  CHECK_THROWS_WITH(LogMux(setup.job, options), Contains("absent/rank-00000.log"));
}

}  // namespace
}  // namespace dstrain::launcher
