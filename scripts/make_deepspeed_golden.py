#!/usr/bin/env python3
"""Write tests/golden/deepspeed.json: results of DeepSpeed's own schedulers and loss scalers.

Runs the classes of a DeepSpeed source tree, without torch and without installing it:

  pip download --no-deps --no-binary :all: deepspeed==0.19.6
  tar xzf deepspeed-0.19.6.tar.gz
  python3 scripts/make_deepspeed_golden.py deepspeed-0.19.6 > tests/golden/deepspeed.json
"""

import ast
import json
import logging
import math
import pathlib
import random
import sys
import types

NUM_UPDATES = 40
LEARNING_RATE = 0.01

WARMUP = {"warmup_min_lr": 0.001, "warmup_max_lr": 0.02, "warmup_num_steps": 7}
CYCLE = {"cycle_min_lr": 0.001, "cycle_max_lr": 0.02, "cycle_first_step_size": 9}
SCHEDULERS = [
    ("WarmupLR", {**WARMUP, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_num_steps": 12}),
    ("WarmupLR", {"warmup_num_steps": 1, "warmup_type": "linear"}),
    ("WarmupDecayLR", {**WARMUP, "total_num_steps": 30}),
    ("WarmupDecayLR", {"total_num_steps": 25, "warmup_num_steps": 5, "warmup_type": "linear"}),
    ("WarmupDecayLR", {**WARMUP, "total_num_steps": 4, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 33, "warmup_num_steps": 6, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 30, "warmup_num_steps": 8, "warmup_min_ratio": 0.25,
                        "cos_min_ratio": 0.1}),
    ("WarmupCosineLR", {"total_num_steps": 5, "warmup_num_steps": 9}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.002, "lr_range_test_step_size": 7,
                     "lr_range_test_step_rate": 0.75}),
    ("LRRangeTest", {"lr_range_test_step_size": 7, "lr_range_test_staircase": True}),
    ("OneCycle", CYCLE),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 14, "decay_step_size": 3,
                  "decay_lr_rate": 0.2, "decay_mom_rate": 0.01}),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 0, "cycle_momentum": False}),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 12, "cycle_first_stair_count": 3,
                  "cycle_second_stair_count": 5}),
    ("OneCycle", {**CYCLE, "cycle_first_stair_count": 2, "cycle_min_mom": 0.7,
                  "cycle_max_mom": 0.95}),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 11, "cycle_first_stair_count": 0,
                  "cycle_second_stair_count": 4, "decay_step_size": 5, "decay_lr_rate": 1.0}),
]


def run_definitions(path, wanted=lambda node: True, **names):
    """What a module defines itself, without its imports; `names` stand for those."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Assign)
    tree.body = [node for node in tree.body if isinstance(node, kinds) and wanted(node)]
    scope = dict(names, math=math, logger=logging.getLogger("silent"))
    exec(compile(tree, str(path), "exec"), scope)
    return scope


def method_of(path, cls, name):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            body = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == name]
            scope = {"logger": logging.getLogger("silent")}
            exec(compile(ast.Module(body, []), str(path), "exec"), scope)
            return scope[name]
    raise LookupError(f"{cls}.{name}")


class FakeOptimizer:
    def __init__(self):
        self.defaults = {"betas": (0.9, 0.999)}
        self.param_groups = [{"lr": LEARNING_RATE, "betas": (0.9, 0.999)}]


def schedules(root):
    scope = run_definitions(root / "deepspeed/runtime/lr_schedules.py", Optimizer=FakeOptimizer,
                          is_tensor=lambda value: False, argparse=None)
    for kind, params in SCHEDULERS:
        optimizer = FakeOptimizer()
        scheduler = scope[kind](optimizer, **params)
        updates = []
        for _ in range(NUM_UPDATES):
            group = optimizer.param_groups[0]
            updates.append((group["lr"], group["betas"]))
            scheduler.step()
        yield {"scheduler": {"type": kind, "params": params},
               "lr": [lr for lr, _ in updates],
               "betas": [betas for _, betas in updates]}


def loss_scales(root):
    fp16 = root / "deepspeed/runtime/fp16"
    scalers = {"LossScalerBase", "DynamicLossScaler"}
    scope = run_definitions(fp16 / "loss_scaler.py",
                            lambda node: getattr(node, "name", None) in scalers,
                            torch=types.SimpleNamespace(half="half"),
                            dist=types.SimpleNamespace(get_rank=lambda: 1),
                            DeepSpeedConfigObject=object)
    update_stage0 = method_of(fp16 / "fused_optimizer.py", "FP16_Optimizer", "_update_scale")

    random.seed(5)
    for number in range(24):
        settings = {"initial_scale_power": random.choice([0, 3, 8, 16]),
                    "loss_scale_window": random.choice([1, 2, 3, 5]),
                    "hysteresis": random.choice([1, 2, 3]),
                    "consecutive_hysteresis": random.random() < 0.4,
                    "min_loss_scale": 1}
        share = random.choice([0.1, 0.3, 0.6])
        steps = [random.random() < share for _ in range(60)]
        first = 2 ** settings["initial_scale_power"]
        stage = number % 4
        scales, fatal = [], False
        if stage == 0:
            config = types.SimpleNamespace(
                dynamic_loss_scale=True, cur_scale=first, min_loss_scale=1, cur_iter=0,
                last_overflow_iter=-1, scale_factor=2.0,
                scale_window=settings["loss_scale_window"])
            fake = types.SimpleNamespace(loss_scale_config=config, verbose=False)
            for overflow in steps:
                update_stage0(fake, overflow)
                scales.append(float(config.cur_scale))
        else:
            scaler = scope["DynamicLossScaler"](
                init_scale=first, scale_window=settings["loss_scale_window"], min_scale=1,
                delayed_shift=settings["hysteresis"],
                consecutive_hysteresis=settings["consecutive_hysteresis"])
            for overflow in steps:
                try:
                    scaler.update_scale(overflow)
                except Exception:  # "already at minimum": the run ends here
                    fatal = True
                    break
                scales.append(float(scaler.cur_scale))
        yield {"fp16": settings, "stage": stage,
               "steps": "".join("x" if overflow else "." for overflow in steps),
               "scales": scales, "ends_at_minimum": fatal}


def main():
    logging.disable(logging.CRITICAL)
    root = pathlib.Path(sys.argv[1])
    lines = lambda items: ",\n".join(json.dumps(item) for item in items)
    version = (root / "version.txt").read_text().strip()
    print(f'{{"deepspeed": "{version}", "optimizer_lr": {LEARNING_RATE},\n"schedules": [\n'
          f'{lines(schedules(root))}],\n"loss_scales": [\n{lines(loss_scales(root))}]}}')


main()
