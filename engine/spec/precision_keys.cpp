// Number formats: what the model computes in, how a loss is scaled, what gradients are kept and
// sent as, and what the optimizer keeps.
#include "engine/spec/key_builders.h"

namespace dstrain {
namespace {

bool is_f16(const Config& c) {
  return c.precision == Precision::kF16;
}
bool is_bf16(const Config& c) {
  return c.precision == Precision::kBF16;
}
bool scales_dynamically(const Config& c) {
  return is_f16(c) && c.loss_scale.static_scale == 0.0;
}
bool forgives_overflows(const Config& c) {
  return scales_dynamically(c) && c.zero.stage > 0;
}

Key bf16_enabled() {
  Key key{.path = "bf16.enabled", .kind = KeyKind::kBool};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.config.precision = node.boolean ? Precision::kBF16 : Precision::kF32;
  };
  key.get = [](const Config& c) { return json_of(is_bf16(c)); };
  return also_called(key, {"bfloat16.enabled"});
}

/// Stands after bf16.enabled in the table.
Key f16_enabled() {
  Key key{.path = "fp16.enabled", .kind = KeyKind::kBool};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    if (!node.boolean) return;
    if (is_bf16(draft.config)) {
      throw_config_error(node.where, "fp16.enabled",
                         "bf16.enabled is true as well: a model computes in one of them, set the "
                         "other to false");
    }
    draft.config.precision = Precision::kF16;
  };
  key.get = [](const Config& c) { return json_of(is_f16(c)); };
  return key;
}

/// Honoured where `on`; told to be without effect in other fp16 runs; silent where fp16 is off.
void add_loss_scale_key(std::vector<Key>& keys,
                        const Key& key,
                        const KeyCondition& on,
                        const std::string& why_not) {
  const auto off = [on](const Config& c) { return is_f16(c) && !on(c); };
  const auto without_f16 = [](const Config& c) { return !is_f16(c); };
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
  add_loss_scale_key(keys,
                     field(
                         "fp16.loss_scale", between(0, kLargest),
                         [](auto& c) -> auto& { return c.loss_scale.static_scale; }),
                     is_f16, is_static);
  add_loss_scale_key(keys,
                     field(
                         "fp16.initial_scale_power", between(0, 127),
                         [](auto& c) -> auto& { return c.loss_scale.initial_scale_power; }),
                     scales_dynamically, is_static);
  add_loss_scale_key(keys,
                     field(
                         "fp16.loss_scale_window", between(1, kMostSteps),
                         [](auto& c) -> auto& { return c.loss_scale.window; }),
                     scales_dynamically, is_static);
  add_loss_scale_key(keys,
                     field(
                         "fp16.hysteresis", between(1, kMostSteps),
                         [](auto& c) -> auto& { return c.loss_scale.hysteresis; }),
                     forgives_overflows, no_hysteresis);
  add_loss_scale_key(keys,
                     field(
                         "fp16.consecutive_hysteresis", {},
                         [](auto& c) -> auto& { return c.loss_scale.consecutive_hysteresis; }),
                     forgives_overflows, no_hysteresis);
  Key min_scale = field(
      "fp16.min_loss_scale", between(1, kLargest),
      [](auto& c) -> auto& { return c.loss_scale.min_scale; });
  min_scale.kind = KeyKind::kInteger;  // as in DeepSpeed, though a double holds it
  add_loss_scale_key(keys, min_scale, scales_dynamically, is_static);
}

/// Honoured with bf16; elsewhere false is all that it can say.
void add_bf16_format(std::vector<Key>& keys, const std::string& name, Key key) {
  key = also_called(std::move(key), {"bfloat16." + name});
  Key elsewhere = also_called(
      refused(key.path, {"false"}, "it is a format of bf16 training: set bf16.enabled as well"),
      key.aliases);
  keys.push_back(only_for(key, "bf16", is_bf16));
  keys.push_back(
      only_for(elsewhere, "runs without bf16", [](const Config& c) { return !is_bf16(c); }));
}

/// Honoured with fp8; elsewhere without effect.
void add_fp8(std::vector<Key>& keys) {
  constexpr double kMostSteps = 1e9;
  constexpr double kMostMargin = 20;  // of 30 powers of two between E5M2's normal numbers
  const auto is_on = [](const Config& c) { return c.fp8.enabled; };
  keys.push_back(field(
      "fp8.enabled", {}, [](auto& c) -> auto& { return c.fp8.enabled; }));
  for (const Key& key : {field(
                             "fp8.amax_history_len", between(1, kMostSteps),
                             [](auto& c) -> auto& { return c.fp8.amax_history; }),
                         field(
                             "fp8.margin", between(0, kMostMargin),
                             [](auto& c) -> auto& { return c.fp8.margin; })}) {
    keys.push_back(only_for(key, "fp8", is_on));
    keys.push_back(only_for(no_effect(key.path, key.kind, "fp8.enabled is false"),
                            "runs without fp8", [=](const Config& c) { return !is_on(c); }));
  }
}

template <typename Access>
Key dtype(std::string path, Access access) {
  return null_is_default(auto_is_default(
      choice(std::move(path),
             std::vector<std::pair<std::string, DType>>{
                 {"fp32", DType::kF32}, {"fp16", DType::kF16}, {"bf16", DType::kBF16}},
             access)));
}

}  // namespace

std::vector<Key> precision_keys() {
  std::vector<Key> keys = {bf16_enabled(), f16_enabled()};
  add_loss_scale(keys);
  add_bf16_format(keys, "bf16_master_weights_and_grads",
                  field(
                      "bf16.bf16_master_weights_and_grads", {},
                      [](auto& c) -> auto& { return c.formats.bf16_master; }));
  add_bf16_format(keys, "bf16_optimizer_states",
                  field(
                      "bf16.bf16_optimizer_states", {},
                      [](auto& c) -> auto& { return c.formats.bf16_optimizer_states; }));
  add_fp8(keys);
  const char* const kOfPrecision = "\"bf16\" and \"fp16\" decide it";
  const std::vector<Key> rest = {
      dtype(
          "data_types.grad_accum_dtype", [](auto& c) -> auto& { return c.formats.grad_accum; }),
      dtype(
          "communication_data_type", [](auto& c) -> auto& { return c.formats.communication; }),
      field(
          "prescale_gradients", {}, [](auto& c) -> auto& { return c.formats.prescale_gradients; }),
      field(
          "gradient_predivide_factor", above(0),
          [](auto& c) -> auto& { return c.formats.gradient_predivide_factor; }),
      no_effect("fp16.auto_cast", KeyKind::kBool,
                "the model takes tokens: there is no input to cast"),
      refused("fp16.fp16_master_weights_and_grads", {"false"},
              "updates would be lost to rounding in fp16 master weights: they are fp32 (bf16 has "
              "bf16_master_weights_and_grads, with stochastic rounding)"),
      also_called(no_effect("bf16.immediate_grad_update", KeyKind::kBool,
                            "gradients are always added up as soon as they are there"),
                  {"bfloat16.immediate_grad_update"}),
      also_called(no_effect("bf16.check_grad_overflow", KeyKind::kBool,
                            "every step's gradients are checked, in every stage and precision: a "
                            "step where they are not finite is skipped"),
                  {"bfloat16.check_grad_overflow"}),
      no_effect("data_types.param_dtype", KeyKind::kString, kOfPrecision),
      no_effect("data_types.buffer_dtype", KeyKind::kString, kOfPrecision),
      refused_if_enabled("amp", "Apex is not supported: use \"bf16\" or \"fp16\""),
      refused_if_enabled("torch_autocast", "there is no torch here: use \"bf16\" or \"fp16\""),
  };
  keys.insert(keys.end(), rest.begin(), rest.end());
  return keys;
}

}  // namespace dstrain
