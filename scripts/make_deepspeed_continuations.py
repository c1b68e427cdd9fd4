#!/usr/bin/env python3
"""Write the files of tests/golden/deepspeed-continuations.tar.xz: runs that DeepSpeed interrupts and continues itself.

Each folder holds the config.json of a tiny GPT-2, the checkpoint that DeepSpeed saved of it after
SAVED_AT steps on the CPU, and expected.safetensors: what a second process made of that checkpoint
with load_checkpoint and MORE_STEPS steps more. "loss", "rate" and "scale" have a value for each of
these steps, "final/NAME", "final_exp_avg/NAME" and "final_exp_avg_sq/NAME" are the fp32 weights and
moments at the end. 16-bit runs have "gradient/STEP/NAME" as well, what autograd gave for the
scaled loss: whose matrix products round where depends on the program, so what an optimizer
makes of a gradient is compared, not the loss.

stream.safetensors holds the tokens: windows of 8 and the token behind, in the order in which
dstrain's sampler deals them with seed 5 (ORDER, which the test checks).

fp16 runs overflow on purpose, before the checkpoint and behind it. DeepSpeed asks whether the CPU
has units for fp16 and refuses where it has none; torch computes it anyway, so it is told that it has.

Set up as for make_deepspeed_models.py:
  PYTHONPATH=deepspeed-0.19.6 venv/bin/python scripts/make_deepspeed_continuations.py OUTPUT
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")

MODEL = dict(model_type="gpt2", vocab_size=11, n_positions=8, n_embd=4, n_layer=1, n_head=2,
             attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
CASES = {  # name: ZeRO stage, dtype, ranks
    "zero0-fp32": (0, "fp32", 1), "zero0-bf16": (0, "bf16", 1), "zero0-fp16": (0, "fp16", 1),
    "zero1-fp32": (1, "fp32", 2), "zero1-bf16": (1, "bf16", 1), "zero1-fp16": (1, "fp16", 1),
    "zero2-fp32": (2, "fp32", 2), "zero2-bf16": (2, "bf16", 1), "zero2-fp16": (2, "fp16", 1),
    "zero3-fp32": (3, "fp32", 2), "zero3-bf16": (3, "bf16", 1), "zero3-fp16": (3, "fp16", 1),
}
BATCH, SEQUENCE, WINDOWS = 2, 8, 24
SAVED_AT, MORE_STEPS = 4, 6
OVERFLOWS = (2, 6, 7)  # steps, counted from 1, of fp16 runs
ORDER = [13, 10, 7, 5, 8, 22, 21, 4, 1, 14, 12, 9, 2, 19, 20, 3, 6, 23, 16, 0, 18, 17, 11, 15]


def stream():
    import torch
    return torch.randint(0, MODEL["vocab_size"], (WINDOWS * SEQUENCE + 1,),
                         generator=torch.Generator().manual_seed(17))


def samples(step, rank, ranks):
    """The inputs and targets of a rank's share of a step's batch."""
    import torch
    tokens, each = stream(), BATCH // ranks
    first = (step - 1) * BATCH + rank * each
    rows = [tokens[w * SEQUENCE:w * SEQUENCE + SEQUENCE + 1] for w in ORDER[first:first + each]]
    rows = torch.stack(rows)
    return rows[:, :-1], rows[:, 1:]


def start(case):
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator
    from transformers import AutoConfig, AutoModelForCausalLM
    stage, dtype, _ = CASES[case]
    get_accelerator().is_fp16_supported = lambda: True
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODEL))
    model.lm_head.weight = model.transformer.wte.weight
    for parameter in model.parameters():  # biases of zero would let no norm be told from another
        torch.nn.init.normal_(parameter, std=0.3)
    settings = {
        "train_batch_size": BATCH, "steps_per_print": 1000, "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8,
                                                  "weight_decay": 0.1, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {
            "warmup_num_steps": 7, "warmup_type": "linear", "warmup_max_lr": 1e-2}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    if dtype != "fp32":
        settings[dtype] = {"enabled": True}
    if dtype == "fp16":
        settings["fp16"].update(initial_scale_power=6, loss_scale_window=2, hysteresis=2)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=settings)
    return engine


def names_of(engine):
    return {name: p for name, p in engine.module.named_parameters()}


def take_step(engine, step, case, ranks, gradients=None):
    import torch
    import torch.distributed as dist
    inputs, targets = samples(step, dist.get_rank(), ranks)
    handles = []
    if gradients is not None:
        for name, p in names_of(engine).items():
            handles.append(p.register_hook(lambda g, n=name: gradients.__setitem__(
                f"gradient/{step}/{n}", g.detach().float().clone())))
    logits = engine(input_ids=inputs).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    overflow = CASES[case][1] == "fp16" and step in OVERFLOWS
    scale = float(engine.optimizer.cur_scale if hasattr(engine.optimizer, "cur_scale")
                  else engine.optimizer.loss_scale_config.cur_scale
                  if hasattr(engine.optimizer, "loss_scale_config")
                  else getattr(engine.optimizer, "loss_scale", 1.0))
    rate = engine.get_lr()[0]
    engine.backward(loss * (1e30 if overflow else 1.0))
    engine.step()
    for handle in handles:
        handle.remove()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / ranks, rate, scale


def final_state(engine, case):
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    stage, dtype, _ = CASES[case]
    state, optimizer = {}, engine.optimizer
    for index, (name, p) in enumerate(names_of(engine).items()):
        if stage > 0:
            found = {"final": safe_get_full_fp32_param(p)}
            for key in ("exp_avg", "exp_avg_sq"):
                found[f"final_{key}"] = safe_get_full_optimizer_state(p, key)
        else:
            torch_optimizer = optimizer if dtype == "fp32" else optimizer.optimizer
            master = p if dtype == "fp32" else optimizer.fp32_groups[0][index]
            moments = torch_optimizer.state[master]
            found = {"final": master, "final_exp_avg": moments["exp_avg"],
                     "final_exp_avg_sq": moments["exp_avg_sq"]}
        state.update({f"{key}/{name}": value.detach().float().clone().contiguous()
                      for key, value in found.items()})
    return state


def run_rank(case, folder, phase):
    import torch
    import torch.distributed as dist
    from safetensors.torch import save_file
    _, dtype, ranks = CASES[case]
    engine = start(case)
    if phase == "first":
        for step in range(1, SAVED_AT + 1):
            take_step(engine, step, case, ranks)
        if dist.get_rank() == 0:
            pathlib.Path(folder, "config.json").write_text(json.dumps(MODEL, indent=2) + "\n")
        engine.save_checkpoint(folder)
    else:
        engine.load_checkpoint(folder)
        tensors = {} if dtype != "fp32" else None
        rows = []
        for step in range(SAVED_AT + 1, SAVED_AT + MORE_STEPS + 1):
            rows.append(take_step(engine, step, case, ranks, tensors))
        state = final_state(engine, case)
        if dist.get_rank() == 0:
            tensors = {**(tensors or {}), **state}
            for name, column in zip(("loss", "rate", "scale"), zip(*rows)):
                tensors[name] = torch.tensor(column, dtype=torch.float64)
            save_file(tensors, f"{folder}/expected.safetensors")
            print(case, rows, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(case, folder, phase):
    ranks = CASES[case][2]
    started = []
    for rank in range(ranks):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT="29617")
        command = [sys.executable, __file__, "--rank-of", case, str(folder), phase]
        started.append(subprocess.Popen(command, env=env))
    if any([process.wait() for process in started]):
        sys.exit(f"{case}: a rank failed")


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "--rank-of":
        return run_rank(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    import torch
    from safetensors.torch import save_file
    save_file({"tokens": stream().to(torch.int64), "order": torch.tensor(ORDER)},
              str(arguments.output / "stream.safetensors"))
    for case in arguments.only:
        folder = arguments.output / case
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run_ranks(case, folder, "first")
        run_ranks(case, folder, "second")
        (folder / "zero_to_fp32.py").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
