// Starting a program of this machine: fork, and what the child does until exec. The child tells
// over a pipe what went wrong, and says that nothing did by its exec, which closes the pipe. Nobody
// waits for that here: a child that is stopped, or whose executable lies on a file system that does
// not answer, may never come so far. child.h follows it from there; nothing else in the tree forks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "engine/base/file_descriptor.h"
#include "launcher/process/job.h"

namespace dstrain::launcher {

/// How a program is tied to this process.
struct ProgramTies {
  std::string input_file{};        ///< becomes its stdin; empty: a socket of ours does
  std::vector<int> other_files{};  ///< become its files 3, 4 and so on; it gets no others
  /// It leads a session of its own, without a terminal. Otherwise it leads a process group in the
  /// session of this process.
  bool leads_session = false;
  /// The signal that it gets when the thread that started it ends; 0: none. A program that has one
  /// is started by the main thread only.
  int death_signal = 0;
};

struct StartedProgram {
  pid_t pid = -1;              ///< also the id of the group that it leads
  FileDescriptor in;           ///< our end of its stdin, a Unix socket; empty where that is a file
  FileDescriptor out;          ///< its stdout
  FileDescriptor err;          ///< its stderr
  FileDescriptor exec_result;  ///< ends without a byte once the program runs
};

/// Uses the executable, arguments, environment, cores and working folder of `spec`. Throws
/// std::system_error where there can be no child, or no such input file.
StartedProgram start_program(const ProcessSpec& spec, const ProgramTies& ties);

/// The reason why the program does not run, "PATH: No such file or directory"; empty if it does;
/// nothing as long as that is not known. Does not wait.
std::optional<std::string> read_exec_result(int exec_result, const ProcessSpec& spec);

}  // namespace dstrain::launcher
