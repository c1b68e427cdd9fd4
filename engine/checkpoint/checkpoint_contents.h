// The contents of a checkpoint: the tensors of a rank, the scalars of a training state, and a line
// of the table of contents.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/tokenizer_identity.h"
#include "engine/plan/shard_map.h"
#include "engine/runtime/amax_history.h"
#include "kernels/core/device.h"
#include "kernels/core/tensor.h"

namespace dstrain {

/// A state of one parameter: "parameter" (the master), "exp_avg", "exp_avg_sq".
struct CheckpointTensor {
  std::string state;
  Piece piece;
  /// f32 or bf16, piece.flat.size() elements; read by save, which stores them as they are, and
  /// written by load, which converts what was stored as the other (to the nearest bf16).
  Tensor data;
  /// The device that `data` lies on: copies go by its compute stream, a bounded part at a time.
  /// nullptr: the host.
  Device* device = nullptr;
};

/// Weights that a run does not train, and that its checkpoints do not hold (base_weights.h).
struct BaseWeights {
  std::string path;      ///< absolute
  std::string identity;  ///< a checksum: of each file of weights its name, size, and both its ends
  bool operator==(const BaseWeights&) const = default;
};

/// The scalars of a training state.
struct TrainingState {
  std::int64_t step = 0;               ///< steps done, skipped ones too
  std::int64_t consumed_samples = 0;   ///< next sample of the training data
  std::int64_t optimizer_step = 0;     ///< t of the bias correction
  std::int64_t scheduler_step = 0;     ///< DeepSpeed's last_batch_iteration + 1
  std::int64_t skipped_steps = 0;      ///< of `step`: those without update, gradients not finite
  std::int64_t consecutive_skips = 0;  ///< skipped just before this checkpoint
  double loss_scale = 0.0;             ///< 0: the run scales no loss
  std::int64_t scaler_iteration = 0;   ///< these three: the dynamic loss scale's state
  std::int64_t last_overflow = 0;
  std::int64_t hysteresis = 0;
  std::uint64_t seed = 0;
  std::string config;  ///< the resolved config, JSON
  /// The numbers that fp8's scales come from, by tensor (Fp8Scales::State); empty without fp8.
  std::map<std::string, std::vector<AmaxPeak>> fp8_amax;
  /// The numbers that the optimizer keeps beside tensors (Optimizer::numbers), by name. Most
  /// optimizers keep none.
  std::map<std::string, std::vector<double>> optimizer_numbers{};
  /// The tokenizer of the ids that the run was trained on; none where that is not known.
  std::optional<TokenizerIdentity> tokenizer{};
  /// The hash of token files' ids, where it is known, by the path of the files.
  std::map<std::string, std::string> data{};
  /// The weights that the run does not train and the checkpoint does not hold; none: it holds all.
  std::optional<BaseWeights> base{};
  /// The completions that were sampled and are to be trained further ("grpo", "ppo"), as JSON;
  /// empty where the next step samples new ones. They lie in a file of their own, which load()
  /// reads and training() does not.
  std::string rollouts{};

  bool operator==(const TrainingState&) const = default;
};

/// One line of a checkpoint's table of contents.
struct CheckpointEntry {
  std::string state;
  std::string tensor;
  Shape shape;
  friend bool operator==(const CheckpointEntry&, const CheckpointEntry&) = default;
};

}  // namespace dstrain
