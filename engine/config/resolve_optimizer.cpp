// Resolves the values that the optimizer and the scheduler take from each other and from the length
// of the run.
#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"
#include "engine/config/zero_stage.h"

namespace dstrain {
namespace {

/// Checks the requirements of torch.optim.SGD on Nesterov's momentum.
void check_sgd(const OptimizerConfig& sgd, Origins& origins) {
  if (sgd.nesterov && (sgd.momentum == 0.0 || sgd.dampening != 0.0)) {
    throw_config_error(
        origins["optimizer.params.nesterov"], "optimizer.params.nesterov",
        fmt::format("needs a momentum greater than 0 and a dampening of 0; they are {} and {}",
                    sgd.momentum, sgd.dampening));
  }
}

void check_rmsprop(const OptimizerConfig& rmsprop, Origins& origins) {
  if (rmsprop.centered && rmsprop.momentum != 0.0) {
    throw_config_error(
        origins["optimizer.params.centered"], "optimizer.params.centered",
        fmt::format(
            "with a momentum of {} RMSprop would keep a third state for every parameter: leave one "
            "of the two out",
            rmsprop.momentum));
  }
}

void check_lamb(const OptimizerConfig& lamb, Origins& origins) {
  if (lamb.min_coeff > lamb.max_coeff) {
    throw_config_error(
        origins["optimizer.params.min_coeff"], "optimizer.params.min_coeff",
        fmt::format("{} is greater than max_coeff {}", lamb.min_coeff, lamb.max_coeff));
  }
}

/// DeepSpeed has two rates: "lr" is for both groups; where it is not written, each has its own.
void resolve_muon(OptimizerConfig& muon, Origins& origins) {
  constexpr double kAdamDefault = 3e-4;
  const bool has_lr = !origins["optimizer.params.lr"].starts_with("default");
  if (!muon.muon_lr) {
    muon.muon_lr = muon.learning_rate;
    origins["optimizer.params.muon_lr"] = "derived: optimizer.params.lr";
  }
  if (!muon.adam_lr) {
    muon.adam_lr = has_lr ? muon.learning_rate : kAdamDefault;
    origins["optimizer.params.adam_lr"] =
        has_lr ? "derived: optimizer.params.lr" : "default where lr is not written";
  }
}

/// Names one that sends signs.
const char* name_of_one_bit(OptimizerKind kind) {
  return kind == OptimizerKind::kOneBitAdam    ? "OneBitAdam"
         : kind == OptimizerKind::kZeroOneAdam ? "ZeroOneAdam"
                                               : "OneBitLamb";
}

/// DeepSpeed's 1-bit optimizers take these keys and do nothing with them.
void tell_idle_keys(LoadedConfig& loaded, Origins& origins) {
  OptimizerConfig& optimizer = loaded.config.optimizer;
  for (const auto& [name, value] : {std::pair{"bias_correction", &optimizer.bias_correction},
                                    {"eps_inside_sqrt", &optimizer.eps_inside_sqrt}}) {
    if (!*value) continue;
    *value = false;
    const std::string path = fmt::format("optimizer.params.{}", name);
    origins[path] = "derived: optimizer.type";
    loaded.notices.push_back(
        fmt::format("no effect: {}: {} has no such thing, in DeepSpeed neither", path,
                    name_of_one_bit(optimizer.kind)));
  }
}

void check_one_bit(LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  const OptimizerConfig& optimizer = config.optimizer;
  const std::string name = name_of_one_bit(optimizer.kind);
  if (cuts_of(config.zero.stage).states) {
    throw_config_error(
        origins["zero_optimization.stage"], "zero_optimization.stage",
        fmt::format("{} exchanges what every rank has of all parameters, and {} cuts that: write 0 "
                    "(DeepSpeed allows no other), or take \"{}\"",
                    name, config.zero.stage,
                    optimizer.kind == OptimizerKind::kOneBitLamb ? "Lamb" : "AdamW"),
        {{ConfigEdit::Kind::kSet, "zero_optimization.stage", "0"}});
  }
  if (optimizer.factor_min > optimizer.factor_max) {
    throw_config_error(origins["optimizer.params.factor_min"], "optimizer.params.factor_min",
                       fmt::format("{} is greater than factor_max {}", optimizer.factor_min,
                                   optimizer.factor_max));
  }
  tell_idle_keys(loaded, origins);
  if (optimizer.kind != OptimizerKind::kZeroOneAdam &&
      optimizer.freeze_step >= config.training.steps) {
    loaded.notices.push_back(fmt::format(
        "optimizer.params.freeze_step: {} exact updates are not fewer than the {} steps "
        "of the run: nothing will travel as signs (DeepSpeed's guide: 15 to 25 % of the "
        "steps)",
        optimizer.freeze_step, config.training.steps));
  }
}

bool has_betas(OptimizerKind kind) {
  return sends_signs(kind) || kind == OptimizerKind::kAdamW || kind == OptimizerKind::kAdam ||
         kind == OptimizerKind::kLion || kind == OptimizerKind::kLamb;
}

/// DeepSpeed 0.19: WarmupLR without warmup_max_lr rises to the optimizer's lr, WarmupDecayLR to a
/// default of its own.
void resolve_warmup(LoadedConfig& loaded, Origins& origins) {
  constexpr double kDecayDefault = 0.001;
  constexpr const char* kMaxLr = "scheduler.params.warmup_max_lr";
  constexpr const char* kTotal = "scheduler.params.total_num_steps";
  SchedulerConfig& scheduler = loaded.config.scheduler;
  const double lr = loaded.config.optimizer.learning_rate;
  if (!scheduler.total_num_steps) {
    scheduler.total_num_steps = loaded.config.training.steps;
    origins[kTotal] = "derived: training.steps";
  }
  if (!scheduler.warmup_max_lr && scheduler.kind == SchedulerKind::kWarmupDecay) {
    scheduler.warmup_max_lr = kDecayDefault;
    origins[kMaxLr] = "default (DeepSpeed's own, not optimizer.params.lr)";
    loaded.notices.push_back(fmt::format(
        "{}: 0.001, DeepSpeed's default for WarmupDecayLR; optimizer.params.lr {} has no effect "
        "beside it (write \"auto\" to use it)",
        kMaxLr, lr));
  } else if (!scheduler.warmup_max_lr) {
    scheduler.warmup_max_lr = lr;
    origins[kMaxLr] = "derived: optimizer.params.lr (DeepSpeed 0.19; 0.001 in older releases)";
    if (scheduler.kind == SchedulerKind::kWarmup) {
      loaded.notices.push_back(fmt::format(
          "{}: {}, optimizer.params.lr, as in DeepSpeed 0.19 (older releases: 0.001)", kMaxLr, lr));
    }
  }
  const bool has_peak =
      scheduler.kind == SchedulerKind::kWarmup || scheduler.kind == SchedulerKind::kWarmupDecay;
  if (has_peak && scheduler.warmup_min_lr > *scheduler.warmup_max_lr) {
    throw_config_error(origins["scheduler.params.warmup_min_lr"], "scheduler.params.warmup_min_lr",
                       fmt::format("{} is greater than warmup_max_lr {}", scheduler.warmup_min_lr,
                                   *scheduler.warmup_max_lr));
  }
  const bool ends = scheduler.kind == SchedulerKind::kWarmupDecay ||
                    scheduler.kind == SchedulerKind::kWarmupCosine;
  if (ends && *scheduler.total_num_steps < scheduler.warmup_num_steps) {
    loaded.notices.push_back(
        fmt::format("scheduler: total_num_steps {} is less than warmup_num_steps {}: the learning "
                    "rate never reaches its peak",
                    *scheduler.total_num_steps, scheduler.warmup_num_steps));
  }
}

/// Checks that beta1 stays in range after the cycle, up to the last update of the run.
void check_decayed_momentum(const Config& config, Origins& origins) {
  const OneCycleConfig& cycle = config.scheduler.one_cycle;
  const std::int64_t updates =
      config.training.steps - 1 - cycle.first_step_size - cycle.second_step_size.value_or(0);
  if (updates <= 0 || cycle.decay_step_size == 0) return;
  const double last =
      cycle.max_momentum * (1.0 + cycle.decay_momentum_rate * static_cast<double>(updates) /
                                      static_cast<double>(cycle.decay_step_size));
  if (last < 0.0 || last >= 1.0) {
    throw_config_error(origins["scheduler.params.decay_mom_rate"],
                       "scheduler.params.decay_mom_rate",
                       fmt::format("{} takes the momentum from {} to {:.4g} by the last step; it "
                                   "must stay in [0, 1)",
                                   cycle.decay_momentum_rate, cycle.max_momentum, last));
  }
}

void resolve_one_cycle(LoadedConfig& loaded, Origins& origins) {
  OneCycleConfig& cycle = loaded.config.scheduler.one_cycle;
  const bool chosen = loaded.config.scheduler.kind == SchedulerKind::kOneCycle;
  if (!cycle.second_step_size) {
    cycle.second_step_size = cycle.first_step_size;
    origins["scheduler.params.cycle_second_step_size"] = "derived: cycle_first_step_size";
  }
  if (!cycle.second_stair_count) {
    cycle.second_stair_count = cycle.first_stair_count;
    origins["scheduler.params.cycle_second_stair_count"] = "derived: cycle_first_stair_count";
  }
  if (chosen && cycle.min_lr > cycle.max_lr) {
    throw_config_error(
        origins["scheduler.params.cycle_min_lr"], "scheduler.params.cycle_min_lr",
        fmt::format("{} is greater than cycle_max_lr {}", cycle.min_lr, cycle.max_lr));
  }
  if (chosen && cycle.cycle_momentum && !has_betas(loaded.config.optimizer.kind)) {
    cycle.cycle_momentum = false;
    origins["scheduler.params.cycle_momentum"] = "derived: the optimizer has no betas to cycle";
    loaded.notices.emplace_back(
        "scheduler.params.cycle_momentum: off, as in DeepSpeed: this optimizer has no betas to "
        "cycle");
  }
  if (chosen && cycle.cycle_momentum) check_decayed_momentum(loaded.config, origins);
}

}  // namespace

void resolve_optimizer(LoadedConfig& loaded, Origins& origins) {
  OptimizerConfig& optimizer = loaded.config.optimizer;
  if (optimizer.kind == OptimizerKind::kSgd) check_sgd(optimizer, origins);
  if (optimizer.kind == OptimizerKind::kRmsprop) check_rmsprop(optimizer, origins);
  const bool is_one_bit_lamb = optimizer.kind == OptimizerKind::kOneBitLamb;
  if (optimizer.kind == OptimizerKind::kLamb || is_one_bit_lamb) check_lamb(optimizer, origins);
  if (optimizer.kind == OptimizerKind::kMuon) resolve_muon(optimizer, origins);
  if (sends_signs(optimizer.kind)) check_one_bit(loaded, origins);
}

void resolve_scheduler(LoadedConfig& loaded, Origins& origins) {
  resolve_warmup(loaded, origins);
  resolve_one_cycle(loaded, origins);
}

}  // namespace dstrain
