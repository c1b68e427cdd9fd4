// How a kernel reports a number that it refuses (fault_box.h). Plain structs, for host and device.
#pragma once

namespace dstrain {

/// The numbers that were checked.
enum class FaultSource : int { kNone, kTokens, kTokensOfGradient, kTargets };

struct Fault {
  FaultSource source;
  int id;          ///< the number
  int vocab_size;  ///< it should be in [0, vocab_size)
};

struct FaultPointers {
  int* raised;  ///< on the device
  Fault* seen;  ///< on the host, mapped
};

}  // namespace dstrain
