// Number formats: those that the model computes in, that gradients are kept and sent in, and that
// the optimizer keeps, and the scaling of the loss.
#include "engine/config/key_builders.h"
#include "engine/config/zero_stage.h"

namespace dstrain {
namespace {

constexpr KeyBlock kLossScale{"fp16.", &Config::loss_scale};
constexpr KeyBlock kFp8{"fp8.", &Config::fp8};
constexpr KeyBlock kFormats{"", &Config::formats};

bool is_f16(const Config& c) {
  return c.precision == Precision::kF16;
}
bool is_bf16(const Config& c) {
  return c.precision == Precision::kBF16;
}
// While "auto" is open, the keys of each precision that it may become are read.
bool may_be_f16(const Config& c) {
  return is_f16(c) || c.open_precision.f16;
}
bool may_be_bf16(const Config& c) {
  return is_bf16(c) || c.open_precision.bf16;
}
bool scales_dynamically(const Config& c) {
  return may_be_f16(c) && c.loss_scale.static_scale == 0.0;
}
bool forgives_overflows(const Config& c) {
  return scales_dynamically(c) && cuts_of(c.zero.stage).states;
}

std::string enabled_json(bool open, bool on) {
  return open ? "\"auto\"" : json_of(on);
}

Key bf16_enabled() {
  Key key{.path = "bf16.enabled", .kind = KeyKind::kBool};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.config.open_precision.bf16 = node.is_text("auto");
    draft.config.precision = node.boolean ? Precision::kBF16 : Precision::kF32;
    draft.bf16_is_off = !node.boolean && !node.is_text("auto");
  };
  key.get = [](const Config& c) { return enabled_json(c.open_precision.bf16, is_bf16(c)); };
  return also_called(auto_is_value(key), {"bfloat16.enabled"});
}

/// This key comes after bf16.enabled in the table. Files that leave one of the two to the trainer's
/// flags and do not mention the other mean some 16-bit format, if any.
Key f16_enabled() {
  Key key{.path = "fp16.enabled", .kind = KeyKind::kBool};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    Config& config = draft.config;
    if (node.is_text("auto")) {
      const bool decided = is_bf16(config);
      if (decided) draft.derived["fp16.enabled"] = "bf16.enabled is true";
      config.open_precision = {.bf16 = !decided && !draft.bf16_is_off, .f16 = !decided};
      return;
    }
    if (!node.boolean) return;
    if (is_bf16(config)) {
      throw_config_error(node.where, "fp16.enabled",
                         "bf16.enabled is true as well: a model computes in one of them; set the "
                         "other to false");
    }
    if (config.open_precision.bf16) draft.derived["bf16.enabled"] = "fp16.enabled is true";
    config.precision = Precision::kF16;
    config.open_precision = {};
  };
  key.get = [](const Config& c) { return enabled_json(c.open_precision.f16, is_f16(c)); };
  return auto_is_value(key);
}

/// GPT-NeoX's way to say bf16. The key comes after fp16.enabled in the table.
Key f16_type() {
  Key key = silent("fp16.type", KeyKind::kString);
  key.choices = {"fp16", "bf16"};
  key.synonyms = {{"float16", "fp16"}, {"bfloat16", "bf16"}};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    Config& config = draft.config;
    if (node.text != "bf16" || !may_be_f16(config)) return;
    draft.derived[is_f16(config) ? "bf16.enabled" : "fp16.enabled"] =
        "fp16.type, GPT-NeoX's name for it";
    if (is_f16(config)) config.precision = Precision::kBF16;
    config.open_precision.f16 = false;
  };
  return key;
}

/// The key is honoured where `on`, is reported as without effect in other fp16 runs, and is silent
/// where fp16 is off or may yet turn out to be.
void add_loss_scale_key(std::vector<Key>& keys,
                        const Key& key,
                        const KeyCondition& on,
                        const std::string& why_not) {
  const auto off = [on](const Config& c) { return is_f16(c) && !on(c); };
  const auto without_f16 = [on](const Config& c) { return !is_f16(c) && !on(c); };
  keys.push_back(only_for(key, "fp16", on));
  keys.push_back(only_for(no_effect(key.path, key.kind, why_not), "fp16", off));
  keys.push_back(only_for(silent(key.path), "runs without fp16", without_f16));
}

void add_loss_scale(std::vector<Key>& keys) {
  constexpr double kLargest = 0x1p127;  // what a float can hold
  constexpr double kMostSteps = 1e15;
  const std::string is_static = "the loss scale is static (fp16.loss_scale)";
  const std::string no_hysteresis =
      "only a dynamic scale under ZeRO stages 1 to 3 forgives overflows, as in DeepSpeed";
  add_loss_scale_key(
      keys, kLossScale.field("loss_scale", between(0, kLargest), &LossScaleConfig::static_scale),
      may_be_f16, is_static);
  add_loss_scale_key(keys,
                     kLossScale.field("initial_scale_power", between(0, 127),
                                      &LossScaleConfig::initial_scale_power),
                     scales_dynamically, is_static);
  add_loss_scale_key(
      keys, kLossScale.field("loss_scale_window", between(1, kMostSteps), &LossScaleConfig::window),
      scales_dynamically, is_static);
  add_loss_scale_key(
      keys, kLossScale.field("hysteresis", between(1, kMostSteps), &LossScaleConfig::hysteresis),
      forgives_overflows, no_hysteresis);
  add_loss_scale_key(
      keys,
      kLossScale.field("consecutive_hysteresis", {}, &LossScaleConfig::consecutive_hysteresis),
      forgives_overflows, no_hysteresis);
  add_loss_scale_key(
      keys,
      kLossScale.field("min_loss_scale", {.low = 0, .high = kLargest, .low_open = true},
                       &LossScaleConfig::min_scale),
      scales_dynamically, is_static);
}

/// The key is honoured with bf16; elsewhere it may only be false.
void add_bf16_format(std::vector<Key>& keys, const std::string& name, Key key) {
  key = also_called(std::move(key), {"bfloat16." + name});
  Key elsewhere = also_called(
      refused(key.path, {"false"}, "it is a format of bf16 training: set bf16.enabled as well"),
      key.aliases);
  keys.push_back(only_for(key, "bf16", may_be_bf16));
  keys.push_back(
      only_for(elsewhere, "runs without bf16", [](const Config& c) { return !may_be_bf16(c); }));
}

/// The keys are honoured with fp8, and have no effect elsewhere.
void add_fp8(std::vector<Key>& keys) {
  constexpr double kMostSteps = 1e9;
  constexpr double kMostMargin = 20;  // of 30 powers of two between E5M2's normal numbers
  const auto is_on = [](const Config& c) { return c.fp8.enabled; };
  keys.push_back(kFp8.field("enabled", {}, &Fp8Config::enabled));
  for (const Key& key :
       {kFp8.field("amax_history_len", between(1, kMostSteps), &Fp8Config::amax_history),
        kFp8.field("margin", between(0, kMostMargin), &Fp8Config::margin)}) {
    keys.push_back(only_for(key, "fp8", is_on));
    keys.push_back(only_for(no_effect(key.path, key.kind, "fp8.enabled is false"),
                            "runs without fp8", [=](const Config& c) { return !is_on(c); }));
  }
}

Key dtype(const std::string& path, std::optional<DType> FormatConfig::*member) {
  Key key = kFormats.choice(
      path, {{"fp32", DType::kF32}, {"fp16", DType::kF16}, {"bf16", DType::kBF16}}, member);
  key.synonyms = {{"float32", "fp32"}, {"float", "fp32"},    {"float16", "fp16"},
                  {"half", "fp16"},    {"bfloat16", "bf16"}, {"bfp16", "bf16"}};
  return key;
}

/// Adds fp16's settings that are often copied into the other block.
void add_settings_of_the_other(std::vector<Key>& keys) {
  for (const char* name : {"auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window",
                           "hysteresis", "consecutive_hysteresis", "min_loss_scale", "opt_level"}) {
    keys.push_back(also_called(no_effect(fmt::format("bf16.{}", name), KeyKind::kAny,
                                         "bf16 has the range of fp32 and needs no loss scale"),
                               {fmt::format("bfloat16.{}", name)}));
  }
  for (const char* name : {"opt_level", "fp16", "fp16_scale_tolerance"}) {
    keys.push_back(no_effect(fmt::format("fp16.{}", name), KeyKind::kAny,
                             "DeepSpeed's fp16 is always fp16 with fp32 master weights"));
  }
}

}  // namespace

std::vector<Key> precision_keys() {
  std::vector<Key> keys = {bf16_enabled(), f16_enabled(), f16_type()};
  for (const Key& key : automatic_cast_keys()) {
    keys.push_back(key);
  }
  add_loss_scale(keys);
  add_bf16_format(
      keys, "bf16_master_weights_and_grads",
      kFormats.field("bf16.bf16_master_weights_and_grads", {}, &FormatConfig::bf16_master));
  add_bf16_format(
      keys, "bf16_optimizer_states",
      kFormats.field("bf16.bf16_optimizer_states", {}, &FormatConfig::bf16_optimizer_states));
  add_fp8(keys);
  const char* const kOfPrecision = "\"bf16\" and \"fp16\" decide it";
  const std::vector<Key> rest = {
      dtype("data_types.grad_accum_dtype", &FormatConfig::grad_accum),
      dtype("communication_data_type", &FormatConfig::communication),
      kFormats.field("prescale_gradients", {}, &FormatConfig::prescale_gradients),
      kFormats.field("gradient_predivide_factor", above(0),
                     &FormatConfig::gradient_predivide_factor),
      no_effect("fp16.auto_cast", KeyKind::kBool,
                "the model takes tokens: there is no input to cast"),
      refused("fp16.fp16_master_weights_and_grads", {"false"},
              "updates would be lost to rounding in fp16 master weights: they are fp32 (bf16 has "
              "bf16_master_weights_and_grads, with stochastic rounding)"),
      also_called(no_effect("bf16.immediate_grad_update", KeyKind::kBool,
                            "gradients are always added up as soon as they are computed"),
                  {"bfloat16.immediate_grad_update"}),
      also_called(no_effect("bf16.check_grad_overflow", KeyKind::kBool,
                            "every step's gradients are checked, in every stage and precision: a "
                            "step where they are not finite is skipped"),
                  {"bfloat16.check_grad_overflow"}),
      no_effect("data_types.param_dtype", KeyKind::kString, kOfPrecision),
      no_effect("data_types.buffer_dtype", KeyKind::kString, kOfPrecision),
  };
  keys.insert(keys.end(), rest.begin(), rest.end());
  add_settings_of_the_other(keys);
  return keys;
}

}  // namespace dstrain
