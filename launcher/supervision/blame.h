// Blame: decides which of the ends of a job's processes was the cause of the others.
//
// It is the failure that was observed first, with these exceptions: one that only reports the loss
// of a peer never comes before one that does not; a death by signal comes before an exit code of
// the same moment; and a process that was lost with its host comes before everything. Where nobody
// says more than that a peer was lost, the cause is the process that left first with success.
// What a process did after it was told to stop is hardly a cause.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "launcher/process/job.h"
#include "launcher/process/process.h"

namespace dstrain::launcher {

/// The end of one process.
struct RankEnd {
  const ProcessSpec* spec = nullptr;
  long pid = 0;
  ExitStatus status{};
  std::optional<std::string> lost{};  ///< why nothing can be learned of it any more, if so
  int order = 0;                      ///< its place among all ends, from 1
  bool was_told = false;              ///< it was told to stop, since another one had failed
  /// It ended with success, but so early that the others were told to stop for it.
  bool too_early = false;
};

struct BlameRules {
  int peer_lost_code = -1;  ///< exit code by which a process says only that a peer was lost
  int interrupted_by = 0;   ///< the signal by which the user ended the job, or 0
  std::chrono::milliseconds early_exit_grace{};
  /// The meaning of an exit code, or empty: "a config is wrong".
  std::function<std::string(int)> describe_exit_code = [](int) { return std::string(); };
};

/// Whether a process ended with success, or as one does that was asked to end.
bool is_orderly(const RankEnd& end, const BlameRules& rules);

/// nullptr if all is in order.
const RankEnd* find_cause(std::span<const RankEnd> ends, const BlameRules& rules);

/// "rank 3 (local rank 1) on w1, pid 4711, was killed by SIGKILL (signal 9); its last words: …".
std::string describe(const RankEnd& end, const BlameRules& rules, const std::string& last_words);
/// "rank 3 on w1 was killed by SIGKILL".
std::string describe_briefly(const RankEnd& end, const BlameRules& rules);

/// The launcher's exit code for this cause.
int exit_code_of(const RankEnd& cause, const BlameRules& rules);

/// "SIGKILL".
std::string signal_name(int number);

}  // namespace dstrain::launcher
