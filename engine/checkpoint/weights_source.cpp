#include "engine/checkpoint/weights_source.h"

#include <map>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/base_weights.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/checkpoint_source.h"
#include "engine/checkpoint/foreign/deepspeed/deepspeed_source.h"
#include "engine/checkpoint/foreign/huggingface/adapter.h"
#include "engine/checkpoint/foreign/huggingface/folder.h"
#include "engine/checkpoint/foreign/llmc/gpt2_file.h"
#include "engine/checkpoint/merged_adapters.h"
#include "engine/checkpoint/model_tensors.h"
#include "engine/config/arch/adapters.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Checks that the parameters are those of the model, by name and shape; adapters, and a head of
/// values, may be among them, and with `is_part` some may be missing.
void check_tensors(const TensorSource& source,
                   const ModelSpec& model,
                   const fs::path& path,
                   const AdapterConfig& adapters = {},
                   bool is_part = false) {
  std::map<std::string, Shape> expected;
  for (const ModelTensor& tensor : model_tensors(model)) {
    expected.emplace(tensor.name, tensor.shape);
  }
  for (const TensorSource::Entry& entry : source.entries()) {
    if (entry.state != "parameter" || (adapters.enabled() && is_adapter(entry.tensor))) {
      continue;
    }
    const auto found = expected.find(entry.tensor);
    if (found == expected.end()) {
      if (entry.tensor == kValueHead) continue;
      throw CheckpointError(fmt::format("{} holds \"{}\", which the model does not have",
                                        path.string(), entry.tensor));
    }
    if (found->second != entry.shape) {
      throw CheckpointError(fmt::format("{}: \"{}\" has shape {}, the model's has {}",
                                        path.string(), entry.tensor, entry.shape.to_string(),
                                        found->second.to_string()));
    }
    expected.erase(found);
  }
  if (!expected.empty() && !is_part) {
    throw CheckpointError(fmt::format("{} holds no \"{}\", which the model has", path.string(),
                                      expected.begin()->first));
  }
}

AdapterConfig adapters_of(const CheckpointSource& checkpoint, const fs::path& path) {
  return parse_adapters(checkpoint.training().config,
                        fmt::format("{}: config", (path / kManifestName).string()));
}

/// The weights of a checkpoint with adapters as those of the plain model. `place`, `setting`: of
/// find_base.
std::unique_ptr<TensorSource> merged(std::shared_ptr<const TensorSource> trained,
                                     const ModelSpec& model,
                                     const AdapterConfig& adapters,
                                     const std::optional<BaseWeights>& base,
                                     const fs::path& checkpoint,
                                     const fs::path& place,
                                     std::string_view setting) {
  std::shared_ptr<const TensorSource> weights = trained;
  if (base) {
    const fs::path path = find_base(*base, checkpoint, place, setting);
    weights = open_weights_of(with_heads_in(path, model), path);
  }
  return std::make_unique<MergedAdapters>(std::move(weights), std::move(trained), model, adapters);
}

/// The training state of weights that do not come from a dstrain run.
TrainingState untrained(const ModelSpec& model) {
  TrainingState training;
  training.config = "{\"model\": " + model_json(model) + "}\n";
  return training;
}

}  // namespace

WeightsSource open_weights(const fs::path& path, const fs::path& model) {
  const RecognisedCheckpoint found = recognise_format(path);
  if (!model.empty() && found.format != CheckpointFormat::kDeepSpeed) {
    throw ConfigError(
        fmt::format("--model {}: {} is {}, which says itself what model it is: leave "
                    "--model out",
                    model.string(), found.path.string(), describe(found.format)));
  }
  WeightsSource source{.format = found.format, .path = found.path};
  switch (found.format) {
    case CheckpointFormat::kDstrain: {
      auto checkpoint = std::make_unique<CheckpointSource>(found.path);
      source.training = checkpoint->training();
      source.model = parse_model_spec(
          source.training.config, fmt::format("{}: config", (found.path / kManifestName).string()));
      source.model.values = false;  // whoever reads weights has no use for the head of values
      source.adapters = adapters_of(*checkpoint, found.path);
      source.tensors = std::move(checkpoint);
      break;
    }
    case CheckpointFormat::kHuggingFace:
      source.model = load_model_spec(found.path.string());
      source.tensors = std::make_unique<HuggingFaceFolder>(found.path, source.model);
      source.training = untrained(source.model);
      break;
    case CheckpointFormat::kLlmC: {
      auto file = std::make_unique<LlmcGpt2File>(found.path);
      source.model = file->model();
      source.training = untrained(source.model);
      source.tensors = std::move(file);
      break;
    }
    case CheckpointFormat::kDeepSpeed: {
      source.model = load_model_spec((model.empty() ? model_beside(found.path) : model).string());
      auto checkpoint = std::make_unique<DeepSpeedSource>(found.path, source.model);
      source.training = checkpoint->training();
      source.training.config = untrained(source.model).config;
      source.tensors = std::move(checkpoint);
      break;
    }
  }
  check_tensors(*source.tensors, source.model, found.path, source.adapters,
                source.training.base.has_value());
  return source;
}

void merge_adapters(WeightsSource& source, const fs::path& base) {
  if (!base.empty() && !source.training.base) {
    throw ConfigError(fmt::format("--base {}: {} holds all of its weights: leave --base out",
                                  base.string(), source.path.string()));
  }
  if (!source.adapters.enabled()) return;
  source.tensors =
      merged(std::move(source.tensors), source.model, source.adapters,
             std::exchange(source.training.base, std::nullopt), source.path, base, "--base");
  source.adapters = {};
}

void merge_adapter(WeightsSource& source, const fs::path& folder) {
  auto adapter = std::make_shared<PeftAdapter>(folder, source.model);
  const AdapterConfig config = adapter->config();
  source.tensors = std::make_unique<MergedAdapters>(std::move(source.tensors), std::move(adapter),
                                                    source.model, config);
}

ModelSpec with_heads_in(const fs::path& path, ModelSpec model) {
  const RecognisedCheckpoint found = recognise_format(path);
  ModelSpec held;
  if (found.format == CheckpointFormat::kDstrain) {
    held = parse_model_spec(CheckpointSource(found.path).training().config,
                            fmt::format("{}: config", (found.path / kManifestName).string()));
  } else if (found.format == CheckpointFormat::kHuggingFace) {
    held = load_model_spec(found.path.string());
  }
  model.scores = model.scores && held.scores;
  model.values = model.values && held.values;
  return model;
}

std::unique_ptr<TensorSource> open_weights_of(const ModelSpec& model, const fs::path& path) {
  const RecognisedCheckpoint found = recognise_format(path);
  std::unique_ptr<TensorSource> source;
  switch (found.format) {
    case CheckpointFormat::kDstrain: {
      auto checkpoint = std::make_unique<CheckpointSource>(found.path);
      const AdapterConfig adapters = adapters_of(*checkpoint, found.path);
      const std::optional<BaseWeights> base = checkpoint->training().base;
      source = std::move(checkpoint);
      if (adapters.enabled()) {
        source = merged(std::move(source), model, adapters, base, found.path, {}, "");
      }
      break;
    }
    case CheckpointFormat::kHuggingFace:
      source = std::make_unique<HuggingFaceFolder>(found.path, model);
      break;
    case CheckpointFormat::kLlmC:
      source = std::make_unique<LlmcGpt2File>(found.path);
      break;
    case CheckpointFormat::kDeepSpeed:
      source = std::make_unique<DeepSpeedSource>(found.path, model);
      break;
  }
  check_tensors(*source, model, found.path);
  return source;
}

}  // namespace dstrain
