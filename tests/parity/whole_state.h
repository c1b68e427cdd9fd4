// The training state as one: every tensor's master and moments, put together from the ranks' parts.
// Two layouts of the same run must agree on it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/harness/tiny_model.h"

namespace dstrain::test {

/// By name: "exp_avg of head.weight".
using WholeState = std::map<std::string, std::vector<float>>;

/// Adds a fault where two ranks hold different bits of one element, or no rank holds it.
WholeState whole_state(const std::vector<std::vector<HeldPiece>>& ranks,
                       std::vector<std::string>& faults);

/// Names of tensors that only one has, or that both have with different bits.
std::vector<std::string> differences(const WholeState& a, const WholeState& b);

}  // namespace dstrain::test
