// How far the clocks of the ranks' hosts are apart, so that what happened on several hosts can be
// put on one axis.
//
// Rank 0 and another host exchange a message, again and again. Each has the other's message only
// after the other began:
//
//   rank 0   begin0 ─────────────┬──▶ end0            begin0 ≤ end  - offset
//   other        begin ──────────┴────▶ end           begin  - offset ≤ end0
//
// Every exchange bounds the offset from both sides; the middle of what all of them leave is taken.
// It errs by half the difference of the fastest ways there and back, which is less than either: no
// later message that takes as long arrives before it was sent.
#pragma once

#include <cstdint>

#include "engine/comm/communicator.h"

namespace dstrain {

/// This rank's steady clock beside rank 0's.
struct ClockReading {
  std::int64_t at_ns = 0;           ///< when it was read, by this rank's
  std::int64_t offset_ns = 0;       ///< this rank's less rank 0's
  std::int64_t uncertainty_ns = 0;  ///< the offset is off by no more than that
  std::int64_t zero_ns = 0;         ///< when rank 0 began to compare, by its steady clock
  std::int64_t zero_utc_ns = 0;     ///< by its wall clock, since 1970
};

/// Tells which processes read the same steady clock: those of one running kernel and one time
/// namespace. 0: not known.
std::uint64_t steady_clock_identity();

/// Collective. Takes some 50 messages for each further clock, one clock after the other. `clock` is
/// that of this rank.
ClockReading compare_clocks(Communicator& world, std::uint64_t clock = steady_clock_identity());

}  // namespace dstrain
