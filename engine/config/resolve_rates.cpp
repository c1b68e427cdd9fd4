// Checks optimizer.params.lr_scale: that each pattern is of tensors that are trained, and that none
// has two scales.
#include <algorithm>

#include <fmt/format.h>

#include "engine/config/arch/adapters.h"
#include "engine/config/arch/tensor_list.h"
#include "engine/config/did_you_mean.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kScale = "optimizer.params.lr_scale";

std::vector<std::string> trained_tensors(const Config& config) {
  const Architecture model = config.model;
  std::vector<std::string> names;
  const bool adapts = config.adapters.enabled();
  const TensorPatterns whole{tensors_of_modules(config.model, config.adapters.modules_to_save)};
  for (const TensorDecl& tensor : architecture_tensors(model)) {
    const bool is_trained =
        adapts ? whole.covers(tensor.name) : !config.training.freeze.covers(tensor.name);
    if (!is_balancing_bias(tensor.name) && is_trained) names.push_back(tensor.name);
  }
  if (!adapts) return names;
  const std::vector<AdaptedModule> modules =
      modules_named(linear_modules(config.model), config.adapters.target_modules);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const std::string prefix = fmt::format("blocks.{}.", i);
    const std::vector<TensorDecl> block = block_tensors(model, model.layers[i], prefix);
    for (const TensorDecl& adapter : adapter_tensors(modules, config.adapters.rank,
                                                     config.adapters.magnitudes, block, prefix)) {
      names.push_back(adapter.name);
    }
  }
  return names;
}

}  // namespace

void resolve_rates(const LoadedConfig& loaded, Origins& origins) {
  const std::vector<RateScale>& scales = loaded.config.rates.scales;
  if (scales.empty()) return;
  const auto refuse = [&](const std::string& why) {
    throw_config_error(origins[kScale], kScale, why);
  };
  const std::vector<std::string> tensors = trained_tensors(loaded.config);
  for (const RateScale& scale : scales) {
    if (std::none_of(tensors.begin(), tensors.end(),
                     [&](const std::string& tensor) { return scale.covers(tensor); })) {
      const auto near = nearest_name(scale.pattern, tensors, kAnyDistance);
      refuse(fmt::format("\"{}\" is the name of no tensor that is trained{}", scale.pattern,
                         near ? fmt::format("; the nearest is \"{}\"", *near) : ""));
    }
  }
  for (const std::string& tensor : tensors) {
    const RateScale* first = nullptr;
    for (const RateScale& scale : scales) {
      if (!scale.covers(tensor)) continue;
      if (first != nullptr) {
        refuse(fmt::format("\"{}\" and \"{}\" both cover {}: one scale for each tensor",
                           first->pattern, scale.pattern, tensor));
      }
      first = &scale;
    }
  }
}

}  // namespace dstrain
