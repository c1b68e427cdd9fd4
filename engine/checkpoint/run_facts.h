// RunFacts: what generation and conversions ask of the config that a checkpoint carries: which
// dtype the run computed in, and where to look for the tokenizer of its data.
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
  /// The tokenizer of the ids that the run was trained on; checkpoints of older versions do not
  /// have it.
  std::optional<TokenizerIdentity> tokenizer{};
};

/// `run_config` is JSON. What it lacks, or has in a form other than expected, stays empty.
RunFacts read_run_facts(std::string_view run_config,
                        const std::optional<TokenizerIdentity>& tokenizer = {});

}  // namespace dstrain
