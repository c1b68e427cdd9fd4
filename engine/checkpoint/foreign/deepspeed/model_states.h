// What a rank's *_model_states.pt says: the shapes of the parameters that ZeRO flattened, in the
// order in which they lie there, and the tensors that it left whole.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/foreign/deepspeed/deepspeed_tensor.h"
#include "engine/checkpoint/foreign/pytorch/torch_file.h"

namespace dstrain {

using DeepSpeedTensors = std::map<std::string, DeepSpeedTensor, std::less<>>;

/// A flattened group's parameters in order.
using GroupShapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

/// `param_shapes`; empty if the checkpoint was saved without ZeRO.
std::vector<GroupShapes> read_param_shapes(const TorchFile& model_states);

/// Whether there are parameters that were not trained, written down apart.
bool has_frozen(const TorchFile& model_states);

/// The number of elements of a shape from a file. Throws CheckpointError if they cannot be counted.
std::int64_t count_elements(std::span<const std::int64_t> shape);

/// Adds what training did not change: frozen parameters, buffers, and the second names of shared
/// ones. `model_states` are those of all dp ranks that have one: stage 3 splits frozen parameters.
/// `shared_names` are those of the first model-parallel rank, which alone writes them down.
void add_untrained(DeepSpeedTensors& tensors,
                   std::span<const TorchFile* const> model_states,
                   const TorchFile& shared_names,
                   StoredValues& values);

/// Without ZeRO the module holds every parameter: all of it becomes tensors.
void add_module(DeepSpeedTensors& tensors, const TorchFile& model_states, StoredValues& values);

/// The dtype that the model computes in, by safetensors's name: that of its first trained tensor.
/// "" where the module was not saved (pipelines).
std::string_view working_dtype(const DeepSpeedTensors& tensors, const TorchFile& model_states);

}  // namespace dstrain
