#!/usr/bin/env python3
"""Write tests/golden/ramps.json: results of DeepSpeed and Megatron-LM for schedules that change the length of
sequences and the batch.

Needs the sources of deepspeed and megatron-core, and nothing that they need:
    pip download --no-deps --no-binary :all: deepspeed; pip download --no-deps megatron-core
unpacked into two folders:
    scripts/make_ramp_golden.py --deepspeed deepspeed-0.19.8 --megatron megatron
"""
import argparse, importlib.util, json, logging, pathlib, sys, types

LENGTHS = [
    dict(min_difficulty=8, max_difficulty=128, schedule_type="fixed_linear",
         schedule_config=dict(total_curriculum_step=30, difficulty_step=4)),
    dict(min_difficulty=64, max_difficulty=1024, schedule_type="fixed_linear",
         schedule_config=dict(total_curriculum_step=15000, difficulty_step=8)),
    dict(min_difficulty=8, max_difficulty=100, schedule_type="fixed_linear",
         schedule_config=dict(total_curriculum_step=77, difficulty_step=16)),
    dict(min_difficulty=20, max_difficulty=100, schedule_type="fixed_linear",
         schedule_config=dict(total_curriculum_step=1, difficulty_step=1)),
    dict(min_difficulty=80, max_difficulty=2048, schedule_type="fixed_root",
         schedule_config=dict(total_curriculum_step=10000, difficulty_step=8, root_degree=2)),
    dict(min_difficulty=1, max_difficulty=777, schedule_type="fixed_root",
         schedule_config=dict(total_curriculum_step=3331, difficulty_step=3, root_degree=3)),
    dict(min_difficulty=16, max_difficulty=512, schedule_type="fixed_root",
         schedule_config=dict(total_curriculum_step=500, difficulty_step=16, root_degree=1)),
    dict(min_difficulty=1, max_difficulty=3, schedule_type="fixed_discrete",
         schedule_config=dict(difficulty=[1, 2, 3], max_step=[5, 10])),
    dict(min_difficulty=128, max_difficulty=512, schedule_type="fixed_discrete",
         schedule_config=dict(difficulty=[128, 512, 256, 64], max_step=[3, 7, 20])),
    dict(min_difficulty=128, max_difficulty=1024, schedule_type="fixed_discrete",
         schedule_config=dict(difficulty=[256, 128, 512], max_step=[3, 7])),
]
BATCHES = [  # whole batch, start, increment, samples
    (1536, 32, 16, 5859375), (1536, 16, 16, 5859375), (64, 16, 8, 300), (512, 64, 64, 1000), (1000, 10, 10, 777_777),
    (96, 3, 3, 1_000_003), (64, 32, 32, 1), (16, 4, 4, 40),
]


def schedulers(folder):
    """The module alone, with only what it imports."""
    for name in ("deepspeed", "deepspeed.utils", "deepspeed.runtime", "deepspeed.runtime.data_pipeline"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["deepspeed.utils"].logger = logging.getLogger("deepspeed")
    logging.disable(logging.WARNING)
    for name in ("constants", "curriculum_scheduler"):
        full = f"deepspeed.runtime.data_pipeline.{name}"
        path = folder / "deepspeed/runtime/data_pipeline" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(full, path)
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full].CurriculumScheduler


def calculators(folder):
    path = folder / "megatron/core/num_microbatches_calculator.py"
    spec = importlib.util.spec_from_file_location("num_microbatches_calculator", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.RampupBatchsizeNumMicroBatchesCalculator


def changes(values):
    """[[first step, value], …] of a sequence of (step, value)."""
    found = []
    for step, value in values:
        if not found or found[-1][1] != value:
            found.append([step, value])
    return found


def lengths(scheduler, config):
    total = config["schedule_config"].get("total_curriculum_step", 30)
    state = scheduler(json.loads(json.dumps(config)))
    steps = total + 10
    return {"config": config, "steps": steps,
            "changes": changes((step, state.update_difficulty(step)) for step in range(1, steps + 1))}


def batches(calculator, whole, start, increment, samples):
    state = calculator(whole, 1, 1, False, 1, start, increment, samples)
    found, consumed = [], 0
    while consumed <= samples + whole:
        state.update(consumed, False)
        found.append((consumed, state.current_global_batch_size))
        consumed += state.current_global_batch_size
    return {"whole": whole, "start": start, "increment": increment, "samples": samples, "changes": changes(found)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deepspeed", type=pathlib.Path, required=True)
    parser.add_argument("--megatron", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/golden/ramps.json"))
    arguments = parser.parse_args()
    scheduler, calculator = schedulers(arguments.deepspeed), calculators(arguments.megatron)
    golden = {"lengths": [lengths(scheduler, config) for config in LENGTHS],
              "batches": [batches(calculator, *of) for of in BATCHES]}
    lines = ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(one) for one in all) + "\n]" for name, all in golden.items())
    arguments.output.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
