// Agreement: a step of work that succeeds on all ranks or fails on all of them, with the words of
// the first rank that failed. Without it one rank's full disk would leave the others waiting.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace dstrain {

/// Collective. Runs `work`, which must not communicate, on this rank, and returns once it has
/// succeeded on every rank. If it threw anywhere, throws on all ranks: FolderInUse or FolderGone as
/// the first failing rank did, InternalError if it met a broken invariant or had no memory, else
/// StorageError.
void all_or_none(Communicator& world, const std::function<void()>& work);

/// How one rank's work ended.
struct Outcome {
  std::int32_t code = 0;  ///< 0: well; other numbers are the caller's
  std::string text;       ///< of a failure
};
/// Collective. Returns the outcome of the lowest rank that did not end well, with the rank in front
/// of its text where there are several ranks; an outcome of code 0 if all did.
Outcome first_failure(Outcome mine, Communicator& world);

/// Collective. Everybody gets rank `root`'s text.
std::string broadcast_text(const std::string& text, int root, Communicator& world);

/// Collective. Rank 0 gets everybody's text, by rank; the others get nothing.
std::vector<std::string> gather_texts(const std::string& text, Communicator& world);

}  // namespace dstrain
