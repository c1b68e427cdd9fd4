#include "engine/checkpoint/foreign/deepspeed/universal_layout.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/deepspeed/file_context.h"
#include "engine/checkpoint/foreign/deepspeed/optimizer_step.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

using Shapes = std::map<std::string, std::vector<std::int64_t>, std::less<>>;

/// The shapes that the first model-parallel rank's parameters have; with more ranks they are those
/// of slices, and of no use.
Shapes whole_shapes(std::span<const TorchFile* const> model_states) {
  Shapes shapes;
  if (model_states.size() == 1) {
    for (const GroupShapes& group : read_param_shapes(*model_states[0])) {
      shapes.insert(group.begin(), group.end());
    }
  }
  return shapes;
}

/// {"param": tensor, …}, or from stage 3 the tensor itself.
TorchTensor read_state(const TorchFile& file) {
  return reading(file, [](const PickleValue& root) {
    const bool is_dict = root.kind() == PickleKind::kDict;
    return (is_dict ? root.at("param") : root).tensor(is_dict ? "param" : "what it holds");
  });
}

DeepSpeedTensor read_parameter(const fs::path& folder,
                               const Shapes& shapes,
                               std::deque<TorchFile>& files,
                               StoredValues& values) {
  DeepSpeedTensor stored;
  const auto known = shapes.find(folder.filename().string());
  for (std::size_t s = 0; s < kStoredStates.size(); ++s) {
    const fs::path path = folder / fmt::format("{}.pt", name_of(kStoredStates[s]));
    if (s > 0 && !fs::exists(path)) {
      continue;  // not every optimizer has both moments
    }
    const TorchFile& file = files.emplace_back(path);
    TorchTensor tensor = read_state(file);
    const std::int64_t elements = tensor.num_elements();
    if (s == 0) {
      const bool is_flat = tensor.shape.size() == 1 && known != shapes.end();
      stored.shape = is_flat ? known->second : tensor.shape;
      stored.dtype = tensor.dtype->safetensors_name;
    }
    if (elements != count_elements(stored.shape)) {
      throw CheckpointError(fmt::format("{} has {} elements, expected {}", path.string(), elements,
                                        count_elements(stored.shape)));
    }
    stored.parts[s] = {{.source = values.add(file, std::move(tensor)), .elements = elements}};
  }
  return stored;
}

std::optional<std::int64_t> step_of(const fs::path& folder, std::deque<TorchFile>& files) {
  const fs::path path = folder / "step.pt";
  if (!fs::exists(path)) {
    return std::nullopt;
  }
  const TorchFile& file = files.emplace_back(path);
  return reading(file, [&](const PickleValue& root) { return read_optimizer_step(root, file); });
}

}  // namespace

ZeroLayout lay_out_universal(const fs::path& zero,
                             std::span<const TorchFile* const> model_states,
                             std::deque<TorchFile>& files,
                             StoredValues& values) {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(zero)) {
    if (entry.is_directory()) {
      folders.push_back(entry.path());
    }
  }
  std::sort(folders.begin(), folders.end());
  if (folders.empty()) {
    throw CheckpointError(fmt::format("{} holds no parameters", zero.string()));
  }
  const Shapes shapes = whole_shapes(model_states);
  for (const auto& [name, shape] : shapes) {
    if (!fs::exists(zero / name)) {
      throw CheckpointError(
          fmt::format("{} lacks \"{}\", which the model has", zero.string(), name));
    }
  }
  ZeroLayout layout;
  for (const fs::path& folder : folders) {
    layout.tensors.emplace(folder.filename().string(),
                           read_parameter(folder, shapes, files, values));
    const auto step = step_of(folder, files);
    layout.optimizer_step = layout.optimizer_step ? layout.optimizer_step : step;
    if (step != layout.optimizer_step) {
      throw CheckpointError(
          fmt::format("{} is of another step than the parameters before it", folder.string()));
    }
  }
  return layout;
}

}  // namespace dstrain
