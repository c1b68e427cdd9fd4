// The way from a ProcessSpec to a running program of this machine: fork, and what the child does
// until exec. The child tells over a pipe what went wrong, and says that nothing did by its exec,
// which closes the pipe. Nobody waits for that here: a child that is stopped, or whose executable
// lies on a file system that does not answer, may never come so far.
#pragma once

#include <optional>
#include <string>

#include <sys/types.h>

#include "engine/base/file_descriptor.h"
#include "launcher/process/job.h"
#include "launcher/supervision/status_page.h"

namespace dstrain::launcher {

constexpr const char* kListenerVariable = "DSTRAIN_LISTENER_FD";

/// A child on its way to exec, and the launcher's ends of what leads to it.
struct StartedChild {
  pid_t pid = -1;  ///< of the process, and of the group that it leads
  FileDescriptor lifeline;
  FileDescriptor out;
  FileDescriptor err;
  StatusPage page;
  FileDescriptor exec_result;  ///< ends without a byte once the program runs
};

/// Throws std::system_error where there can be no child. Call from the main thread only: the kernel
/// ends the program when the thread that started it is gone (PR_SET_PDEATHSIG).
/// `listener`, where it is a socket, becomes a file of the program, whose number is in
/// kListenerVariable.
StartedChild start_child(const ProcessSpec& spec, const FileDescriptor& listener = {});

/// The reason why the program does not run, "PATH: No such file or directory"; empty if it does;
/// nothing as long as that is not known. Does not wait.
std::optional<std::string> read_exec_result(int exec_result, const ProcessSpec& spec);

}  // namespace dstrain::launcher
