// RunSummary: ranks, parameters, step and schedule of a run, in four lines for people and as JSON
// for scripts: what every report of a plan begins with.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "engine/config/config.h"
#include "engine/train/run_outline.h"

namespace dstrain {

/// "2 pipeline × 4 data × 2 tensor", with the ranks that share sequences where there are such.
std::string degrees_text(const Mesh& mesh);
/// `outline` is that of `config`, which is resolved.
std::string summary_text(const RunOutline& outline, const Config& config);
nlohmann::ordered_json summary_json(const RunOutline& outline, const Config& config);

}  // namespace dstrain
