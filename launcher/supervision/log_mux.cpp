#include "launcher/supervision/log_mux.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/ioctl.h>

#include "launcher/supervision/screen_text.h"

namespace dstrain::launcher {
namespace {

constexpr size_t kScreenBacklogBytes = 1 << 20;
constexpr size_t kFileBacklogBytes = 64 << 20;
constexpr size_t kLastWordsBytes = 400;
constexpr std::chrono::milliseconds kScreenPatience{2000};
constexpr std::chrono::milliseconds kFilePatience{10'000};

constexpr std::string_view kEraseLine = "\r\x1b[K";
// A status wider than the terminal must not wrap, or it could not be erased.
constexpr std::string_view kWrapOff = "\x1b[?7l";
constexpr std::string_view kWrapOn = "\x1b[?7h";
constexpr std::array kColours = {36, 33, 32, 35, 34, 96, 93, 92, 95, 94};

FileDescriptor open_log(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file) {
    throw std::system_error(errno, std::generic_category(), "cannot write the log " + path);
  }
  return file;
}

/// https://no-color.org
bool refuses_colour() {
  const char* const refusal = std::getenv("NO_COLOR");
  return refusal != nullptr && *refusal != '\0';
}

/// Returns 0 where the width is not known. Asked each time, since windows change their size.
size_t columns_of(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// Removes blanks at the end, and shortens the text.
std::string_view as_last_words(std::string_view line) {
  const size_t last = line.find_last_not_of(" \t\r\n");
  return last == std::string_view::npos ? std::string_view{}
                                        : line.substr(0, std::min(last + 1, kLastWordsBytes));
}

}  // namespace

struct LogMux::Batch {
  std::string screen;
  std::string file;
  std::int64_t num_lines = 0;       // lines of the screen
  std::int64_t num_file_lines = 0;  // likewise
  bool has_status = false;
};

LogMux::Screen::Screen(int screen_fd)
    : writer(kScreenBacklogBytes),
      file(writer.add_borrowed(screen_fd)),
      fd(screen_fd),
      is_terminal(isatty(fd) == 1),
      is_coloured(is_terminal && !refuses_colour()) {}

LogMux::LogMux(const Job& job, const LogMuxOptions& options)
    : error_prefix_(options.error_prefix),
      has_files_(!options.folder.empty()),
      files_(kFileBacklogBytes),
      stderr_(options.stderr_fd),
      stdout_(options.stdout_fd) {
  const size_t digits = std::to_string(job.processes.size() - 1).size();
  const std::time_t now = std::time(nullptr);
  for (const ProcessSpec& process : job.processes) {
    Rank rank;
    const std::string host = without_controls(process.host);
    rank.prefix_plain = fmt::format("[{}:{:>{}}] ", host, process.rank, digits);
    rank.prefix_colour = fmt::format("\x1b[{}m[{}:{:>{}}]\x1b[0m ",
                                     kColours[static_cast<size_t>(process.rank) % kColours.size()],
                                     host, process.rank, digits);
    if (has_files_) {
      rank.path = fmt::format("{}/rank-{:05}.log", options.folder, process.rank);
      rank.file = files_.add(open_log(rank.path));
      const std::string restart =
          options.restart == 0 ? "" : fmt::format(", restart {}", options.restart);
      files_.write(rank.file,
                   fmt::format("==== started {:%Y-%m-%d %H:%M:%S} as rank {} of {}{}\n",
                               fmt::localtime(now), process.rank, job.processes.size(), restart));
    }
    ranks_.push_back(std::move(rank));
  }
}

LogMux::Screen& LogMux::screen_of(OutputStream stream) {
  // If both are terminals, they are the same one, and lines must not run into the status line.
  const bool one_terminal = stdout_.is_terminal && stderr_.is_terminal;
  return stream == OutputStream::kStderr || one_terminal ? stderr_ : stdout_;
}

void LogMux::output(int rank_number, OutputStream stream, std::string_view bytes) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  Batch batch;
  rank.splitters[static_cast<size_t>(stream)].feed(
      bytes, [&](LineKind kind, std::string_view line) {
        add_line(batch, rank_number, stream, kind, line);
      });
  deliver(batch, rank, stream);
}

void LogMux::end_of_output(int rank_number) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    Batch batch;
    rank.splitters[static_cast<size_t>(stream)].flush([&](LineKind, std::string_view line) {
      add_line(batch, rank_number, stream, LineKind::kLog, line);
    });
    deliver(batch, rank, stream);
  }
}

void LogMux::add_line(
    Batch& batch, int rank_number, OutputStream stream, LineKind kind, std::string_view line) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  Screen& screen = screen_of(stream);
  if (kind == LineKind::kStatus) {
    if (!screen.is_terminal) return;
    screen.status = line;
    batch.has_status = true;
    return;
  }
  if (kind == LineKind::kLog && line == screen.status) screen.status.clear();  // it was no status
  if (stream == OutputStream::kStdout || !is_said_already(rank_number, line)) {
    batch.screen += screen.is_coloured ? rank.prefix_colour : rank.prefix_plain;
    // A terminal must not obey control characters in what a rank passes on; files and pipes get
    // every byte.
    const std::string shown = screen.is_terminal ? without_controls(line) : std::string(line);
    batch.screen +=
        screen.is_coloured && stream == OutputStream::kStderr ? with_coloured_level(shown) : shown;
    batch.screen += '\n';
    batch.num_lines += 1;
  }
  if (has_files_) {
    batch.num_file_lines += 1;
    batch.file += line;
    if (kind == LineKind::kLog) batch.file += '\n';
  }
  const std::string_view words = as_last_words(line);
  if (stream == OutputStream::kStderr && !words.empty()) rank.last_words = words;
}

bool LogMux::is_said_already(int rank, std::string_view line) {
  if (error_prefix_.empty() || !line.starts_with(error_prefix_)) return false;
  Reason& reason = reasons_[std::string(as_last_words(line))];
  const bool is_first = reason.ranks.empty();
  reason.ranks.insert(rank);
  if (is_first) reason.shown_at = num_shown_;
  return !is_first;
}

void LogMux::deliver(Batch& batch, Rank& rank, OutputStream stream) {
  Screen& screen = screen_of(stream);
  if (batch.num_lines > 0) {
    show(screen, std::move(batch.screen), batch.num_lines);
  } else if (batch.has_status) {
    show_status(screen);
  }
  if (!has_files_ || batch.num_file_lines == 0) return;
  if (rank.dropped_lines > 0) {
    batch.file.insert(0, fmt::format("==== {} lines are missing here: the disk did not keep up\n",
                                     rank.dropped_lines));
  }
  if (files_.write(rank.file, std::move(batch.file))) {
    rank.dropped_lines = 0;
  } else {
    rank.dropped_lines += batch.num_file_lines;
  }
  if (const int error = files_.error(rank.file); error != 0 && !rank.failure_reported) {
    rank.failure_reported = true;
    announce(fmt::format("warning: {}: {}; this rank's output is no longer kept", rank.path,
                         std::strerror(error)));
  }
}

void LogMux::show(Screen& screen, std::string text, std::int64_t num_lines) {
  std::string whole;
  whole.reserve(text.size() + screen.status.size() + 64);
  if (screen.is_terminal) whole += kEraseLine;
  if (screen.dropped_lines > 0) {
    whole +=
        fmt::format("[launch] warning: {} lines are not shown here: nobody read them in time\n",
                    screen.dropped_lines);
  }
  whole += text;
  if (!screen.status.empty()) {
    // One column stays free, since a terminal begins to wrap in its last one.
    const size_t columns = columns_of(screen.fd);
    whole += kWrapOff;
    whole += columns > 1 ? fit_into_columns(screen.status, columns - 1) : screen.status;
    whole += kWrapOn;
  }
  num_shown_ += num_lines;
  if (screen.writer.write(screen.file, std::move(whole))) {
    screen.dropped_lines = 0;
  } else {
    screen.dropped_lines += num_lines;
  }
}

void LogMux::show_status(Screen& screen) {
  if (!screen.writer.idle()) return;  // it lags behind already: the next status will do
  show(screen, {}, 0);
}

void LogMux::announce(std::string_view message) {
  const std::string line = without_controls(message);
  show(stderr_,
       fmt::format("[launch] {:%H:%M:%S} {}\n", fmt::localtime(std::time(nullptr)),
                   stderr_.is_coloured ? with_coloured_level(line) : line),
       1);
}

const std::string& LogMux::last_words(int rank) const {
  return ranks_[static_cast<size_t>(rank)].last_words;
}

bool LogMux::has_just_said_why(int rank) const {
  constexpr std::int64_t kLinesInSight = 12;
  const auto found = reasons_.find(last_words(rank));
  return found != reasons_.end() && num_shown_ - found->second.shown_at <= kLinesInSight;
}

std::set<int> LogMux::in_the_same_words(int rank) const {
  const auto found = reasons_.find(last_words(rank));
  return found == reasons_.end() ? std::set<int>{} : found->second.ranks;
}

void LogMux::finish() {
  for (Screen* screen : {&stderr_, &stdout_}) {
    const bool had_status = !std::exchange(screen->status, {}).empty();
    screen->writer.finish(kScreenPatience);
    if (had_status || screen->dropped_lines > 0) show(*screen, {}, 0);
    screen->writer.finish(screen->dropped_lines > 0 ? std::chrono::milliseconds{0}
                                                    : kScreenPatience);
  }
  files_.finish(kFilePatience);
}

}  // namespace dstrain::launcher
