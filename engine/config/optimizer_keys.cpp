// "optimizer": its type and the parameters of each type, with DeepSpeed 0.19's names and defaults
// (torch's for SGD, Adagrad and RMSprop, which DeepSpeed takes from there).
#include <algorithm>

#include "engine/config/did_you_mean.h"
#include "engine/config/key_builders.h"
#include "engine/config/lax_values.h"

namespace dstrain {
namespace {

constexpr KeyBlock kOptimizer{"optimizer.params.", &Config::optimizer};

using enum OptimizerKind;

const char* const kWorking =
    "write \"AdamW\", \"Adam\", \"SGD\", \"Adagrad\", \"RMSprop\", \"Lion\", \"Lamb\", \"Muon\", "
    "\"OneBitAdam\", \"ZeroOneAdam\" or \"OneBitLamb\"";

struct NamedOptimizer {
  const char* name;
  OptimizerConfig defaults;
};

/// kAdamW under two names: adam_w_mode, true by default, makes "Adam" mean AdamW.
const std::vector<NamedOptimizer>& optimizers() {
  static const std::vector<NamedOptimizer> all = {
      {"AdamW", {.kind = kAdamW}},
      {"Adam", {.kind = kAdamW}},
      {"SGD", {.kind = kSgd}},
      {"Adagrad", {.kind = kAdagrad, .learning_rate = 1e-2, .epsilon = 1e-10}},
      {"RMSprop", {.kind = kRmsprop, .learning_rate = 1e-2}},
      {"Lion", {.kind = kLion}},
      {"Lamb", {.kind = kLamb}},
      {"Muon",
       {.kind = kMuon,
        .learning_rate = 0.02,
        .beta2 = 0.95,
        .epsilon = 1e-10,
        .momentum = 0.95,
        .nesterov = true}},
      {"OneBitAdam", {.kind = kOneBitAdam, .bias_correction = false}},
      {"ZeroOneAdam", {.kind = kZeroOneAdam, .bias_correction = false}},
      {"OneBitLamb", {.kind = kOneBitLamb, .bias_correction = false}}};
  return all;
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const char* other) { return edit_distance(name, other) == 0; });
}

/// The reason why dstrain lacks an optimizer that DeepSpeed has.
std::string reason_against(const std::string& name) {
  if (is_one_of(name, {"MuAdam", "MuAdamW", "MuSGD"})) {
    return fmt::format(
        "the optimizers of the mup package need its base shapes, which are not in dstrain; {}",
        kWorking);
  }
  std::vector<std::string> names;
  for (const NamedOptimizer& known : optimizers()) {
    names.emplace_back(known.name);
  }
  const auto near = nearest_name(name, names, typing_error_limit(name));
  return fmt::format("there is no such optimizer{}; {}",
                     near ? fmt::format(", did you mean \"{}\"?", *near) : "", kWorking);
}

/// Names are matched as DeepSpeed does, whatever their case.
Key optimizer_type() {
  Key key{.path = "optimizer.type", .kind = KeyKind::kString};
  for (const NamedOptimizer& optimizer : optimizers())
    key.names_in_any_case.emplace_back(optimizer.name);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    for (const NamedOptimizer& optimizer : optimizers()) {
      if (edit_distance(node.text, optimizer.name) != 0) continue;  // ignores letter case
      draft.config.optimizer = optimizer.defaults;
      draft.optimizer_type = optimizer.name;
      return;
    }
    throw_config_error(
        node.where, "optimizer.type",
        fmt::format("{} is refused: {}", json_quote(node.text), reason_against(node.text)));
  };
  key.get = [](const Config& c) -> std::string {
    if (c.optimizer.kind == kAdam) return "\"Adam\"";
    for (const NamedOptimizer& optimizer : optimizers()) {
      if (optimizer.defaults.kind == c.optimizer.kind) return json_quote(optimizer.name);
    }
    return "";
  };
  return key;
}

/// Only type "Adam" heeds it.
Key adam_w_mode() {
  Key key{.path = "optimizer.params.adam_w_mode", .kind = KeyKind::kBool};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.adam_w_mode_is_false = !node.boolean;
    if (draft.optimizer_type == "Adam" && !node.boolean) draft.config.optimizer.kind = kAdam;
  };
  key.get = [](const Config& c) {
    return c.optimizer.kind == kAdam ? std::string("false") : std::string();
  };
  return key;
}

Key torch_adam() {
  Key key = no_effect("optimizer.params.torch_adam", KeyKind::kBool,
                      "the maths is the same; only weight_decay's default becomes torch's");
  key.accepted = {"false"};
  key.set = [](ConfigDraft& draft, const JsonNode& node) { draft.torch_adam = node.boolean; };
  return key;
}

Key decay() {
  Key key =
      kOptimizer.choice("decay", {{"matrices", DecayRule::kMatrices}, {"all", DecayRule::kAll}},
                        &OptimizerConfig::decay);
  key.note =
      "Parameters that weight_decay applies to: \"matrices\", which includes embeddings but not "
      "norms "
      "and "
      "biases, as in Hugging Face's Trainer; or \"all\", as DeepSpeed decays";
  key.default_origin = "default: norms and biases do not decay; DeepSpeed's rule is \"all\"";
  return key;
}

Key betas() {
  Key key{.path = "optimizer.params.betas", .kind = KeyKind::kAny};
  key.shape = R"({"type": "array", "minItems": 2, "maxItems": 2,
                  "items": {"type": "number", "minimum": 0, "exclusiveMaximum": 1}})";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    const bool pair = node.is(JsonNode::Kind::kArray) && node.items.size() == 2;
    for (std::size_t i = 0; i < 2; ++i) {
      const auto beta = pair ? number_meant(node.items[i]) : std::nullopt;
      if (!beta || !(*beta >= 0.0 && *beta < 1.0)) {
        throw_config_error(
            node.where, "optimizer.params.betas",
            fmt::format("must be two numbers in [0, 1), such as [0.9, 0.95]; found {}",
                        node.dump()));
      }
      (i == 0 ? draft.config.optimizer.beta1 : draft.config.optimizer.beta2) = *beta;
    }
  };
  key.get = [](const Config& c) {
    return fmt::format("[{}, {}]", c.optimizer.beta1, c.optimizer.beta2);
  };
  return key;
}

KeyCondition any_of(std::vector<OptimizerKind> kinds) {
  return [kinds](const Config& c) {
    return std::find(kinds.begin(), kinds.end(), c.optimizer.kind) != kinds.end();
  };
}

Key for_adams(Key key) {
  return only_for(std::move(key), "Adam and AdamW", any_of({kAdamW, kAdam}));
}
Key for_sgd(Key key) {
  return only_for(std::move(key), "SGD", any_of({kSgd}));
}
Key for_rmsprop(Key key) {
  return only_for(std::move(key), "RMSprop", any_of({kRmsprop}));
}
Key for_sgd_and_muon(Key key) {
  return only_for(std::move(key), "SGD and Muon", any_of({kSgd, kMuon}));
}
Key for_adagrad(Key key) {
  return only_for(std::move(key), "Adagrad", any_of({kAdagrad}));
}
Key for_lambs(Key key) {
  return only_for(std::move(key), "Lamb and OneBitLamb", any_of({kLamb, kOneBitLamb}));
}
Key for_one_bit_lamb(Key key) {
  return only_for(std::move(key), "OneBitLamb", any_of({kOneBitLamb}));
}
Key for_zero_one_adam(Key key) {
  return only_for(std::move(key), "ZeroOneAdam", any_of({kZeroOneAdam}));
}
Key for_muon(Key key) {
  return only_for(std::move(key), "Muon", any_of({kMuon}));
}

}  // namespace

std::vector<Key> optimizer_keys() {
  std::vector<Key> keys = {
      optimizer_type(),
      for_adams(adam_w_mode()),
      auto_is(kOptimizer.field("lr", above(0), &OptimizerConfig::learning_rate), "5e-5"),
      only_for(
          auto_is(betas(), "[0.9, 0.999]"),
          "Adam, AdamW, Lion, Lamb, Muon and the 1-bit optimizers",
          any_of({kAdamW, kAdam, kLion, kLamb, kMuon, kOneBitAdam, kZeroOneAdam, kOneBitLamb})),
      only_for(auto_is(kOptimizer.field("eps", above(0), &OptimizerConfig::epsilon), "1e-8"),
               "Adam, AdamW, Adagrad, RMSprop, Lamb, Muon and the 1-bit optimizers",
               any_of({kAdamW, kAdam, kAdagrad, kRmsprop, kLamb, kMuon, kOneBitAdam, kZeroOneAdam,
                       kOneBitLamb})),
      auto_is(kOptimizer.field("weight_decay", at_least(0), &OptimizerConfig::weight_decay), "0"),
      decay(),
      only_for(
          also_called(kOptimizer.field("bias_correction", {}, &OptimizerConfig::bias_correction),
                      {"optimizer.params.correct_bias"}),
          "Adam, AdamW, Lamb and the 1-bit optimizers",
          any_of({kAdamW, kAdam, kLamb, kOneBitAdam, kZeroOneAdam, kOneBitLamb})),
      only_for(kOptimizer.field("momentum", fraction_below_one(), &OptimizerConfig::momentum),
               "SGD, RMSprop and Muon", any_of({kSgd, kRmsprop, kMuon})),
      for_rmsprop(kOptimizer.field("alpha", fraction_below_one(), &OptimizerConfig::alpha)),
      for_rmsprop(kOptimizer.field("centered", {}, &OptimizerConfig::centered)),
      for_sgd(kOptimizer.field("dampening", {}, &OptimizerConfig::dampening)),
      for_sgd_and_muon(kOptimizer.field("nesterov", {}, &OptimizerConfig::nesterov)),
      for_lambs(kOptimizer.field("max_coeff", above(0), &OptimizerConfig::max_coeff)),
      for_lambs(kOptimizer.field("min_coeff", at_least(0), &OptimizerConfig::min_coeff)),
      for_lambs(kOptimizer.field("eps_inside_sqrt", {}, &OptimizerConfig::eps_inside_sqrt)),
      only_for(kOptimizer.field("freeze_step", at_least(1), &OptimizerConfig::freeze_step),
               "OneBitAdam and OneBitLamb", any_of({kOneBitAdam, kOneBitLamb})),
      for_zero_one_adam(
          kOptimizer.field("var_freeze_step", at_least(1), &OptimizerConfig::freeze_step)),
      for_zero_one_adam(
          kOptimizer.field("var_update_scaler", at_least(1), &OptimizerConfig::var_update_scaler)),
      for_zero_one_adam(
          kOptimizer.field("local_step_scaler", at_least(1), &OptimizerConfig::local_step_scaler)),
      for_zero_one_adam(kOptimizer.field("local_step_clipper", at_least(1),
                                         &OptimizerConfig::local_step_clipper)),
      for_one_bit_lamb(
          kOptimizer.field("coeff_beta", fraction_below_one(), &OptimizerConfig::coeff_beta)),
      for_one_bit_lamb(kOptimizer.field("factor_max", above(0), &OptimizerConfig::factor_max)),
      for_one_bit_lamb(kOptimizer.field("factor_min", above(0), &OptimizerConfig::factor_min)),
      for_one_bit_lamb(kOptimizer.field("factor_threshold", fraction_below_one(),
                                        &OptimizerConfig::factor_threshold)),
      for_muon(kOptimizer.field("muon_lr", above(0), &OptimizerConfig::muon_lr)),
      for_muon(kOptimizer.field("adam_lr", above(0), &OptimizerConfig::adam_lr)),
      for_muon(refused("optimizer.params.ns_method", {"\"standard\""},
                       "the Newton-Schulz iteration is done as published: write \"standard\" or "
                       "leave it out (DeepSpeed's \"gram\" rearranges the same sums)")),
      for_adams(torch_adam()),
      no_effect("optimizer.params.fp32_optimizer_states", KeyKind::kBool,
                "bf16.bf16_optimizer_states decides it"),
      for_adagrad(refused("optimizer.params.lr_decay", {"0"},
                          "the \"scheduler\" block lowers the learning rate")),
      for_adagrad(refused("optimizer.params.initial_accumulator_value", {"0"},
                          "Adagrad's sums begin at 0")),
      refused("optimizer.params.maximize", {"false"}, "a loss is minimised"),
      refused("optimizer.params.amsgrad", {"false"},
              "AMSGrad is not supported, nor is it by DeepSpeed's fused Adam"),
      no_effect("optimizer.legacy_fusion", KeyKind::kBool, "a switch of DeepSpeed's fused kernels"),
      no_effect("zero_allow_untested_optimizer", KeyKind::kBool,
                "every optimizer works with every stage"),
      no_effect("zero_force_ds_cpu_optimizer", KeyKind::kBool,
                "it concerns torch's optimizers, of which there are none here"),
  };
  for (const char* name : {"cuda_aware", "comm_backend_name"}) {
    keys.push_back(no_effect(fmt::format("optimizer.params.{}", name), KeyKind::kAny,
                             "signs travel as everything else does, over NCCL or TCP"));
  }
  for (const char* name : {"fused", "foreach", "capturable", "differentiable", "set_grad_none"}) {
    keys.push_back(no_effect(fmt::format("optimizer.params.{}", name), KeyKind::kAny,
                             "it only says how torch computes the same result"));
  }
  return keys;
}

}  // namespace dstrain
