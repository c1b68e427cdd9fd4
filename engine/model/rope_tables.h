// The tables of rotary positions (Su et al. 2021): the angle by which each pair of a head is
// rotated at each position, as cosine and sine.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/config/arch/architecture.h"

namespace dstrain {

/// Radians from one position to the next for each of the R/2 pairs of a rotation of R numbers:
/// theta^(-2i/R), stretched as its scaling says for texts of so many tokens, which only LongRoPE
/// asks after.
std::vector<double> rope_frequencies(const RotarySpec& rotary, std::int64_t text_tokens);

/// Two tables, [positions, R/2] each, as the rotation reads them.
struct RopeTables {
  std::vector<float> cosine;
  std::vector<float> sine;
};
RopeTables rope_tables(const RotarySpec& rotary, std::int64_t positions, std::int64_t text_tokens);

}  // namespace dstrain
