// BitSums: a checksum of a tensor's bits, exact and the same whatever the order in which elements
// are added, so that any number of threads on any device gets it. Both sums are modulo 2⁶⁴, of the
// elements' bits as unsigned numbers x[0], x[1], …: Fletcher's pair (Fletcher 1982) with a modulus
// so wide that nothing is reduced.
//
// A changed bit changes `plain`; so do two, but for one set and one cleared of the same weight,
// which change `weighted`, since they are not at the same place. Sums of parts can be combined.
#pragma once

#include <cstdint>

#include "kernels/math/host_device.h"

namespace dstrain {

struct BitSums {
  std::uint64_t plain = 0;     ///< Σ x[i]
  std::uint64_t weighted = 0;  ///< Σ i · x[i]
  friend bool operator==(const BitSums&, const BitSums&) = default;

  /// Takes in a part, whose own first element is element `first` of the whole.
  DSTRAIN_HD void add(const BitSums& part, std::int64_t first) {
    plain += part.plain;
    weighted += part.weighted + static_cast<std::uint64_t>(first) * part.plain;
  }
};

}  // namespace dstrain
