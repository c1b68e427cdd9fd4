// The training state as one: every tensor's master and moments, put together from what the ranks
// hold of it. Two layouts of the same run must agree on it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/harness/tiny_model.h"

namespace dstrain::test {

/// By name: "exp_avg of head.weight".
using WholeState = std::map<std::string, std::vector<float>>;

/// Adds a fault where two ranks hold other bits of one element, or an element is nobody's.
WholeState whole_state(const std::vector<std::vector<HeldPiece>>& ranks,
                       std::vector<std::string>& faults);

/// Names of what only one has, or both with other bits.
std::vector<std::string> differences(const WholeState& a, const WholeState& b);

}  // namespace dstrain::test
