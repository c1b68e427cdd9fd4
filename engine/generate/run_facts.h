// RunFacts: what generation asks of the config that a checkpoint carries: which dtype the run
// computed in, and where to look for the tokenizer of its data.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/config/tokenizer_identity.h"
#include "kernels/core/dtype.h"

namespace dstrain {

struct RunFacts {
  std::optional<DType> compute;                     ///< absent: the config does not say
  std::vector<std::filesystem::path> data_folders;  ///< of the training data, as the run named them
  std::filesystem::path initial_weights;            ///< empty: the run started from scratch
  /// Of the ids that the run was trained on, as its checkpoint has it; older ones do not.
  std::optional<TokenizerIdentity> tokenizer{};
};

/// `run_config`: JSON; anything that is not there, or not of the form expected, stays empty.
RunFacts read_run_facts(std::string_view run_config,
                        const std::optional<TokenizerIdentity>& tokenizer = {});

}  // namespace dstrain
