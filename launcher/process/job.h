// Job: the processes that make up one run, as the launcher sees them: programs with arguments and
// an environment, somewhere. What they compute is none of its business.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dstrain::launcher {

/// Tells a program the number of its file that is the socket of ProcessSpec::takes_listener.
constexpr const char* kListenerVariable = "DSTRAIN_LISTENER_FD";

struct ProcessSpec {
  std::string host{};        ///< as in the hostfile
  int rank = 0;              ///< unique in the job
  int local_rank = 0;        ///< unique on its host
  std::string executable{};  ///< path; not searched in PATH
  std::vector<std::string> argv{};
  std::vector<std::pair<std::string, std::string>> environment{};  ///< set over the launcher's own
  std::vector<std::string> unset{};  ///< variables of the launcher's that it does not get
  std::vector<int> cores{};          ///< it runs on these only; empty: wherever the launcher may
  std::string working_folder{};      ///< empty: the launcher's own
  /// It inherits the socket that listens for it (LocalSpawner::hold_listener). A port that was only
  /// looked for, and freed, could be taken by the time the program wants it.
  bool takes_listener = false;
};

struct Job {
  std::vector<ProcessSpec> processes;  ///< element r has rank r
};

}  // namespace dstrain::launcher
