// DeepSpeedCheckpoint: a checkpoint that DeepSpeed wrote, as named tensors. Nothing is loaded:
// `read` takes any range of a tensor's fp32 weights or moments from the files of the ranks that
// have it, so a model may be far larger than memory. The weights are those of DeepSpeed's own
// zero_to_fp32.
//
//   const DeepSpeedCheckpoint checkpoint("run/checkpoints");       // with the file `latest`
//   for (const auto& [name, tensor] : checkpoint.tensors(/*mp_rank=*/0)) {
//     checkpoint.read(tensor, StoredState::kFp32, /*first=*/0, out);
//   }
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/foreign/deepspeed/deepspeed_files.h"
#include "engine/checkpoint/foreign/deepspeed/deepspeed_tensor.h"
#include "engine/checkpoint/foreign/deepspeed/model_states.h"
#include "engine/checkpoint/foreign/deepspeed/run_progress.h"

namespace dstrain {

class DeepSpeedCheckpoint {
 public:
  /// A step's folder, a universal one, or the folder around them. Throws CheckpointError.
  explicit DeepSpeedCheckpoint(const std::filesystem::path& folder);
  DeepSpeedCheckpoint(const DeepSpeedCheckpoint&) = delete;
  DeepSpeedCheckpoint& operator=(const DeepSpeedCheckpoint&) = delete;

  [[nodiscard]] const std::filesystem::path& folder() const { return files_.folder; }
  [[nodiscard]] bool is_universal() const { return files_.is_universal; }
  /// The stage, 0 without ZeRO; nothing for a universal checkpoint.
  [[nodiscard]] std::optional<int> zero_stage() const { return zero_stage_; }
  [[nodiscard]] int num_dp_ranks() const { return num_dp_ranks_; }
  /// Tensor-parallel ranks, and for each of them the stages of a pipeline.
  [[nodiscard]] int num_mp_ranks() const { return static_cast<int>(tensors_.size()); }

  [[nodiscard]] const RunProgress& progress() const { return progress_; }
  /// The number of updates that the optimizer has counted; nothing where it saved no moments.
  [[nodiscard]] std::optional<std::int64_t> optimizer_step() const { return optimizer_step_; }
  /// The dynamic scale of an fp16 run; nothing in a universal checkpoint, which leaves it out.
  [[nodiscard]] const std::optional<StoredLossScale>& loss_scale() const { return loss_scale_; }
  /// The dtype the model computed in, by its safetensors name: "BF16", "F16", "F32"; "": unknown.
  [[nodiscard]] std::string_view working_dtype() const { return working_dtype_; }
  /// False for a 16-bit run without ZeRO whose fp32 weights and moments cannot be attributed to
  /// parameters with certainty (whole_states.h). Its kFp32 are the 16-bit weights.
  [[nodiscard]] bool has_masters() const;

  /// The tensors of a model-parallel rank. Each rank has slices of its own, which are not merged
  /// here; a universal checkpoint's parameters are whole and all of rank 0.
  [[nodiscard]] const DeepSpeedTensors& tensors(int mp_rank) const;
  /// Reads elements [first, first + out.size()) of a tensor of this checkpoint, which must have
  /// `state`.
  void read(const DeepSpeedTensor& tensor,
            StoredState state,
            std::int64_t first,
            std::span<float> out) const;

  /// All that a model-parallel rank wrote beside the optimizer: ds_config, lr_scheduler,
  /// universal_checkpoint_info (how its slices belong together) …
  [[nodiscard]] PickleValue model_states(int mp_rank) const;

 private:
  void open_model_parallel_rank(std::size_t mp_rank);
  void open_universal();
  void open_model_states(const std::vector<std::filesystem::path>& paths);

  DeepSpeedFiles files_;
  std::deque<TorchFile> open_files_;
  std::vector<std::vector<const TorchFile*>> model_states_;  ///< [mp rank][dp rank]
  StoredValues values_;
  std::vector<DeepSpeedTensors> tensors_;  ///< by mp rank
  std::optional<int> zero_stage_;
  int num_dp_ranks_ = 1;
  RunProgress progress_;
  std::optional<StoredLossScale> loss_scale_;
  bool has_whole_states_ = false;  ///< without ZeRO
  std::optional<std::int64_t> optimizer_step_;
  std::string_view working_dtype_;
};

}  // namespace dstrain
