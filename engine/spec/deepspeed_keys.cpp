// DeepSpeed's keys that dstrain honours, with DeepSpeed 0.19's meaning and defaults.
#include "engine/spec/key_builders.h"

namespace dstrain {
namespace {

constexpr double kMostSequences = 1e9;  // keeps products of batch sizes far from overflow
constexpr double kMostSteps = 1e15;

bool has_scheduler(const Config& c) {
  return c.scheduler.kind != SchedulerKind::kConstant;
}
bool is_cosine(const Config& c) {
  return c.scheduler.kind == SchedulerKind::kWarmupCosine;
}
bool has_total(const Config& c) {
  return is_cosine(c) || c.scheduler.kind == SchedulerKind::kWarmupDecay;
}
bool has_peak(const Config& c) {
  return has_scheduler(c) && !is_cosine(c);
}

Key bf16_enabled() {
  Key key{.path = "bf16.enabled", .kind = KeyKind::kBool};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.config.precision = node.boolean ? Precision::kBF16 : Precision::kF32;
  };
  key.get = [](const Config& c) { return json_of(c.precision == Precision::kBF16); };
  return key;
}

Key zero_stage() {
  Key key = refused("zero_optimization.stage", {"0", "\"auto\""},
                    "ZeRO stages 1 to 3 are not in this version yet: write 0 (data parallelism)");
  key.get = [](const Config& c) { return json_of(c.zero.stage); };
  return key;
}

Key betas() {
  Key key{.path = "optimizer.params.betas", .kind = KeyKind::kAny};
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    const bool pair = node.is(JsonNode::Kind::kArray) && node.items.size() == 2;
    for (std::size_t i = 0; i < 2; ++i) {
      if (!pair || !node.items[i].is(JsonNode::Kind::kNumber) || node.items[i].number < 0.0 ||
          node.items[i].number >= 1.0) {
        throw_config_error(
            node.where, "optimizer.params.betas",
            fmt::format("must be two numbers in [0, 1), such as [0.9, 0.95]; found {}",
                        node.dump()));
      }
    }
    draft.config.optimizer.beta1 = node.items[0].number;
    draft.config.optimizer.beta2 = node.items[1].number;
  };
  key.get = [](const Config& c) {
    return fmt::format("[{}, {}]", c.optimizer.beta1, c.optimizer.beta2);
  };
  return key;
}

/// Names are matched as DeepSpeed does, whatever their case.
Key optimizer_type() {
  Key key{.path = "optimizer.type", .kind = KeyKind::kString, .status = KeyStatus::kRefused};
  key.accepted = {"\"AdamW\"", "\"Adam\""};
  key.note = "AdamW is the one optimizer of this version: write \"AdamW\"";
  key.missing =
      "write for example \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 6e-4}}";
  key.get = [](const Config& /*c*/) { return std::string("\"AdamW\""); };
  return key;
}

Key warmup_max_lr() {
  Key key = field(
      "scheduler.params.warmup_max_lr", above(0),
      [](auto& c) -> auto& { return c.scheduler.warmup_max_lr; });
  key.auto_rule = AutoRule::kValue;  // the optimizer's lr, also where absent means something else
  const auto set_number = key.set;
  key.set = [set_number](ConfigDraft& draft, const JsonNode& node) {
    if (node.is_text("auto")) {
      draft.warmup_max_lr_is_auto = true;
    } else {
      set_number(draft, node);
    }
  };
  return only_for(null_is_default(key), "WarmupLR and WarmupDecayLR", has_peak);
}

Key scheduler_type() {
  Key key = choice(
      "scheduler.type",
      std::vector<std::pair<std::string, SchedulerKind>>{
          {"WarmupLR", SchedulerKind::kWarmup},
          {"WarmupDecayLR", SchedulerKind::kWarmupDecay},
          {"WarmupCosineLR", SchedulerKind::kWarmupCosine}},
      [](auto& c) -> auto& { return c.scheduler.kind; });
  key.note = "LRRangeTest and OneCycle are not in this version yet";
  return key;
}

}  // namespace

std::vector<Key> deepspeed_keys() {
  return {
      auto_is_default(field(
          "train_batch_size", between(1, kMostSequences),
          [](auto& c) -> auto& { return c.batch.train_batch_size; })),
      auto_is_default(field(
          "train_micro_batch_size_per_gpu", between(1, kMostSequences),
          [](auto& c) -> auto& { return c.batch.micro_batch_size; })),
      auto_is_default(field(
          "gradient_accumulation_steps", between(1, kMostSequences),
          [](auto& c) -> auto& { return c.batch.gradient_accumulation_steps; })),
      default_from(auto_is_default(field(
                       "gradient_clipping", at_least(0),
                       [](auto& c) -> auto& { return c.gradient_clipping; })),
                   "default (DeepSpeed 0.19; releases before mid-2026 did not clip)"),
      also_called(bf16_enabled(), {"bfloat16.enabled"}),
      refused("zero_optimization", {"false"},
              "the short form is DeepSpeed's old one: write {\"stage\": 0}"),
      zero_stage(),
      null_is_default(auto_is_default(field(
          "zero_optimization.overlap_comm", {},
          [](auto& c) -> auto& { return c.zero.overlap_comm; }))),

      optimizer_type(),
      field(
          "optimizer.params.lr", above(0),
          [](auto& c) -> auto& { return c.optimizer.learning_rate; }),
      betas(),
      field(
          "optimizer.params.eps", above(0), [](auto& c) -> auto& { return c.optimizer.epsilon; }),
      field(
          "optimizer.params.weight_decay", at_least(0),
          [](auto& c) -> auto& { return c.optimizer.weight_decay; }),
      field(
          "optimizer.params.bias_correction", {},
          [](auto& c) -> auto& { return c.optimizer.bias_correction; }),
      refused("optimizer.params.adam_w_mode", {"true"},
              "Adam with L2 decay is not in this version yet: leave it out for decoupled decay"),
      refused(
          "optimizer.params.torch_adam", {"false"},
          "dstrain has one AdamW; leave it out, and give weight_decay (torch's default is 0.01)"),
      refused("optimizer.params.amsgrad", {"false"},
              "AMSGrad is not supported, nor is it by "
              "DeepSpeed's fused Adam"),
      refused("optimizer.params.max_grad_norm", {},
              "belongs at the top level as \"gradient_clipping\""),
      no_effect("optimizer.legacy_fusion", KeyKind::kBool, "a switch of DeepSpeed's fused kernels"),

      scheduler_type(),
      only_for(auto_is_default(field(
                   "scheduler.params.total_num_steps", between(1, kMostSteps),
                   [](auto& c) -> auto& { return c.scheduler.total_num_steps; })),
               "WarmupDecayLR and WarmupCosineLR", has_total),
      only_for(field(
                   "scheduler.params.warmup_num_steps", between(1, kMostSteps),
                   [](auto& c) -> auto& { return c.scheduler.warmup_num_steps; }),
               "the warm-up schedulers", has_scheduler),
      only_for(choice(
                   "scheduler.params.warmup_type",
                   std::vector<std::pair<std::string, WarmupType>>{{"log", WarmupType::kLog},
                                                                   {"linear", WarmupType::kLinear}},
                   [](auto& c) -> auto& { return c.scheduler.warmup_type; }),
               "the warm-up schedulers", has_scheduler),
      only_for(auto_is_default(field(
                   "scheduler.params.warmup_min_lr", at_least(0),
                   [](auto& c) -> auto& { return c.scheduler.warmup_min_lr; })),
               "WarmupLR and WarmupDecayLR", has_peak),
      warmup_max_lr(),
      only_for(field(
                   "scheduler.params.warmup_min_ratio", between(0, 1),
                   [](auto& c) -> auto& { return c.scheduler.warmup_min_ratio; }),
               "WarmupCosineLR", is_cosine),
      only_for(field(
                   "scheduler.params.cos_min_ratio", between(0, 1),
                   [](auto& c) -> auto& { return c.scheduler.cos_min_ratio; }),
               "WarmupCosineLR", is_cosine),
      refused("scheduler.params.last_batch_iteration", {"-1"},
              "a run resumes from its checkpoint, which knows the step: leave it out"),

      null_is_default(field(
          "steps_per_print", between(1, kMostSteps),
          [](auto& c) -> auto& { return c.steps_per_print; })),
      field(
          "wall_clock_breakdown", {}, [](auto& c) -> auto& { return c.wall_clock_breakdown; }),
  };
}

}  // namespace dstrain
