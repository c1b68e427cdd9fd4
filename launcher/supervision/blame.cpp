#include "launcher/supervision/blame.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "launcher/supervision/rank_observation.h"

namespace dstrain::launcher {
namespace {

constexpr int kSignalBase = 128;
constexpr int kInternalError = 1;

/// How likely it is that an end was the cause of the others, the most likely first.
enum Suspicion : int {
  kHostLost,
  kSignalled,
  kOwnError,
  kLeftEarly,
  kErrorWhenTold,
  kLostPeer,
  kInnocent
};

Suspicion suspicion(const RankEnd& end, const BlameRules& rules) {
  if (end.lost) return end.was_told ? kErrorWhenTold : kHostLost;
  const int signal = end.status.signal;
  if (signal != 0) {
    const bool by_us = signal == SIGTERM || signal == SIGKILL;
    if (is_orderly(end, rules) || (end.was_told && by_us)) return kInnocent;
    return end.was_told ? kErrorWhenTold : kSignalled;
  }
  if (is_orderly(end, rules)) return end.too_early ? kLeftEarly : kInnocent;
  if (end.status.code == rules.peer_lost_code) return kLostPeer;
  return end.was_told ? kErrorWhenTold : kOwnError;
}

bool is_success(const RankEnd& end) {
  return !end.lost && end.status.signal == 0 && end.status.code == 0;
}

/// Says what happened to it, as the rest of a sentence that begins with its name.
std::string what_happened(const RankEnd& end, const BlameRules& rules, bool brief) {
  if (end.lost) return "was lost: " + *end.lost;
  if (end.status.never_began) return "cannot be started: " + end.status.detail;
  if (end.status.signal != 0) {
    std::string text = "was killed by " + signal_name(end.status.signal);
    if (!brief) text += fmt::format(" (signal {})", end.status.signal);
    if (!end.status.detail.empty()) return text + ": " + end.status.detail;
    if (!brief && end.status.signal == SIGKILL)
      text += ", which is also how the kernel ends a process when memory runs out";
    if (!brief && end.status.signal == SIGBUS)
      text += ", as when a file that it reads is cut short, or its disk fails, under it";
    return text;
  }
  std::string text = fmt::format("ended with exit code {}", end.status.code);
  if (end.too_early) {
    return text + fmt::format(" while others were still running {} s later",
                              std::chrono::duration<double>(rules.early_exit_grace).count());
  }
  if (is_success(end)) return text + " before the others were done, which lost it";
  const std::string meaning = rules.describe_exit_code(end.status.code);
  if (!meaning.empty()) text += fmt::format(" ({})", meaning);
  if (!end.status.detail.empty()) text += ": " + end.status.detail;
  return text;
}

}  // namespace

std::string signal_name(int number) {
  const char* const name = sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

bool is_orderly(const RankEnd& end, const BlameRules& rules) {
  if (end.lost) return false;
  const auto& [code, signal, detail, never_began] = end.status;
  const bool by_user = signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
  if (signal != 0) return rules.interrupted_by != 0 && by_user;
  return code == 0 || code == kSignalBase + SIGINT || code == kSignalBase + SIGTERM ||
         code == kSignalBase + SIGHUP;
}

const RankEnd* find_cause(std::span<const RankEnd> ends, const BlameRules& rules) {
  const auto place = [&](const RankEnd& end) {
    return std::pair(suspicion(end, rules), end.order);
  };
  const auto first =
      std::min_element(ends.begin(), ends.end(),
                       [&](const RankEnd& a, const RankEnd& b) { return place(a) < place(b); });
  if (first == ends.end() || suspicion(*first, rules) == kInnocent) return nullptr;
  if (suspicion(*first, rules) != kLostPeer) return &*first;
  // A peer was lost: the first that left of its own accord. Its end may be observed after those of
  // the ranks that lost it: the kernel closes a process's connections before its parent sees it
  // end.
  const RankEnd* left = nullptr;
  for (const RankEnd& end : ends) {
    if (!is_success(end) || end.was_told) continue;
    if (left == nullptr || end.order < left->order) left = &end;
  }
  return left == nullptr ? &*first : left;
}

std::string describe(const RankEnd& end, const BlameRules& rules, const std::string& last_words) {
  std::string text = fmt::format("{}, {}", name_of(*end.spec, end.pid),
                                 what_happened(end, rules, /*brief=*/false));
  if (!last_words.empty()) text += fmt::format("; its last words: {}", last_words);
  return text;
}

std::string describe_briefly(const RankEnd& end, const BlameRules& rules) {
  return fmt::format("rank {} on {} {}", end.spec->rank, end.spec->host,
                     what_happened(end, rules, /*brief=*/true));
}

int exit_code_of(const RankEnd& cause, const BlameRules& rules) {
  if (cause.lost) return kInternalError;
  const auto& [code, signal, detail, never_began] = cause.status;
  if (signal != 0) return kSignalBase + signal;
  return code == 0 || code == rules.peer_lost_code ? kInternalError : code;
}

}  // namespace dstrain::launcher
