#!/usr/bin/env python3
"""Write the files of tests/golden/deepspeed-checkpoints.tar.xz: written by DeepSpeed and torch.save themselves.

Each folder holds a checkpoint of a tiny model after two steps, as DeepSpeed saved it from several
processes on the CPU, and expected.safetensors: the fp32 weights that DeepSpeed's own zero_to_fp32
gives for it, and the moments that its safe_get_full_optimizer_state gave before saving. torch-save/
holds plain torch.save files and the same tensors as safetensors.

  python3 -m venv venv && venv/bin/pip install torch==2.9.1 numpy safetensors einops hjson msgpack \\
      psutil py-cpuinfo pydantic tqdm && venv/bin/pip uninstall -y triton
  pip download --no-deps --no-binary :all: deepspeed==0.19.6 && tar xzf deepspeed-0.19.6.tar.gz
  PYTHONPATH=deepspeed-0.19.6 venv/bin/python scripts/make_deepspeed_checkpoints.py OUTPUT
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", OMP_NUM_THREADS="1")

CASES = {  # name: stage, dtype, data parallel, tensor parallel, settings (of the ZeRO block)
    "none-fp32": (0, "fp32", 1, 1, {}),
    "zero0-bf16": (0, "bf16", 2, 1, {}),
    "zero1-bf16": (1, "bf16", 2, 1, {}),
    "zero1-tp2": (1, "bf16", 2, 2, {}),
    "zero1-accumulate-fp32": (1, "bf16", 2, 1, {"data_types": {"grad_accum_dtype": "fp32"}}),
    "zero2-fp16": (2, "fp16", 3, 1, {"elastic_checkpoint": True}),
    "zero2-fp32": (2, "fp32", 2, 1, {}),
    "zero2-round-robin": (2, "fp32", 2, 1, {"round_robin_gradients": True}),
    "zero3-bf16": (3, "bf16", 2, 1, {"sub_group_size": 60}),
    "zero3-fp16": (3, "fp16", 3, 1, {"stage3_param_persistence_threshold": 10}),
}
UNIVERSAL = ("zero1-tp2", "zero2-fp32", "zero3-bf16")  # converted by ds_to_universal as well


def make_model(case, tp_rank):
    import torch
    from torch import nn

    class Tiny(nn.Module):
        """Odd sizes, a tied head, a frozen matrix, a scalar parameter and buffers of two types."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(11 + tp_rank)
            self.wte = nn.Embedding(13, 7)
            self.ln = nn.LayerNorm(7)
            self.fc = nn.Linear(7, 5)
            self.proj = nn.Linear(5, 7)
            self.frozen = nn.Linear(7, 7, bias=False)
            self.frozen.weight.requires_grad_(False)
            # ds_to_universal cannot join scalars.
            self.gain = nn.Parameter(torch.tensor([1.25] if case in UNIVERSAL else 1.25))
            self.lm_head = nn.Linear(7, 13, bias=False)
            self.lm_head.weight = self.wte.weight
            self.register_buffer("scale", torch.linspace(0.9, 1.1, 7))
            self.register_buffer("seen", torch.tensor([3, 5]))
            self.register_buffer("mask", torch.ones(3), persistent=False)

        def forward(self, tokens):
            x = self.frozen(self.wte(tokens))
            x = self.ln(x * self.scale.to(x.dtype))
            x = x + self.proj(torch.tanh(self.fc(x))) * self.gain
            logits = self.lm_head(x).float()
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())

    return Tiny()


class ModelParallelUnit:
    """Which ranks hold one replica, passed to DeepSpeed the way Megatron does: tp is innermost."""

    def __init__(self, rank, world, tp):
        import torch.distributed as dist
        self.tp_rank, self.dp_rank, self.tp, self.dp = rank % tp, rank // tp, tp, world // tp
        for i in range(self.dp):
            group = dist.new_group([i * tp + j for j in range(tp)])
            self.tp_group = group if i == self.dp_rank else getattr(self, "tp_group", None)
        for j in range(tp):
            group = dist.new_group([i * tp + j for i in range(self.dp)])
            self.dp_group = group if j == self.tp_rank else getattr(self, "dp_group", None)

    def get_model_parallel_rank(self): return self.tp_rank
    def get_model_parallel_group(self): return self.tp_group
    def get_model_parallel_world_size(self): return self.tp
    def get_data_parallel_rank(self): return self.dp_rank
    def get_data_parallel_group(self): return self.dp_group
    def get_data_parallel_world_size(self): return self.dp


def train_one_rank(case, folder):
    import deepspeed
    import torch
    import torch.distributed as dist
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    from safetensors.torch import save_file

    stage, dtype, dp, tp, settings = CASES[case]
    zero = {key: value for key, value in settings.items() if key != "data_types"}
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    rank = dist.get_rank()
    mpu = ModelParallelUnit(rank, dp * tp, tp) if tp > 1 else None
    config = {
        "train_batch_size": 2 * dp, "train_micro_batch_size_per_gpu": 2, "steps_per_print": 1000,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": stage, **zero},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
    }
    if "data_types" in settings:
        config["data_types"] = settings["data_types"]
    # Without ZeRO, DeepSpeed's clipping fails on a scalar.
    config["gradient_clipping"] = 1.0 if stage > 0 else 0.0
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    if dtype == "fp16":
        config["fp16"]["initial_scale_power"] = 4
    model = make_model(case, rank % tp)
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, mpu=mpu)
    for step in range(2):
        generator = torch.Generator().manual_seed(100 + 10 * step + rank // tp)
        tokens = torch.randint(0, 13, (2, 9), generator=generator)
        engine.backward(engine(tokens))
        engine.step()
    moments = {}
    if stage in (1, 2):
        # DeepSpeed links parameters to their moments after the first group's first step, which
        # leaves the other groups without them: let it do so once more.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    # With round_robin_gradients DeepSpeed's link to the moments assumes the order without it: it
    # gives other parameters' moments, and is no reference there.
    if stage > 0 and not zero.get("round_robin_gradients"):
        for name, param in engine.module.named_parameters():
            if param.requires_grad:
                for key in ("exp_avg", "exp_avg_sq"):
                    value = safe_get_full_optimizer_state(param, key)
                    moments[f"{key}/{name}"] = value.detach().clone().float().contiguous()
                if type(engine.optimizer).__name__ == "BF16_Optimizer":
                    # It leaves out zero_stage, without which zero_to_fp32 refuses the checkpoint.
                    moments[f"fp32/{name}"] = safe_get_full_fp32_param(param).clone()
    elif case == "none-fp32":
        for name, param in engine.module.named_parameters():
            moments[f"fp32/{name}"] = param.detach().clone()
    if rank < tp and moments:
        save_file(moments, f"{folder}/moments-{rank}.safetensors")
    engine.save_checkpoint(folder, client_state={"note": "after two steps", "seen": {1, 2}})
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(case, folder):
    _, _, dp, tp, _ = CASES[case]
    ranks = []
    for rank in range(dp * tp):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(dp * tp),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
        command = [sys.executable, __file__, "--rank-of", case, str(folder)]
        ranks.append(subprocess.Popen(command, env=env))
    while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
        time.sleep(0.1)
    if any(rank.poll() for rank in ranks):
        for rank in ranks:
            rank.kill()
        sys.exit(f"{case}: a rank failed")


def consolidated(folder, tp_rank):
    """What zero_to_fp32 gives; it knows the first tensor-parallel rank only, so it is shown one."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    tag = (folder / "latest").read_text()
    with tempfile.TemporaryDirectory() as scratch:
        for file in (folder / tag).glob(f"*mp_rank_{tp_rank:02d}_*.pt"):
            name = file.name.replace(f"mp_rank_{tp_rank:02d}", "mp_rank_00")
            (pathlib.Path(scratch) / tag).mkdir(exist_ok=True)
            shutil.copy(file, pathlib.Path(scratch) / tag / name)
        return get_fp32_state_dict_from_zero_checkpoint(scratch, tag=tag)


def write_expected(case, folder):
    from safetensors.torch import load_file, save_file
    stage, _, _, tp, _ = CASES[case]
    for tp_rank in range(tp):
        tensors = {}
        moments = folder / f"moments-{tp_rank}.safetensors"
        if moments.exists():
            tensors.update(load_file(moments))
            moments.unlink()
        if not any(name.startswith("fp32/") for name in tensors) and stage > 0:
            weights = consolidated(folder, tp_rank)
            tensors.update({f"fp32/{name}": w.clone().contiguous() for name, w in weights.items()})
        if tensors:
            suffix = f"-{tp_rank}" if tp > 1 else ""
            save_file(tensors, str(folder / f"expected{suffix}.safetensors"))


def write_universal(folder):
    from deepspeed.checkpoint.ds_to_universal import main
    tag = (folder / "latest").read_text()
    main(argparse.Namespace(
        input_folder=str(folder / tag), output_folder=str(folder / f"{tag}_universal"),
        num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False, strict=True,
        inject_missing_state=True))


def write_torch_files(folder):
    """Plain torch.save: every dtype, views with strides, shared storage, nesting."""
    import collections
    import numpy
    import torch
    from safetensors.torch import save_file
    folder.mkdir()
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(3, 4, generator=generator)
    floats = {str(d).split(".")[1]: noise.to(d) for d in
              (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
               torch.float8_e5m2)}
    whole = {str(d).split(".")[1]: torch.arange(-3 if d.is_signed else 0, 9).to(d) for d in
             (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)}
    wide = {"uint16": torch.tensor([0, 65535], dtype=torch.uint16),
            "uint32": torch.tensor([0, 4294967295], dtype=torch.uint32),
            "uint64": torch.tensor([0, 9223372036854775809], dtype=torch.uint64)}
    tensors = {**floats, **whole, **wide, "bool": noise > 0,
               "complex64": torch.complex(noise, noise * 2), "scalar": torch.tensor(2.5),
               "empty": torch.zeros(0, 3)}
    torch.save(tensors, folder / "dtypes.pt")
    save_file(tensors, str(folder / "dtypes.safetensors"))
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    views = {"base": base, "transposed": base.transpose(0, 2), "slice": base[1:, ::2, 1:4],
             "expanded": base[0, 0].expand(6, 5), "diagonal": base[0, :4, :4].diagonal(),
             "parameter": torch.nn.Parameter(base[2])}
    torch.save(views, folder / "views.pt")
    save_file({name: v.detach().clone().contiguous() for name, v in views.items()},
              str(folder / "views.safetensors"))
    nested = {"none": None, "truth": [True, False], "integers": (0, -1, 255, 256, 65536, -2**31,
              2**31, 2**63 - 1, -2**63), "float": -0.1, "text": "naïve ✓", "bytes": b"\x00\xff",
              "ordered": collections.OrderedDict(b=1, a=2), "empty": ({}, [], (), set()),
              "set": {7}, "frozen": frozenset({8}), "size": torch.Size([2, 3]),
              "dtype": torch.bfloat16, "device": torch.device("cpu"),
              "scalar": numpy.float64(0.5), "integer": numpy.int64(7),
              "path": pathlib.PurePosixPath("a/b"), 3: "three", "default": collections.defaultdict(
                  list, {"x": [1]}), "long": "x" * 300, "namespace": argparse.Namespace(lr=0.5)}
    cycle = []
    cycle.append(cycle)
    nested["cycle"] = cycle
    torch.save(nested, folder / "nested.pt")
    torch.save(nested, folder / "nested-protocol4.pt", pickle_protocol=4)
    torch.save({"w": base}, folder / "legacy.pt", _use_new_zipfile_serialization=False)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--rank-of":
        return train_one_rank(sys.argv[2], sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=[*CASES, "torch-save"])
    arguments = parser.parse_args()
    for case in arguments.only:
        folder = arguments.output / case
        shutil.rmtree(folder, ignore_errors=True)
        if case == "torch-save":
            write_torch_files(folder)
            continue
        folder.mkdir(parents=True)
        run_ranks(case, folder)
        write_expected(case, folder)
        if case in UNIVERSAL:
            write_universal(folder)
        (folder / "zero_to_fp32.py").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
