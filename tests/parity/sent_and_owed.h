// Tests of codes with error feedback: how much ranks send, and the remainders that they still owe,
// in memory and in checkpoints.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/train/run_plan.h"
#include "tests/harness/resumable_run.h"

namespace dstrain::test {

/// The bytes of gradients, or of what travels in their place, that a rank of a ring sends in a
/// step.
double gradient_bytes(const RunPlan& plan, GradientTravel travel);

std::filesystem::path newest_checkpoint(const RunFolder& folder, const std::string& output);
/// The newest checkpoint's data files, with all that ranks have of their own.
std::vector<std::string> data_files(const RunFolder& folder, const std::string& output, int ranks);

/// The mean over the ranks of each state that they have of their own, element by element, once they
/// have loaded a checkpoint; workers and servers are taken together.
std::map<std::string, double> owed(const LoadedConfig& config,
                                   const std::filesystem::path& checkpoint,
                                   int ranks);
/// Requires that ranks owe what others did before, to 1e-6 of the largest.
void check_owed(const std::map<std::string, double>& now,
                const std::map<std::string, double>& before);

}  // namespace dstrain::test
