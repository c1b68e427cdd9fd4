// Applies what a model_type implies beyond its keys, and checks several keys of a model together.
#pragma once

#include <string>
#include <vector>

#include "engine/config/config_keys.h"
#include "engine/config/config_problems.h"

namespace dstrain {

/// The model_types that can be trained.
std::vector<std::string> model_families();

/// Sets the architecture's constants (norm, positions, activation, biases) and Hugging Face's
/// defaults of its optional keys.
void set_model_family(ConfigDraft& draft, const std::string& model_type);

/// Fills what follows from other keys (head_dim, …). Contradictions join `problems`, as far as the
/// problems before leave them to be judged.
void finish_model(ConfigDraft& draft, const WrittenKeys& written, ConfigProblems& problems);

}  // namespace dstrain
