// Checks adapters, and which tensors are not trained: that there are such tensors, that something
// is trained, and that what one operation computes with is trained together.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "engine/config/arch/adapters.h"
#include "engine/config/arch/tensor_list.h"
#include "engine/config/did_you_mean.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kFreeze = "training.freeze";
constexpr const char* kTargets = "peft.target_modules";
constexpr const char* kSaved = "peft.modules_to_save";
constexpr const char* kMagnitudes = "peft.use_dora";

std::vector<std::string> trainable_tensors(const Architecture& model) {
  std::vector<std::string> names;
  for (const TensorDecl& tensor : architecture_tensors(model)) {
    if (!is_balancing_bias(tensor.name)) names.push_back(tensor.name);
  }
  return names;
}

/// The first of the tensors that one operation computes the gradients of: those of a matrix that
/// several tensors make up, of all experts of a layer, of the embedding. Most are alone.
class Companions {
 public:
  const std::string& first_of(const std::string& tensor) {
    return first_.try_emplace(key_of(tensor), tensor).first->second;
  }

 private:
  static std::string key_of(std::string tensor) {
    if (tensor.starts_with("embedding.")) return "embedding";
    if (const auto expert = tensor.find(".experts."); expert != std::string::npos) {
      return tensor.substr(0, expert);
    }
    constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kStacked = {
        {{".attention.key.", ".attention.query."},
         {".attention.value.", ".attention.query."},
         {".gate.", ".up."}}};
    for (const auto& [other, first] : kStacked) {
      if (const auto at = tensor.find(other); at != std::string::npos) {
        tensor.replace(at, other.size(), first);
      }
    }
    return tensor;
  }

  std::map<std::string, std::string> first_;  // by what they have in common
};

/// Calls `refuse` with the reason where what one operation computes the gradients of would be
/// trained in part.
template <typename IsTrained, typename Refuse>
void check_companions(const std::vector<std::string>& tensors,
                      const IsTrained& is_trained,
                      const Refuse& refuse) {
  Companions companions;
  for (const std::string& tensor : tensors) {
    const std::string& first = companions.first_of(tensor);
    if (is_trained(tensor) != is_trained(first)) {
      refuse(fmt::format(
          "{} would be trained and not {}, whose gradients one operation computes: name both, or "
          "neither",
          is_trained(tensor) ? tensor : first, is_trained(tensor) ? first : tensor));
    }
  }
}

/// Calls `refuse` with the reason where the config has something that works with neither frozen
/// tensors nor adapters.
template <typename Refuse>
void check_company(const Config& config, const Refuse& refuse) {
  const OptimizerKind optimizer = config.optimizer.kind;
  if (sends_signs(optimizer) || optimizer == OptimizerKind::kLamb ||
      optimizer == OptimizerKind::kMuon) {
    refuse(
        "this optimizer.type goes through all of a model: take one that updates each number by "
        "itself, such as \"AdamW\"");
  }
  if (config.gradient_compression.kind != CompressionKind::kNone) {
    refuse("gradient_compression goes through all of a model: write \"none\" for its kind");
  }
  if (config.offload.states != OffloadTo::kNone || config.offload.parameters != OffloadTo::kNone) {
    refuse(
        "with states or parameters offloaded, all of a model is trained: leave "
        "zero_optimization.offload_optimizer and offload_param out");
  }
}

/// Checks the modules that are trained whole beside adapters. The head of a model that scores is
/// drawn, so that it always is one, as PEFT has it where a sequence is classified.
void resolve_saved_modules(Config& config, Origins& origins) {
  const auto refuse = [&](const std::string& why) {
    throw_config_error(origins[kSaved], kSaved, why);
  };
  ModelSpec model = config.model;
  model.scores = model.scores || config.preferences.of_scores();
  std::vector<std::string>& saved = config.adapters.modules_to_save;
  if (model.scores && std::find(saved.begin(), saved.end(), kScoreModule) == saved.end()) {
    saved.emplace_back(kScoreModule);
    if (saved.size() == 1) origins[kSaved] = "derived: the head that scores is drawn";
  }
  const std::vector<std::string> tensors = trainable_tensors(model);
  const std::vector<AdaptedModule> linear = linear_modules(model);
  const bool tied = Architecture(model).tied_embeddings;
  for (const std::string& name : saved) {
    if (std::any_of(linear.begin(), linear.end(),
                    [&](const AdaptedModule& module) { return module.theirs.ends_with(name); })) {
      refuse(
          fmt::format("\"{}\" is a linear layer of the model's blocks: name it in "
                      "peft.target_modules, and it has an adapter",
                      name));
    }
    const TensorPatterns whole{tensors_of_modules(model, {name})};
    const bool is_table = whole.covers("embedding.token.weight");
    if (tied && (is_table || whole.patterns.empty())) {
      refuse(fmt::format(
          "\"{}\": {}", name,
          is_table ? "the model's embedding is its head as well, and PEFT would train a copy for "
                     "one of the two: leave it out"
                   : "the model has no such module of its own: leave it out"));
    }
    if (whole.patterns.empty()) {
      refuse(
          fmt::format("\"{}\" is no module of the model, such as embed_tokens, lm_head or the "
                      "norms in its author's names",
                      name));
    }
  }
  const TensorPatterns whole{tensors_of_modules(model, saved)};
  check_companions(
      tensors, [&](const std::string& tensor) { return whole.covers(tensor); }, refuse);
}

}  // namespace

void resolve_adapters(LoadedConfig& loaded, Origins& origins) {
  Config& config = loaded.config;
  if (config.adapters == AdapterConfig{}) return;
  const auto refuse = [&](const std::string& why) {
    throw_config_error(origins[kTargets], kTargets, why);
  };
  if (!config.adapters.enabled()) {
    throw_config_error(
        loaded.file, kTargets,
        "missing: what \"peft\" says is of adapters beside layers that it names, such "
        "as [\"q_proj\", \"v_proj\"], or \"all-linear\"");
  }
  const std::vector<AdaptedModule> modules = linear_modules(config.model);
  for (const std::string& target : config.adapters.target_modules) {
    if (!modules_named(modules, {target}).empty()) continue;
    std::vector<std::string> names;
    for (const AdaptedModule& module : modules) {
      names.push_back(module.theirs.substr(module.theirs.rfind('.') + 1));
    }
    refuse(fmt::format("\"{}\" is no linear layer of the model's blocks, which have {}", target,
                       fmt::join(names, ", ")));
  }
  if (!config.training.freeze.patterns.empty()) {
    refuse(
        "with adapters everything else is frozen but peft.modules_to_save: leave training.freeze "
        "out");
  }
  if (config.training.mlp_tile_tokens && !config.adapters.go_in_tiles()) {
    refuse(fmt::format(
        "with training.mlp_tile_tokens, feed-forwards go through their matrices tile by tile, "
        "which adapters with {} do not: leave either out",
        config.adapters.magnitudes ? "magnitudes" : "dropout"));
  }
  if (config.adapters.magnitudes && config.initial_weights.empty()) {
    throw_config_error(origins[kMagnitudes], kMagnitudes,
                       "magnitudes begin as those of the weights that adapters stand beside: name "
                       "these in model.initial_weights");
  }
  if (config.adapters.magnitudes && config.fp8.enabled) {
    throw_config_error(
        origins[kMagnitudes], kMagnitudes,
        "products in 8 bits have no magnitudes of rows: leave fp8 out, or write false");
  }
  check_company(config, refuse);
  resolve_saved_modules(config, origins);
}

void resolve_freezing(const LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  const TensorPatterns& frozen = config.training.freeze;
  if (frozen.patterns.empty()) return;
  const auto refuse = [&](const std::string& why) {
    throw_config_error(origins[kFreeze], kFreeze, why);
  };
  const std::vector<std::string> tensors = trainable_tensors(config.model);
  for (const std::string& pattern : frozen.patterns) {
    const TensorPatterns alone{{pattern}};
    if (std::none_of(tensors.begin(), tensors.end(),
                     [&](const std::string& tensor) { return alone.covers(tensor); })) {
      refuse(fmt::format("\"{}\" is the name of no tensor of the model; the nearest is \"{}\"",
                         pattern, *nearest_name(pattern, tensors, kAnyDistance)));
    }
  }
  if (std::all_of(tensors.begin(), tensors.end(),
                  [&](const std::string& tensor) { return frozen.covers(tensor); })) {
    refuse("covers every tensor of the model, so that nothing would be trained");
  }
  check_companions(
      tensors, [&](const std::string& tensor) { return !frozen.covers(tensor); }, refuse);
  check_company(config, refuse);
}

}  // namespace dstrain
