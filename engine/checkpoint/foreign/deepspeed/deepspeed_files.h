// Finds the files of a DeepSpeed checkpoint. Each rank writes its own, by names that hold the
// rank; they are found in order, and a missing one is named before any is read.
//
//   folder/latest                                          the newest tag, "global_step20"
//   folder/global_step20/mp_rank_00_model_states.pt                        stages 0 to 2
//                        zero_pp_rank_0_mp_rank_00_model_states.pt         stage 3
//                        [bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt  stages 1 to 3
//                        zero/<parameter>/fp32.pt …                        universal
#pragma once

#include <filesystem>
#include <vector>

namespace dstrain {

struct DeepSpeedFiles {
  using Grid = std::vector<std::vector<std::filesystem::path>>;

  std::filesystem::path folder;  ///< of the step
  bool is_universal = false;
  Grid model_states;  ///< [mp rank][dp rank]; only dp rank 0 before stage 3
  Grid optim_states;  ///< [mp rank][dp rank]; empty without ZeRO
};

/// `folder` is that of a step, or has a file `latest` (or else `latest_universal`) that names one.
/// Throws CheckpointError with what was expected and what is there.
DeepSpeedFiles find_deepspeed_files(const std::filesystem::path& folder);

}  // namespace dstrain
