// LogMux: the output of many ranks on one screen, and each rank's own in a file.
//
//   screen   [w0:0] a line of rank 0         stdout to stdout, stderr to stderr
//            [w1:7] a line of rank 7
//            step 120 of 400 …               the newest status line, kept below the others, as much
//                                            of it as is as wide as the terminal
//            [w0:0] dstrain: error: …        once, however many ranks end with the same words
//   files    <folder>/rank-00000.log         all of the rank's lines, without status lines
//
// Nothing here waits: a screen that is not read, or a file that cannot be written, loses lines,
// which are counted and reported, but never slows the ranks down.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "launcher/process/job.h"
#include "launcher/process/process.h"
#include "launcher/supervision/background_writer.h"
#include "launcher/supervision/line_splitter.h"

namespace dstrain::launcher {

struct LogMuxOptions {
  std::string folder{};  ///< exists already; empty: no files
  int restart = 0;       ///< how many times the job was started before; the files say so
  /// The beginning of a process's last line if that says why it fails: "dstrain: error: ". Empty:
  /// no line is known to say that.
  std::string error_prefix{};
  int stdout_fd = STDOUT_FILENO;
  int stderr_fd = STDERR_FILENO;
};

class LogMux {
 public:
  /// Appends to files that exist. Throws std::system_error, naming the file, if one cannot be
  /// opened.
  LogMux(const Job& job, const LogMuxOptions& options);

  void output(int rank, OutputStream stream, std::string_view bytes);
  /// The rank has ended: a last line without end is shown too.
  void end_of_output(int rank);
  /// A line of the launcher itself, on stderr.
  void announce(std::string_view line);
  /// The rank's last line on stderr that was not blank; shortened.
  [[nodiscard]] const std::string& last_words(int rank) const;
  /// Whether these are words that say why it failed, and still in sight on the screen.
  [[nodiscard]] bool has_just_said_why(int rank) const;
  /// The ranks, this one included, that said in the same words why they fail; none if it has not
  /// said why.
  [[nodiscard]] std::set<int> in_the_same_words(int rank) const;
  /// Waits (a few seconds at most) until screen and files have everything.
  void finish();

 private:
  /// stdout or stderr of the launcher.
  struct Screen {
    explicit Screen(int fd);
    BackgroundWriter writer;
    size_t file;
    int fd;
    bool is_terminal;
    bool is_coloured;
    std::int64_t dropped_lines = 0;
    std::string status;  ///< drawn below the log lines; terminals only
  };
  struct Rank {
    std::string prefix_plain;
    std::string prefix_colour;
    LineSplitter splitters[2];  // by OutputStream
    std::string last_words;
    std::string path;  // the path of its file
    size_t file = 0;
    std::int64_t dropped_lines = 0;
    bool failure_reported = false;
  };
  /// The reasons why ranks fail, in their own words.
  struct Reason {
    std::set<int> ranks;
    std::int64_t shown_at = 0;  ///< in num_shown_
  };
  struct Batch;  // what one call of output() adds to screen and file

  Screen& screen_of(OutputStream stream);
  void add_line(
      Batch& batch, int rank_number, OutputStream stream, LineKind kind, std::string_view line);
  /// Takes a log line on stderr; returns whether another rank has said why it fails in the same
  /// words.
  bool is_said_already(int rank, std::string_view line);
  void deliver(Batch& batch, Rank& rank, OutputStream stream);
  void show(Screen& screen, std::string text, std::int64_t num_lines);
  void show_status(Screen& screen);

  std::vector<Rank> ranks_;
  std::string error_prefix_;
  std::map<std::string, Reason, std::less<>> reasons_;
  std::int64_t num_shown_ = 0;  ///< lines, on both screens
  bool has_files_;
  BackgroundWriter files_;
  Screen stderr_;
  Screen stdout_;
};

}  // namespace dstrain::launcher
