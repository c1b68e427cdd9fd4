#!/usr/bin/env python3
"""Write the files of tests/golden/deepspeed-models.tar.xz: transformers' models, trained and saved by DeepSpeed.

Each folder holds the model's config.json, a checkpoint that DeepSpeed saved of it after two steps
on the CPU, and expected.safetensors: the weights that DeepSpeed's own zero_to_fp32 gives for it,
and "exp_avg/NAME" and "exp_avg_sq/NAME", its safe_get_full_optimizer_state before saving.

Set up as for make_deepspeed_checkpoints.py, with transformers in the environment as well:
  PYTHONPATH=deepspeed-0.19.6 venv/bin/python scripts/make_deepspeed_models.py OUTPUT
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from make_deepspeed_checkpoints import ModelParallelUnit, consolidated

os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")

GPT2 = dict(model_type="gpt2", vocab_size=19, n_positions=8, n_embd=6, n_layer=2, n_head=2,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
LLAMA = dict(model_type="llama", vocab_size=17, hidden_size=8, intermediate_size=10,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=8, tie_word_embeddings=False)
LLAMA_EVEN = dict(LLAMA, vocab_size=18)  # tensor-parallel ranks hold equal slices
CASES = {  # name: model, ZeRO stage, dtype, data-parallel ranks, tensor-parallel ranks
    "gpt2-zero1-bf16": (GPT2, 1, "bf16", 2, 1),
    "gpt2-zero3-fp32": (GPT2, 3, "fp32", 2, 1),
    "llama-zero2-fp32": (LLAMA, 2, "fp32", 3, 1),
    "llama-zero3-bf16": (LLAMA, 3, "bf16", 2, 1),
    "llama-zero1-tp2": (LLAMA_EVEN, 1, "bf16", 2, 2),
}
UNIVERSAL = ("gpt2-zero1-bf16", "llama-zero2-fp32")


def cut_dim(name):
    """The dimension that tensor-parallel ranks cut; None: each has all of it."""
    if any(part in name for part in ("o_proj", "down_proj")):
        return 1
    return None if "norm" in name else 0


def cut(model, tp, tp_rank):
    """Cuts every parameter down to the part of one tensor-parallel rank. The slices alone cannot compute
    the model, so each parameter is trained with a loss of its own."""
    import torch
    for name, parameter in list(model.named_parameters()):
        dim = cut_dim(name)
        if dim is not None:
            owner = model.get_submodule(name.rpartition(".")[0])
            owner.weight = torch.nn.Parameter(parameter.chunk(tp, dim)[tp_rank].clone())
    def loss(input_ids, labels):
        scale = input_ids.float().mean()
        terms = [(p.float() * (0.1 + i)).square().mean() for i, p in enumerate(model.parameters())]
        return type("Output", (), {"loss": sum(terms) * scale})
    model.forward = loss


def train_one_rank(case, folder):
    import deepspeed
    import torch
    import torch.distributed as dist
    from deepspeed.utils import safe_get_full_optimizer_state
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    keys, stage, dtype, dp, tp = CASES[case]
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", verbose=False)
    rank = dist.get_rank()
    mpu = ModelParallelUnit(rank, dp * tp, tp) if tp > 1 else None
    torch.manual_seed(3)
    config = AutoConfig.for_model(**keys)
    model = AutoModelForCausalLM.from_config(config)
    if tp > 1:
        cut(model, tp, rank % tp)
    settings = {
        "train_batch_size": 2 * dp, "train_micro_batch_size_per_gpu": 2,
        "steps_per_print": 1000, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    if dtype != "fp32":
        settings[dtype] = {"enabled": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings,
                                         mpu=mpu)
    for step in range(2):
        generator = torch.Generator().manual_seed(100 + 10 * step + rank // tp)
        tokens = torch.randint(0, keys["vocab_size"], (2, 8), generator=generator)
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    moments = {}
    for name, param in engine.module.named_parameters():
        for key in ("exp_avg", "exp_avg_sq"):
            value = safe_get_full_optimizer_state(param, key)
            moments[f"{key}/{name}"] = value.detach().clone().float().contiguous()
    if rank < tp:
        save_file(moments, f"{folder}/moments-{rank}.safetensors")
    if rank == 0:
        # As Hugging Face writes it, without the names of the machine's packages.
        text = {k: v for k, v in config.to_dict().items() if v is not None}
        text.pop("transformers_version", None)
        pathlib.Path(folder, "config.json").write_text(json.dumps(text, indent=2) + "\n")
    engine.save_checkpoint(folder)
    dist.barrier()
    dist.destroy_process_group()


def run_ranks(case, folder):
    ranks = CASES[case][3] * CASES[case][4]
    started = []
    for rank in range(ranks):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                   MASTER_ADDR="127.0.0.1", MASTER_PORT="29613")
        command = [sys.executable, __file__, "--rank-of", case, str(folder)]
        started.append(subprocess.Popen(command, env=env))
    while any(rank.poll() is None for rank in started) and not any(rank.poll() for rank in started):
        time.sleep(0.1)
    if any(rank.poll() for rank in started):
        for rank in started:
            rank.kill()
        sys.exit(f"{case}: a rank failed")


def write_expected(case, folder):
    import torch
    from safetensors.torch import load_file, save_file
    tp = CASES[case][4]
    of_ranks = []
    for tp_rank in range(tp):
        moments = folder / f"moments-{tp_rank}.safetensors"
        tensors = load_file(moments)
        moments.unlink()
        weights = consolidated(folder, tp_rank)
        tensors.update({name: weight.clone().contiguous() for name, weight in weights.items()})
        of_ranks.append(tensors)
    whole = {}
    for name, tensor in of_ranks[0].items():
        dim = cut_dim(name) if tp > 1 else None
        whole[name] = tensor if dim is None else torch.cat([t[name] for t in of_ranks], dim)
    save_file(whole, str(folder / "expected.safetensors"))


def write_universal(folder):
    from deepspeed.checkpoint.ds_to_universal import main
    tag = (folder / "latest").read_text()
    main(argparse.Namespace(
        input_folder=str(folder / tag), output_folder=str(folder / f"{tag}_universal"),
        num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False, strict=True,
        inject_missing_state=True))


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--rank-of":
        return train_one_rank(sys.argv[2], sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    for case in arguments.only:
        folder = arguments.output / case
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run_ranks(case, folder)
        write_expected(case, folder)
        if case in UNIVERSAL:
            write_universal(folder)
        (folder / "zero_to_fp32.py").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
