// Opening weights of any format that is read: what a conversion takes, and what a run starts from.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/recognise_format.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/config/adapter_config.h"
#include "engine/config/model_spec.h"

namespace dstrain {

struct WeightsSource {
  CheckpointFormat format = CheckpointFormat::kDstrain;
  std::filesystem::path path;  ///< of the checkpoint itself
  ModelSpec model;
  /// Says how far the run of a dstrain checkpoint had come; for other formats it has only a config
  /// that names the model.
  TrainingState training;
  std::unique_ptr<TensorSource> tensors;
  /// That `tensors` has beside the model's, in dstrain's checkpoints; with training.base it has
  /// nothing of the model but what is trained whole.
  AdapterConfig adapters{};
};

/// Recognises what lies at `path` and opens it as the model that it says it is. A DeepSpeed
/// checkpoint does not say, so its model is `model`, a config.json or its folder, or else a
/// config.json that lies beside it. Throws ConfigError, also where another format is given a model,
/// and CheckpointError.
WeightsSource open_weights(const std::filesystem::path& path,
                           const std::filesystem::path& model = {});

/// Makes `tensors` those of the model alone, with the adapters in them. `base`: where the weights
/// beside which they were trained lie now, if these are not in the checkpoint and have been moved;
/// or empty. Throws ConfigError where there is no need for it, and CheckpointError.
void merge_adapters(WeightsSource& source, const std::filesystem::path& base = {});

/// Merges the adapter of a folder of PEFT's into them. Throws CheckpointError.
void merge_adapter(WeightsSource& source, const std::filesystem::path& folder);

/// The model without the heads of one row (ModelSpec::scores, values) that these weights do not
/// have. Throws as open_weights does.
ModelSpec with_heads_in(const std::filesystem::path& path, ModelSpec model);

/// The same for a model that is known already: its tensors must be there, and no others. Adapters
/// are merged.
std::unique_ptr<TensorSource> open_weights_of(const ModelSpec& model,
                                              const std::filesystem::path& path);

}  // namespace dstrain
