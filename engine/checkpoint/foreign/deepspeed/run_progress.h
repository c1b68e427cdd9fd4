// How far a DeepSpeed run had come: its counters, its schedule and, in fp16, its loss scale. Every
// rank writes the same.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/checkpoint/foreign/pytorch/pickle_value.h"
#include "engine/checkpoint/foreign/pytorch/torch_file.h"

namespace dstrain {

/// The state of DeepSpeed's dynamic loss scale.
struct StoredLossScale {
  double scale = 0.0;
  std::int64_t iteration = 0;
  std::int64_t last_overflow = -1;
  std::int64_t hysteresis = 0;  ///< 0: the scale of stage 0, which has none
};

struct RunProgress {
  std::int64_t global_steps = 0;    ///< skipped ones too
  std::int64_t global_samples = 0;  ///< sequences that all ranks have been given
  std::int64_t skipped_steps = 0;
  /// The number of updates that the learning rate's schedule has seen; nothing where the schedule
  /// was neither DeepSpeed's nor torch's.
  std::optional<std::int64_t> scheduler_step;
};

/// Reads a *_model_states.pt. Throws CheckpointError, naming the file, if a counter is not a
/// number.
RunProgress read_progress(const TorchFile& model_states);

/// Reads what DeepSpeed's optimizer saved: "optimizer" of stage 0, "optimizer_state_dict" of the
/// others. Returns nothing where the scale does not change or there is none. Throws
/// CheckpointError.
std::optional<StoredLossScale> read_loss_scale(const PickleValue& optimizer);

}  // namespace dstrain
