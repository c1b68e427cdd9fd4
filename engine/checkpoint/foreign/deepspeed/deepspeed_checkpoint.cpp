#include "engine/checkpoint/foreign/deepspeed/deepspeed_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/deepspeed/file_context.h"
#include "engine/checkpoint/foreign/deepspeed/universal_layout.h"
#include "engine/checkpoint/foreign/deepspeed/whole_states.h"
#include "engine/checkpoint/foreign/deepspeed/zero_layout.h"
#include "kernels/core/check.h"

namespace dstrain {

DeepSpeedCheckpoint::DeepSpeedCheckpoint(const std::filesystem::path& folder)
    : files_(find_deepspeed_files(folder)) {
  for (const auto& paths : files_.model_states) {
    open_model_states(paths);
  }
  tensors_.resize(model_states_.size());
  if (files_.is_universal) {
    open_universal();
  } else {
    zero_stage_ = 0;
    for (std::size_t mp_rank = 0; mp_rank < tensors_.size(); ++mp_rank) {
      open_model_parallel_rank(mp_rank);
    }
  }
  working_dtype_ = dstrain::working_dtype(tensors_[0], *model_states_[0][0]);
}

void DeepSpeedCheckpoint::open_model_states(const std::vector<std::filesystem::path>& paths) {
  auto& rank = model_states_.emplace_back();
  for (const auto& path : paths) {
    TorchFile& file = open_files_.emplace_back(path);
    const RunProgress progress = read_progress(file);
    progress_ = &file == &open_files_.front() ? progress : progress_;
    const std::int64_t steps = progress.global_steps;
    if (steps != progress_.global_steps) {
      throw CheckpointError(
          fmt::format("{} is of step {}, {} of step {}: the checkpoint was overwritten and not "
                      "finished",
                      file.path(), steps, open_files_.front().path(), progress_.global_steps));
    }
    // The ranks of stage 3 say the same; their descriptions are most of what would be held.
    if (!rank.empty() && !has_frozen(*rank[0])) {
      file.forget_values();
    }
    rank.push_back(&file);
  }
}

void DeepSpeedCheckpoint::open_model_parallel_rank(std::size_t mp_rank) {
  const auto& model_states = model_states_[mp_rank];
  if (files_.optim_states.empty()) {
    add_module(tensors_[mp_rank], *model_states[0], values_);
    const WholeStates states = add_whole_states(tensors_[mp_rank], *model_states[0], values_);
    has_whole_states_ = (mp_rank == 0 || has_whole_states_) && states.found;
    if (mp_rank == 0) {
      optimizer_step_ = states.optimizer_step;
      loss_scale_ = reading(*model_states[0], [](const PickleValue& root) {
        const auto optimizer = root.find("optimizer");
        return optimizer ? read_loss_scale(*optimizer) : std::nullopt;
      });
    }
    return;
  }
  std::vector<const TorchFile*> optim_states;
  const std::size_t num_open = open_files_.size();
  for (const auto& path : files_.optim_states[mp_rank]) {
    optim_states.push_back(&open_files_.emplace_back(path));
  }
  const int stage = read_zero_stage(*optim_states[0]);
  const std::string model_file = std::filesystem::path(model_states[0]->path()).filename().string();
  if ((stage == 3) != model_file.starts_with("zero_pp_rank_")) {
    throw CheckpointError(fmt::format("{} is of ZeRO stage {}, which does not write {}",
                                      optim_states[0]->path(), stage, model_file));
  }
  ZeroLayout layout = lay_out_zero(*model_states[0], optim_states, values_);
  if (mp_rank > 0 && (stage != zero_stage_ || layout.optimizer_step != optimizer_step_)) {
    throw CheckpointError(fmt::format(
        "{} is of another ZeRO stage or step than the ranks before it", optim_states[0]->path()));
  }
  if (mp_rank == 0) {
    loss_scale_ = reading(*optim_states[0], [](const PickleValue& root) {
      return read_loss_scale(root.at("optimizer_state_dict"));
    });
  }
  zero_stage_ = stage;
  num_dp_ranks_ = static_cast<int>(optim_states.size());
  optimizer_step_ = layout.optimizer_step;
  tensors_[mp_rank] = std::move(layout.tensors);
  add_untrained(tensors_[mp_rank], model_states, *model_states_[0][0], values_);
  std::for_each(open_files_.begin() + static_cast<std::ptrdiff_t>(num_open), open_files_.end(),
                [](TorchFile& file) { file.forget_values(); });
}

void DeepSpeedCheckpoint::open_universal() {
  std::vector<const TorchFile*> first_files;
  for (const auto& rank : model_states_) {
    first_files.push_back(rank[0]);
  }
  ZeroLayout layout = lay_out_universal(files_.folder / "zero", first_files, open_files_, values_);
  optimizer_step_ = layout.optimizer_step;
  tensors_[0] = std::move(layout.tensors);
  // Frozen parameters are not under `zero`, so each rank still has its own slices of them.
  for (std::size_t mp_rank = 1; mp_rank < tensors_.size(); ++mp_rank) {
    tensors_[mp_rank] = tensors_[0];
    add_untrained(tensors_[mp_rank], model_states_[mp_rank], *first_files[0], values_);
    std::erase_if(tensors_[mp_rank],
                  [](const auto& tensor) { return tensor.second.role == StoredRole::kTrained; });
  }
  add_untrained(tensors_[0], model_states_[0], *first_files[0], values_);
}

bool DeepSpeedCheckpoint::has_masters() const {
  return zero_stage_ != 0 || working_dtype_ == "F32" || has_whole_states_;
}

const DeepSpeedTensors& DeepSpeedCheckpoint::tensors(int mp_rank) const {
  check(mp_rank >= 0 && mp_rank < num_mp_ranks(), "model-parallel rank {} of {}", mp_rank,
        num_mp_ranks());
  return tensors_[static_cast<std::size_t>(mp_rank)];
}

void DeepSpeedCheckpoint::read(const DeepSpeedTensor& tensor,
                               StoredState state,
                               std::int64_t first,
                               std::span<float> out) const {
  values_.read(tensor, state, first, out);
}

PickleValue DeepSpeedCheckpoint::model_states(int mp_rank) const {
  return model_states_.at(static_cast<std::size_t>(mp_rank))[0]->root();
}

}  // namespace dstrain
