// RestartPolicy: decides whether a job that failed starts again. It counts what happened, and
// starts nothing.
//
//   failed, a newer checkpoint than before   restart at once
//   failed, no newer one                     restart after 1 s, 2 s, 4 s … 30 s; after so many such
//                                            restarts in a row give up: it will not get better
//   a code that says it would fail again     no restart (a wrong config, an unusable checkpoint)
//   success, or the user ended it            no restart
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "launcher/supervision/supervisor.h"

namespace dstrain::launcher {

struct RestartLimits {
  int max_restarts = 0;
  int max_without_progress = 3;  ///< restarts in a row that reached no newer checkpoint
  std::set<int> final_codes{};   ///< exit codes after which another attempt is of no use
  int no_progress_code = 1;      ///< the launcher's exit code when it gives up for that reason
};

struct RestartDecision {
  bool restart = false;
  int number = 0;                     ///< counts restarts from 1
  std::chrono::milliseconds delay{};  ///< before it
  /// If there is no restart: the launcher's exit code and, where there is more to say than the
  /// outcome said, the reason.
  int exit_code = 0;
  std::string why_not{};
};

class RestartPolicy {
 public:
  explicit RestartPolicy(RestartLimits limits) : limits_(std::move(limits)) {}

  /// Called after each attempt. `progressed`: there is a newer checkpoint than before it.
  RestartDecision decide(const JobOutcome& outcome, bool progressed);

 private:
  [[nodiscard]] std::string common_cause() const;

  const RestartLimits limits_;
  int restarts_ = 0;
  int without_progress_ = 0;         ///< restarts in a row
  std::vector<std::string> causes_;  ///< one for each attempt since the last progress
};

}  // namespace dstrain::launcher
