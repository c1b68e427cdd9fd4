#include "launcher/log_mux.h"

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
  if (!file) throw std::system_error(errno, std::generic_category(), path);
  return file;
}

std::string_view without_blanks_at_end(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n");
  return last == std::string_view::npos ? std::string_view{} : text.substr(0, last + 1);
}

}  // namespace

struct LogMux::Batch {
  std::string screen;
  std::string file;
  std::int64_t num_lines = 0;
  bool has_status = false;
};

LogMux::Screen::Screen(int fd)
    : writer(kScreenBacklogBytes), file(writer.add_borrowed(fd)), is_terminal(isatty(fd) == 1) {}

LogMux::LogMux(const Job& job, const LogMuxOptions& options)
    : has_files_(!options.folder.empty()),
      files_(kFileBacklogBytes),
      stderr_(options.stderr_fd),
      stdout_(options.stdout_fd) {
  const size_t digits = std::to_string(job.processes.size() - 1).size();
  const std::time_t now = std::time(nullptr);
  for (const ProcessSpec& process : job.processes) {
    Rank rank;
    rank.prefix_plain = fmt::format("[{}:{:>{}}] ", process.host, process.rank, digits);
    rank.prefix_colour = fmt::format("\x1b[{}m[{}:{:>{}}]\x1b[0m ",
                                     kColours[static_cast<size_t>(process.rank) % kColours.size()],
                                     process.host, process.rank, digits);
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
  // Where both are terminals they are the same one, and lines must not run into the status line.
  const bool one_terminal = stdout_.is_terminal && stderr_.is_terminal;
  return stream == OutputStream::kStderr || one_terminal ? stderr_ : stdout_;
}

void LogMux::output(int rank_number, OutputStream stream, std::string_view bytes) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  Batch batch;
  rank.splitters[static_cast<size_t>(stream)].feed(
      bytes,
      [&](LineKind kind, std::string_view line) { add_line(batch, rank, stream, kind, line); });
  deliver(batch, rank, stream);
}

void LogMux::end_of_output(int rank_number) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  for (const OutputStream stream : {OutputStream::kStdout, OutputStream::kStderr}) {
    Batch batch;
    rank.splitters[static_cast<size_t>(stream)].flush([&](LineKind, std::string_view line) {
      add_line(batch, rank, stream, LineKind::kLog, line);
    });
    deliver(batch, rank, stream);
  }
}

void LogMux::add_line(
    Batch& batch, Rank& rank, OutputStream stream, LineKind kind, std::string_view line) {
  Screen& screen = screen_of(stream);
  if (kind == LineKind::kStatus) {
    if (!screen.is_terminal) return;
    screen.status = line;
    batch.has_status = true;
    return;
  }
  if (kind == LineKind::kLog && line == screen.status) screen.status.clear();  // it was no status
  batch.screen += screen.is_terminal && std::getenv("NO_COLOR") == nullptr ? rank.prefix_colour
                                                                           : rank.prefix_plain;
  batch.screen += line;
  batch.screen += '\n';
  batch.num_lines += 1;
  if (has_files_) {
    batch.file += line;
    if (kind == LineKind::kLog) batch.file += '\n';
  }
  const std::string_view words = without_blanks_at_end(line);
  if (stream == OutputStream::kStderr && !words.empty()) {
    rank.last_words = words.substr(0, kLastWordsBytes);
  }
}

void LogMux::deliver(Batch& batch, Rank& rank, OutputStream stream) {
  Screen& screen = screen_of(stream);
  if (batch.num_lines > 0) {
    show(screen, std::move(batch.screen), batch.num_lines);
  } else if (batch.has_status) {
    show_status(screen);
  }
  if (!has_files_ || batch.num_lines == 0) return;
  if (rank.dropped_lines > 0) {
    batch.file.insert(0, fmt::format("==== {} lines are missing here: the disk did not keep up\n",
                                     rank.dropped_lines));
  }
  if (files_.write(rank.file, std::move(batch.file))) {
    rank.dropped_lines = 0;
  } else {
    rank.dropped_lines += batch.num_lines;
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
    whole += kWrapOff;
    whole += screen.status;
    whole += kWrapOn;
  }
  if (screen.writer.write(screen.file, std::move(whole))) {
    screen.dropped_lines = 0;
  } else {
    screen.dropped_lines += num_lines;
  }
}

void LogMux::show_status(Screen& screen) {
  if (!screen.writer.idle()) return;  // behind already: the next status will do
  show(screen, {}, 0);
}

void LogMux::announce(std::string_view line) {
  show(stderr_, fmt::format("[launch] {:%H:%M:%S} {}\n", fmt::localtime(std::time(nullptr)), line),
       1);
}

const std::string& LogMux::last_words(int rank) const {
  return ranks_[static_cast<size_t>(rank)].last_words;
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
