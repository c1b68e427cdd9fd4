#include "engine/checkpoint/foreign/huggingface/adapter.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/placed_tensor.h"
#include "engine/config/arch/adapters.h"
#include "engine/config/json_text.h"
#include "engine/config/tensor_patterns.h"

namespace dstrain {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kTheirA = ".lora_A.weight";
constexpr std::string_view kTheirB = ".lora_B.weight";
constexpr std::string_view kTheirMagnitude = ".lora_magnitude_vector";

std::string without(std::string_view ending, std::string_view name) {
  return std::string(name.substr(0, name.size() - ending.size()));
}

std::vector<std::int64_t> dims_of(const Shape& shape) {
  std::vector<std::int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) {
    dims.push_back(shape[i]);
  }
  return dims;
}

/// "base_model.model.model.layers.3.self_attn.q_proj", of a layer's weight
std::string adapted_name(const ForeignTensor& layer) {
  return std::string(kPrefix) + without(kWeight, layer.name);
}

/// The adapters of the layers of a model for which `has` says so.
std::vector<ForeignTensor> foreign_adapters(
    const ModelSpec& model,
    const AdapterConfig& config,
    const std::function<bool(const ForeignTensor& layer)>& has) {
  const std::int64_t rank = config.rank;
  std::vector<ForeignTensor> tensors;
  for (const ForeignTensor& layer : huggingface_tensors(model)) {
    const bool is_layer = layer.name.ends_with(kWeight) && layer.experts == 0 &&
                          std::all_of(layer.parts.begin(), layer.parts.end(), [](const auto& part) {
                            return part.name.ends_with(kWeight) && part.shape.rank() == 2;
                          });
    if (!is_layer || !has(layer)) continue;
    const auto ours = [](const ModelTensor& part, std::string_view ending) {
      return without(kWeight, part.name) + std::string(ending);
    };
    const Shape a{rank, layer.parts.front().shape[1]};
    tensors.push_back({.name = adapted_name(layer) + std::string(kTheirA),
                       .shape = a,
                       .parts = {{ours(layer.parts.front(), kAdapterA), a}}});
    ForeignTensor b{.name = adapted_name(layer) + std::string(kTheirB), .heads = layer.heads};
    std::int64_t rows = 0;
    for (const ModelTensor& part : layer.parts) {
      b.parts.push_back({ours(part, kAdapterB), {part.shape[0], rank}});
      rows += part.shape[0];
    }
    b.shape = {rows, rank};
    tensors.push_back(std::move(b));
    if (!config.magnitudes) continue;
    ForeignTensor magnitude{.name = adapted_name(layer) + std::string(kTheirMagnitude),
                            .shape = {rows},
                            .heads = layer.heads};
    for (const ModelTensor& part : layer.parts) {
      magnitude.parts.push_back({ours(part, kAdapterMagnitude), {part.shape[0]}});
    }
    tensors.push_back(std::move(magnitude));
  }
  return tensors;
}

/// The tensors of a model that were trained whole beside adapters, for which `has` says so.
std::vector<ForeignTensor> foreign_whole(
    const ModelSpec& model, const std::function<bool(const ForeignTensor& tensor)>& has) {
  std::vector<ForeignTensor> tensors;
  for (ForeignTensor& tensor : huggingface_tensors(model)) {
    tensor.name.insert(0, kPrefix);
    if (has(tensor)) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// The adapter that an adapter_config.json describes.
AdapterConfig read_config(const std::filesystem::path& file) {
  const auto refuse = [&](const std::string& why) {
    throw CheckpointError(fmt::format("{}: {}", file.string(), why));
  };
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(read_json_text(file.string()));
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  }
  if (!json.is_object()) refuse("is no JSON object");
  const auto is_off = [&](const char* key) {
    const auto found = json.find(key);
    return found == json.end() || found->is_null() || *found == false || found->empty() ||
           *found == "none";
  };
  if (json.value("peft_type", "LORA") != "LORA") {
    refuse(
        fmt::format("peft_type {}: adapters are read of type \"LORA\"", json["peft_type"].dump()));
  }
  for (const char* const key :
       {"bias", "lora_bias", "rank_pattern", "alpha_pattern", "layer_replication",
        "target_parameters", "trainable_token_indices"}) {
    if (!is_off(key)) {
      refuse(fmt::format("{} {}: an adapter here is two matrices of one rank beside each layer",
                         key, json[key].dump()));
    }
  }
  AdapterConfig config;
  const auto rank = json.find("r");
  const auto alpha = json.find("lora_alpha");
  if (rank == json.end() || !rank->is_number_integer() || rank->get<std::int64_t>() < 1) {
    refuse("says no rank \"r\"");
  }
  if (alpha == json.end() || !alpha->is_number()) refuse("says no \"lora_alpha\"");
  config.rank = rank->get<std::int64_t>();
  config.alpha = alpha->get<double>();
  config.rank_stabilised = json.value("use_rslora", false);
  config.magnitudes = json.value("use_dora", false);
  config.target_modules = {kAllLinear};
  return config;
}

}  // namespace

HuggingFaceShard adapter_shard(const ModelSpec& model,
                               const AdapterConfig& adapters,
                               const TensorSource& source,
                               std::optional<DType> dtype) {
  std::map<std::string, DType> held;
  for (const TensorSource::Entry& entry : source.entries()) {
    if (entry.state == "parameter") held.emplace(entry.tensor, entry.dtype);
  }
  HuggingFaceShard shard{.name = kAdapterFile, .tensors = {}};
  for (ForeignTensor& tensor : foreign_adapters(model, adapters, [&](const auto& layer) {
         return held.contains(without(kWeight, layer.parts.front().name) + std::string(kAdapterA));
       })) {
    const DType stored = held.at(tensor.parts.front().name);
    shard.tensors.push_back({.tensor = std::move(tensor), .dtype = dtype.value_or(stored)});
  }
  const TensorPatterns whole{tensors_of_modules(model, adapters.modules_to_save)};
  for (ForeignTensor& tensor : foreign_whole(model, [&](const ForeignTensor& other) {
         return whole.covers(other.parts.front().name);
       })) {
    const DType stored = held.at(tensor.parts.front().name);
    shard.tensors.push_back({.tensor = std::move(tensor), .dtype = dtype.value_or(stored)});
  }
  std::sort(shard.tensors.begin(), shard.tensors.end(),
            [](const HuggingFaceTensor& x, const HuggingFaceTensor& y) {
              return x.tensor.name < y.tensor.name;
            });
  return shard;
}

PeftAdapter::PeftAdapter(const std::filesystem::path& folder, const ModelSpec& model)
    : config_(read_config(folder / kAdapterConfigFile)), file_(folder / kAdapterFile) {
  std::set<std::string> unknown;
  for (const auto& [name, entry] : file_.tensors()) {
    unknown.insert(name);
  }
  tensors_ = foreign_adapters(model, config_, [&](const ForeignTensor& layer) {
    return unknown.contains(adapted_name(layer) + std::string(kTheirA));
  });
  for (ForeignTensor& tensor : foreign_whole(
           model, [&](const ForeignTensor& other) { return unknown.contains(other.name); })) {
    tensors_.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const ForeignTensor& tensor = tensors_[i];
    const auto found = file_.tensors().find(tensor.name);
    if (found == file_.tensors().end()) {
      throw CheckpointError(fmt::format("{} holds no \"{}\"", file_.path(), tensor.name));
    }
    const std::vector<std::int64_t>& shape = found->second.shape;
    const std::optional<DType> dtype = weight_dtype(found->second.dtype);
    if (shape != dims_of(tensor.shape) || !dtype) {
      throw CheckpointError(fmt::format(
          "{}: \"{}\" is {} of shape [{}], expected weights of shape {}", file_.path(), tensor.name,
          found->second.dtype, fmt::join(shape, ", "), tensor.shape.to_string()));
    }
    unknown.erase(tensor.name);
    for (std::size_t part = 0; part < tensor.parts.size(); ++part) {
      places_[tensor.parts[part].name] = {.tensor = i, .part = part};
      entries_.push_back({.tensor = tensor.parts[part].name,
                          .state = "parameter",
                          .shape = tensor.parts[part].shape,
                          .dtype = *dtype});
    }
  }
  if (!unknown.empty() || tensors_.empty()) {
    throw CheckpointError(
        unknown.empty()
            ? fmt::format("{} holds no adapter", file_.path())
            : fmt::format("{} holds \"{}\", which is neither an adapter of a linear layer of the "
                          "model's blocks nor a tensor of the model",
                          file_.path(), *unknown.begin()));
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.tensor < b.tensor; });
}

void PeftAdapter::read(const std::string& state, const Piece& piece, Tensor out) const {
  const auto found = places_.find(piece.tensor);
  if (found == places_.end() || state != "parameter") {
    throw CheckpointError(
        fmt::format("{} holds no {} of \"{}\"", file_.path(), state, piece.tensor));
  }
  const ForeignTensor& tensor = tensors_[found->second.tensor];
  const SafetensorsEntry& entry = file_.tensors().at(tensor.name);
  read_placed(place_of_part(tensor, found->second.part, file_.data(entry).data(),
                            weight_dtype(entry.dtype).value()),
              piece, out);
}

std::string adapter_config(const AdapterConfig& adapters,
                           const ModelSpec& model,
                           const HuggingFaceShard& shard,
                           const std::string& base) {
  std::set<std::string> targets;
  for (const std::string& target : adapters.target_modules) {
    if (target != kAllLinear) targets.insert(target);
  }
  const bool all = targets.size() < adapters.target_modules.size();
  const auto layers = huggingface_tensors(model);
  bool transposed = false;
  for (const HuggingFaceTensor& tensor : shard.tensors) {
    if (!tensor.tensor.name.ends_with(kTheirA)) continue;
    const std::string layer = without(kTheirA, tensor.tensor.name).substr(kPrefix.size());
    if (all) targets.insert(layer.substr(layer.rfind('.') + 1));
    const auto found = std::find_if(layers.begin(), layers.end(), [&](const ForeignTensor& other) {
      return other.name == layer + std::string(kWeight);
    });
    transposed |= found != layers.end() && found->transposed;
  }
  const nlohmann::ordered_json json = {
      {"peft_type", "LORA"},
      {"task_type", model.scores ? "SEQ_CLS" : "CAUSAL_LM"},
      {"base_model_name_or_path",
       base.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(base)},
      {"r", adapters.rank},
      {"lora_alpha", adapters.alpha},
      {"use_rslora", adapters.rank_stabilised},
      {"use_dora", adapters.magnitudes},
      {"target_modules", targets},
      {"lora_dropout", adapters.dropout},
      {"bias", "none"},
      {"fan_in_fan_out", transposed},
      {"modules_to_save", adapters.modules_to_save.empty()
                              ? nlohmann::ordered_json()
                              : nlohmann::ordered_json(adapters.modules_to_save)},
      {"init_lora_weights", true},
      {"inference_mode", true}};
  return json.dump(2) + "\n";
}

}  // namespace dstrain
