#include "engine/checkpoint/foreign/deepspeed/model_states.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/deepspeed/file_context.h"

namespace dstrain {
namespace {

std::vector<std::int64_t> shape_of(const PickleValue& value, const std::string& what) {
  std::vector<std::int64_t> shape;
  for (const PickleValue& extent : value.items(what)) {
    shape.push_back(extent.integer(what));
  }
  (void)count_elements(shape);
  return shape;
}

/// A dict's value, or nothing if it is missing or None.
std::optional<PickleValue> given(const PickleValue& dict, std::string_view key) {
  const auto value = dict.find(key);
  return value && !value->is_none() ? value : std::nullopt;
}

/// The module's tensors by name; none if a pipeline saved its layers elsewhere.
std::map<std::string, TorchTensor, std::less<>> module_tensors(const PickleValue& root) {
  std::map<std::string, TorchTensor, std::less<>> tensors;
  if (const auto module = given(root, "module")) {
    for (const auto& [name, value] : module->entries("module")) {
      if (value.kind() == PickleKind::kTensor) {
        tensors.emplace(name.text("a name in module"), value.tensor("a tensor"));
      }
    }
  }
  return tensors;
}

std::set<std::string, std::less<>> buffer_names(const PickleValue& root) {
  std::set<std::string, std::less<>> names;
  for (const PickleValue& name : root.at("buffer_names").items("buffer_names")) {
    names.emplace(name.text("a name in buffer_names"));
  }
  return names;
}

DeepSpeedTensor whole_tensor(const TorchFile& file,
                             TorchTensor tensor,
                             StoredRole role,
                             StoredValues& values) {
  DeepSpeedTensor stored{.shape = tensor.shape,
                         .role = role,
                         .dtype = tensor.dtype->safetensors_name,
                         .shared_with = {},
                         .parts = {}};
  const std::int64_t elements = tensor.num_elements();
  stored.parts[0] = {{.source = values.add(file, std::move(tensor)), .elements = elements}};
  return stored;
}

/// A frozen parameter of stage 3: rank after rank, the last one's padding cut off.
DeepSpeedTensor gathered_tensor(const std::string& name,
                                std::vector<std::int64_t> shape,
                                std::span<const TorchFile* const> model_states,
                                StoredValues& values) {
  DeepSpeedTensor stored{.shape = std::move(shape),
                         .role = StoredRole::kFrozen,
                         .dtype = {},
                         .shared_with = {},
                         .parts = {}};
  std::vector<StoredPart> parts;
  std::int64_t missing = stored.num_elements();
  for (const TorchFile* file : model_states) {
    TorchTensor fragment = reading(*file, [&](const PickleValue& root) {
      return root.at("frozen_param_fragments").at(name).tensor(name);
    });
    stored.dtype = fragment.dtype->safetensors_name;
    const std::int64_t elements = std::min(fragment.num_elements(), missing);
    missing -= elements;
    parts.push_back({.source = values.add(*file, std::move(fragment)), .elements = elements});
  }
  if (missing != 0) {
    throw CheckpointError(fmt::format("{}: the ranks' fragments of \"{}\" lack {} elements",
                                      model_states[0]->path(), name, missing));
  }
  stored.parts[0] = std::move(parts);
  return stored;
}

void add_frozen(DeepSpeedTensors& tensors,
                std::span<const TorchFile* const> model_states,
                StoredValues& values) {
  const TorchFile& file = *model_states[0];
  const auto shapes = reading(file, [](const PickleValue& root) {
    GroupShapes parameters;
    if (const auto frozen = given(root, "frozen_param_shapes")) {
      for (const auto& [name, shape] : frozen->entries("frozen_param_shapes")) {
        parameters.emplace_back(name.text("a name in frozen_param_shapes"),
                                shape_of(shape, "a frozen parameter's shape"));
      }
    }
    return parameters;
  });
  for (const auto& [name, shape] : shapes) {
    tensors.emplace(name, gathered_tensor(name, shape, model_states, values));
  }
}

/// Adds the names that share one tensor. The rank that records them says so; within one file, the
/// same place in the same storage does too.
void add_shared(DeepSpeedTensors& tensors,
                const PickleValue& root,
                const TorchFile& shared_names,
                const std::map<std::string, TorchTensor, std::less<>>& module) {
  const auto share = [&](const std::string& name, std::string_view with) {
    const auto found = tensors.find(with);
    if (found != tensors.end() && !tensors.contains(name)) {
      DeepSpeedTensor copy = found->second;
      copy.shared_with = copy.shared_with.empty() ? found->first : copy.shared_with;
      tensors.emplace(name, std::move(copy));
    }
  };
  const auto share_named = [&](const PickleValue& source, bool everywhere) {
    if (const auto shared = given(source, "shared_params")) {
      for (const auto& [name, with] : shared->entries("shared_params")) {
        const std::string text(name.text("a name in shared_params"));
        if (everywhere || module.contains(text)) {
          share(text, with.text("a name in shared_params"));
        }
      }
    }
  };
  share_named(root, true);
  reading(shared_names, [&](const PickleValue& first_root) { share_named(first_root, false); });
  std::map<std::pair<std::string_view, std::int64_t>, std::string_view> places;
  for (const auto& [name, tensor] : module) {
    if (tensor.num_elements() > 0 && tensors.contains(name)) {
      places.emplace(std::pair(tensor.storage_key, tensor.offset_elements), name);
    }
  }
  for (const auto& [name, tensor] : module) {
    const auto place = places.find(std::pair(tensor.storage_key, tensor.offset_elements));
    if (tensor.num_elements() > 0 && place != places.end() &&
        module.find(place->second)->second.shape == tensor.shape) {
      share(name, place->second);
    }
  }
}

}  // namespace

std::int64_t count_elements(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) {
      throw CheckpointError(
          fmt::format("a shape of more elements than can be counted, or with an "
                      "extent of {}",
                      extent));
    }
  }
  return count;
}

bool has_frozen(const TorchFile& model_states) {
  return reading(model_states, [](const PickleValue& root) {
    const auto frozen = given(root, "frozen_param_shapes");
    return frozen && !frozen->entries("frozen_param_shapes").empty();
  });
}

std::vector<GroupShapes> read_param_shapes(const TorchFile& model_states) {
  return reading(model_states, [](const PickleValue& root) {
    std::vector<GroupShapes> groups;
    const auto shapes = given(root, "param_shapes");
    if (!shapes) {
      return groups;
    }
    for (const PickleValue& group : shapes->items("param_shapes")) {
      GroupShapes& parameters = groups.emplace_back();
      for (const auto& [name, shape] : group.entries("a group of param_shapes")) {
        const std::string text(name.text("a name in param_shapes"));
        parameters.emplace_back(text, shape_of(shape, fmt::format("the shape of \"{}\"", text)));
      }
    }
    return groups;
  });
}

void add_untrained(DeepSpeedTensors& tensors,
                   std::span<const TorchFile* const> model_states,
                   const TorchFile& shared_names,
                   StoredValues& values) {
  const TorchFile& file = *model_states[0];
  add_frozen(tensors, model_states, values);
  reading(file, [&](const PickleValue& root) {
    const auto module = module_tensors(root);
    const auto buffers = buffer_names(root);
    for (const std::string& name : buffers) {
      if (const auto found = module.find(name); found != module.end()) {
        tensors.emplace(name, whole_tensor(file, found->second, StoredRole::kBuffer, values));
      }
    }
    add_shared(tensors, root, shared_names, module);
    // Stage 1 writes frozen parameters in the module only. In stage 3 the module's tensors are
    // placeholders without elements, and all parameters are found by now.
    for (const auto& [name, tensor] : module) {
      if (tensor.num_elements() > 0 && !tensors.contains(name)) {
        tensors.emplace(name, whole_tensor(file, tensor, StoredRole::kFrozen, values));
      }
    }
  });
}

void add_module(DeepSpeedTensors& tensors, const TorchFile& model_states, StoredValues& values) {
  reading(model_states, [&](const PickleValue& root) {
    const auto module = module_tensors(root);
    const auto buffers = buffer_names(root);
    std::map<std::pair<std::string_view, std::int64_t>, std::string_view> places;
    // In the file's order, which is the model's: the first name is the one that others share.
    for (const auto& [key, value] : root.at("module").entries("module")) {
      const auto found = module.find(key.text("a name in module"));
      if (found == module.end()) {
        continue;
      }
      const auto& [name, tensor] = *found;
      const auto role = buffers.contains(name) ? StoredRole::kBuffer : StoredRole::kTrained;
      DeepSpeedTensor stored = whole_tensor(model_states, tensor, role, values);
      const auto [place, is_new] =
          places.emplace(std::pair(tensor.storage_key, tensor.offset_elements), name);
      if (!is_new && module.find(place->second)->second.shape == tensor.shape) {
        stored.shared_with = place->second;
      }
      tensors.emplace(name, std::move(stored));
    }
  });
}

std::string_view working_dtype(const DeepSpeedTensors& tensors, const TorchFile& model_states) {
  return reading(model_states, [&](const PickleValue& root) -> std::string_view {
    for (const auto& [name, tensor] : module_tensors(root)) {
      const auto found = tensors.find(name);
      if (found != tensors.end() && found->second.role == StoredRole::kTrained) {
        return tensor.dtype->safetensors_name;
      }
    }
    return "";
  });
}

}  // namespace dstrain
