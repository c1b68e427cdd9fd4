#include "engine/config/arch/adapters.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "engine/config/arch/family.h"
#include "engine/config/tensor_patterns.h"

namespace dstrain {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kBlock = "blocks.{}.";

std::string without_weight(std::string_view name) {
  return std::string(name.substr(0, name.size() - kWeight.size()));
}

bool is_matrix_of_a_block(std::string_view name) {
  return name.starts_with(kBlock) && name.ends_with(kWeight) &&
         name.find("norm") == std::string_view::npos &&
         name.find(".experts.") == std::string_view::npos && !name.ends_with(".router.weight");
}

/// Whether any block has such a matrix.
bool has_matrix(const Architecture& model, const std::string& part) {
  for (const LayerSpec& layer : model.layers) {
    const std::vector<TensorDecl> tensors = block_tensors(model, layer, "");
    if (const TensorDecl* const found = find_tensor(tensors, part + std::string(kWeight))) {
      return found->shape.rank() == 2;
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> tensors_of_modules(const ModelSpec& model,
                                            const std::vector<std::string>& names) {
  const std::vector<TensorDecl> tensors = architecture_tensors(model);
  std::vector<std::string> patterns;
  for (const ForeignRow& row : family_of(model.model_type).names) {
    const bool scores = model.scores && row.ours.front() == std::string_view("head.weight");
    const std::string module = scores ? kScoreModule : row.theirs.substr(0, row.theirs.rfind('.'));
    const bool is_named = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return module.ends_with(name);
    });
    for (const char* const ours : row.ours) {
      if (!is_named || ours == nullptr) continue;
      TensorPatterns pattern{{ours}};
      for (std::string& text = pattern.patterns.front(); text.find("{}") != std::string::npos;) {
        text.replace(text.find("{}"), 2, "*");
      }
      const bool has_it = std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
        return pattern.covers(tensor.name);
      });
      if (has_it) patterns.push_back(pattern.patterns.front());
    }
  }
  return patterns;
}

std::vector<AdaptedModule> linear_modules(const ModelSpec& model) {
  const Architecture architecture(model);
  std::vector<AdaptedModule> modules;
  for (const ForeignRow& row : family_of(model.model_type).names) {
    if (!row.theirs.ends_with(kWeight)) continue;
    AdaptedModule module{.theirs = without_weight(row.theirs),
                         .parts = {},
                         .in_order = !row.by_heads && !row.by_rows};
    for (const char* const ours : row.ours) {
      if (ours == nullptr || !is_matrix_of_a_block(ours)) continue;
      const std::string part = without_weight(std::string_view(ours).substr(kBlock.size()));
      if (has_matrix(architecture, part)) module.parts.push_back(part);
    }
    if (!module.parts.empty()) modules.push_back(std::move(module));
  }
  return modules;
}

std::vector<std::string> coded_with(const std::vector<AdaptedModule>& modules,
                                    const std::string& weight) {
  for (const AdaptedModule& module : modules) {
    for (const std::string& part : module.parts) {
      const std::string ending = "." + part + std::string(kWeight);
      if (!weight.starts_with("blocks.") || !weight.ends_with(ending)) continue;
      if (!module.in_order) return {weight};
      const std::string block = weight.substr(0, weight.size() - ending.size());
      std::vector<std::string> together;
      for (const std::string& other : module.parts) {
        together.push_back(block + "." + other + std::string(kWeight));
      }
      return together;
    }
  }
  return {};
}

std::vector<AdaptedModule> modules_named(const std::vector<AdaptedModule>& modules,
                                         const std::vector<std::string>& targets) {
  std::vector<AdaptedModule> named;
  std::copy_if(modules.begin(), modules.end(), std::back_inserter(named),
               [&](const AdaptedModule& module) {
                 return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
                   return target == kAllLinear || module.theirs == target ||
                          module.theirs.ends_with("." + target);
                 });
               });
  return named;
}

// Where ranks have rows of W they have those of B, and each computes a part of A's gradient; where
// they have columns of W they have those of A, and each a part of B's and of the magnitudes'.
std::vector<TensorDecl> adapter_tensors(const std::vector<AdaptedModule>& modules,
                                        std::int64_t rank,
                                        bool magnitudes,
                                        const std::vector<TensorDecl>& block,
                                        const std::string& prefix) {
  std::vector<TensorDecl> tensors;
  for (const AdaptedModule& module : modules) {
    bool is_first = true;
    for (const std::string& part : module.parts) {
      const std::string name = prefix + part;
      const TensorDecl* const weight = find_tensor(block, name + std::string(kWeight));
      if (weight == nullptr) continue;  // of other layers
      const auto whole = [&](Cut other) {
        return weight->cut == other ? GradientOfCopy::kOfMyShare : weight->gradient_of_copy;
      };
      if (std::exchange(is_first, false)) {
        TensorDecl a{.name = name + std::string(kAdapterA),
                     .shape = {rank, weight->shape[1]},
                     // PEFT's: uniform, within 1/√inputs.
                     .deviation = 1.0F / std::sqrt(3.0F * static_cast<float>(weight->shape[1])),
                     .adapter = true};
        a.cut = weight->cut == Cut::kColumns ? Cut::kColumns : Cut::kWhole;
        a.gradient_of_copy = whole(Cut::kRows);
        tensors.push_back(std::move(a));
      }
      TensorDecl b{.name = name + std::string(kAdapterB),
                   .shape = {weight->shape[0], rank},
                   .adapter = true};
      b.cut = weight->cut == Cut::kRows ? Cut::kRows : Cut::kWhole;
      b.heads = b.cut == Cut::kRows ? weight->heads : 0;
      b.gradient_of_copy = whole(Cut::kColumns);
      if (magnitudes) {
        TensorDecl magnitude = b;
        magnitude.name = name + std::string(kAdapterMagnitude);
        magnitude.shape = {weight->shape[0]};
        tensors.push_back(std::move(magnitude));
      }
      tensors.push_back(std::move(b));
    }
  }
  return tensors;
}

}  // namespace dstrain
