// Judges whether the run that owner.json names still lives, as far as one look can tell, and says
// how that was found out. No clock is compared: those of two hosts disagree.
#pragma once

#include <cstdint>
#include <string>

#include "engine/checkpoint/owner/owner_record.h"

namespace dstrain {

enum class OwnerState : std::uint8_t {
  kAlive,
  kEnding,  ///< its process has ended, and the kernel is about to close its files
  kDead,
  kUnknown  ///< another machine's, without a lock that is seen here: its heartbeat must be watched
};

struct OwnerJudgement {
  OwnerState state = OwnerState::kUnknown;
  std::string because;  ///< "it holds the kernel's lock on owner.json"
};

/// `here` is the process that looks.
OwnerJudgement judge_owner(const OwnerFile& owner, const ProcessIdentity& here);

}  // namespace dstrain
