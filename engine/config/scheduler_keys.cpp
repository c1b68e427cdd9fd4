// "scheduler": DeepSpeed's five, each with parameters of its own.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kScheduler{"scheduler.", &Config::scheduler};
constexpr KeyBlock kRangeTest{"scheduler.params.lr_range_test_",
                              kScheduler.to(&SchedulerConfig::range_test)};
constexpr KeyBlock kOneCycle{"scheduler.params.", kScheduler.to(&SchedulerConfig::one_cycle)};

constexpr double kMostSteps = 1e15;

bool is_cosine(const Config& c) {
  return c.scheduler.kind == SchedulerKind::kWarmupCosine;
}
bool has_total(const Config& c) {
  return is_cosine(c) || c.scheduler.kind == SchedulerKind::kWarmupDecay;
}
bool has_peak(const Config& c) {
  return c.scheduler.kind == SchedulerKind::kWarmup ||
         c.scheduler.kind == SchedulerKind::kWarmupDecay;
}
bool warms_up(const Config& c) {
  return is_cosine(c) || has_peak(c);
}

Key scheduler_type() {
  return kScheduler.choice("type",
                           {{"WarmupLR", SchedulerKind::kWarmup},
                            {"WarmupDecayLR", SchedulerKind::kWarmupDecay},
                            {"WarmupCosineLR", SchedulerKind::kWarmupCosine},
                            {"LRRangeTest", SchedulerKind::kRangeTest},
                            {"OneCycle", SchedulerKind::kOneCycle}},
                           &SchedulerConfig::kind);
}

/// "auto" is the optimizer's lr, which is known when all keys are read: finish_scheduler().
Key peak(Key key) {
  const auto set_number = key.set;
  key.set = [set_number, path = key.path](ConfigDraft& draft, const JsonNode& node) {
    if (node.is_text("auto")) {
      draft.automatic.insert(path);
    } else {
      set_number(draft, node);
    }
  };
  return auto_is_value(key);
}

template <typename Member>
Key range_test(const char* name, NumberRange range, Member RangeTestConfig::*member) {
  return only_for(kRangeTest.field(name, range, member), "LRRangeTest",
                  [](const Config& c) { return c.scheduler.kind == SchedulerKind::kRangeTest; });
}

template <typename Member>
Key one_cycle(const char* name, NumberRange range, Member OneCycleConfig::*member) {
  return only_for(kOneCycle.field(name, range, member), "OneCycle",
                  [](const Config& c) { return c.scheduler.kind == SchedulerKind::kOneCycle; });
}

}  // namespace

std::vector<Key> scheduler_keys() {
  const auto steps = between(1, kMostSteps);
  const auto steps_or_none = between(0, kMostSteps);  // DeepSpeed's warm-up lasts at least two
  return {
      scheduler_type(),
      only_for(kScheduler.field("params.total_num_steps", steps, &SchedulerConfig::total_num_steps),
               "WarmupDecayLR and WarmupCosineLR", has_total),
      only_for(auto_is(kScheduler.field("params.warmup_num_steps", steps_or_none,
                                        &SchedulerConfig::warmup_num_steps),
                       "0"),
               "the warm-up schedulers", warms_up),
      only_for(kScheduler.choice("params.warmup_type",
                                 {{"log", WarmupType::kLog}, {"linear", WarmupType::kLinear}},
                                 &SchedulerConfig::warmup_type),
               "the warm-up schedulers", warms_up),
      only_for(auto_is(kScheduler.field("params.warmup_min_lr", at_least(0),
                                        &SchedulerConfig::warmup_min_lr),
                       "0"),
               "WarmupLR and WarmupDecayLR", has_peak),
      only_for(
          peak(kScheduler.field("params.warmup_max_lr", above(0), &SchedulerConfig::warmup_max_lr)),
          "WarmupLR and WarmupDecayLR", has_peak),
      only_for(kScheduler.field("params.warmup_min_ratio", between(0, 1),
                                &SchedulerConfig::warmup_min_ratio),
               "WarmupCosineLR", is_cosine),
      only_for(
          kScheduler.field("params.cos_min_ratio", between(0, 1), &SchedulerConfig::cos_min_ratio),
          "WarmupCosineLR", is_cosine),

      range_test("min_lr", above(0), &RangeTestConfig::min_lr),
      range_test("step_size", steps, &RangeTestConfig::step_size),
      range_test("step_rate", at_least(0), &RangeTestConfig::step_rate),
      range_test("staircase", {}, &RangeTestConfig::staircase),

      required(auto_is(one_cycle("cycle_min_lr", at_least(0), &OneCycleConfig::min_lr), "0"),
               "write the rate at both ends of the cycle"),
      required(peak(one_cycle("cycle_max_lr", above(0), &OneCycleConfig::max_lr)),
               "write the rate at the cycle's peak"),
      one_cycle("decay_lr_rate", at_least(0), &OneCycleConfig::decay_lr_rate),
      one_cycle("cycle_first_step_size", steps, &OneCycleConfig::first_step_size),
      one_cycle("cycle_second_step_size", steps_or_none, &OneCycleConfig::second_step_size),
      one_cycle("cycle_first_stair_count", steps_or_none, &OneCycleConfig::first_stair_count),
      one_cycle("cycle_second_stair_count", steps_or_none, &OneCycleConfig::second_stair_count),
      one_cycle("decay_step_size", steps_or_none, &OneCycleConfig::decay_step_size),
      one_cycle("cycle_momentum", {}, &OneCycleConfig::cycle_momentum),
      one_cycle("cycle_min_mom", fraction_below_one(), &OneCycleConfig::min_momentum),
      one_cycle("cycle_max_mom", fraction_below_one(), &OneCycleConfig::max_momentum),
      one_cycle("decay_mom_rate", {}, &OneCycleConfig::decay_momentum_rate),

      refused("scheduler.params.last_batch_iteration", {"-1"},
              "a run resumes from its checkpoint, which records the step: leave it out"),
  };
}

}  // namespace dstrain
