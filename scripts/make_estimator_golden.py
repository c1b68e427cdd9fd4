#!/usr/bin/env python3
"""Write tests/golden/memory_estimators.json: output of DeepSpeed's and Hugging Face's own estimators.

Runs DeepSpeed's ZeRO-2 and ZeRO-3 estimators from its source tree, accelerate's estimate-memory
from the installed package, both on transformers' own models, which stay on the meta device:

  pip download --no-deps --no-binary :all: deepspeed==0.19.6    # where torch is not installed
  tar xzf deepspeed-0.19.6.tar.gz
  python3 -m venv golden-venv
  golden-venv/bin/pip install torch==2.6.0 transformers==5.23.0 accelerate==1.15.0
  golden-venv/bin/python scripts/make_estimator_golden.py deepspeed-0.19.6 > tests/golden/memory_estimators.json
"""

import argparse
import ast
import contextlib
import io
import json
import pathlib
import sys
import types

import accelerate
import torch
import transformers
from accelerate.commands import estimate
from accelerate.utils import calculate_maximum_sizes, convert_bytes

# As in the config.json on the hub, without keys that set no size; the last two are made up so that
# the largest module is not the usual one.
MODELS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768,
             "n_layer": 12, "n_head": 12},
    "gpt2-xl": {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 1600,
                "n_layer": 48, "n_head": 25},
    "Llama-2-7b": {"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
                   "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
                   "num_key_value_heads": 32, "max_position_embeddings": 4096,
                   "tie_word_embeddings": False},
    "Llama-3.1-8B": {"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
                     "intermediate_size": 14336, "num_hidden_layers": 32,
                     "num_attention_heads": 32, "num_key_value_heads": 8,
                     "max_position_embeddings": 131072, "tie_word_embeddings": False},
    "Mistral-7B-v0.1": {"model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096,
                        "intermediate_size": 14336, "num_hidden_layers": 32,
                        "num_attention_heads": 32, "num_key_value_heads": 8,
                        "max_position_embeddings": 32768, "tie_word_embeddings": False},
    "Mistral-Nemo-Base-2407": {"model_type": "mistral", "vocab_size": 131072, "hidden_size": 5120,
                               "intermediate_size": 14336, "num_hidden_layers": 40,
                               "num_attention_heads": 32, "num_key_value_heads": 8,
                               "head_dim": 128, "max_position_embeddings": 131072,
                               "tie_word_embeddings": False},
    "Qwen2-0.5B": {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
                   "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
                   "num_key_value_heads": 2, "max_position_embeddings": 131072,
                   "tie_word_embeddings": True},
    "Qwen2-7B": {"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584,
                 "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
                 "num_key_value_heads": 4, "max_position_embeddings": 131072,
                 "tie_word_embeddings": False},
    "gpt2-with-few-tokens-and-a-narrow-mlp": {
        "model_type": "gpt2", "vocab_size": 101, "n_positions": 64, "n_embd": 96, "n_layer": 3,
        "n_head": 4, "n_inner": 160},
    "gpt2-with-many-positions": {
        "model_type": "gpt2", "vocab_size": 101, "n_positions": 4096, "n_embd": 32, "n_layer": 1,
        "n_head": 2, "n_inner": 40},
    "llama-with-biases-and-wide-heads": {
        "model_type": "llama", "vocab_size": 97, "hidden_size": 48, "intermediate_size": 56,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16,
        "attention_bias": True, "mlp_bias": True, "max_position_embeddings": 64,
        "tie_word_embeddings": True},
}

# Parameters, those of the largest layer, GPUs per node, nodes, additional_buffer_factor.
SETUPS = [
    (2851000000, 32000000, 1, 1, 1.5),
    (2851000000, 32000000, 8, 1, 1.5),
    (11307000000, 131000000, 8, 2, 1.5),
    (175000000001, 617558016, 8, 128, 1.5),
    (1557611200, 80411200, 4, 3, 1.3),
    (6738415616, 131072000, 7, 5, 1.0),
    (999999, 12345, 3, 1, 1.5),
    (7, 3, 2, 7, 1.5),
]

# Bytes with and without a fraction, on both sides of every unit.
SIZES = [0, 1, 1000, 1023, 1024, 1025, 1530, 1536, 10239, 1048575, 1048576, 1073741823, 1073741824,
         497759232, 26430000000, 1099511627776, 1125899906842623, 1125899906842624, 2**62]


def deepspeed_estimators(path, enum):
    """The module's estimators alone; what else it imports needs a whole DeepSpeed."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)
                 and (node.name.startswith("estimate_zero") or node.name == "model_to_params")]
    scope = {"OffloadDeviceEnum": enum}
    exec(compile(tree, str(path), "exec"), scope)
    return types.SimpleNamespace(**scope)


class OffloadDevice(str):
    """DeepSpeed's enum of strings, formatted as Python up to 3.10 does and as its documentation
    prints it: "cpu ". Later Pythons print the member's name, "OffloadDeviceEnum.cpu"."""


OffloadDevice.cpu = OffloadDevice("cpu")


def printed(function, *args, **kwargs):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        function(*args, **kwargs)
    return text.getvalue()


def cold(zero2, zero3):
    for parameters, largest, gpus, nodes, factor in SETUPS:
        hardware = {"num_gpus_per_node": gpus, "num_nodes": nodes, "additional_buffer_factor": factor}
        rows2 = [[offload, *zero2.estimate_zero2_model_states_mem_needs(
            parameters, cpu_offload=offload, **hardware)] for offload in (True, False)]
        rows3 = [[optimizer, params, init, *zero3.estimate_zero3_model_states_mem_needs(
            parameters, largest, cpu_offload=optimizer, cpu_offload_params=params, zero_init=init,
            **hardware)]
            for optimizer, params in ((True, True), (True, False), (False, False))
            for init in (True, False)]
        yield {"total_params": parameters, "largest_layer_params": largest, **hardware,
               "zero2": rows2, "zero3": rows3,
               "zero2_text": printed(zero2.estimate_zero2_model_states_mem_needs_all_cold,
                                     parameters, **hardware),
               "zero3_text": printed(zero3.estimate_zero3_model_states_mem_needs_all_cold,
                                     parameters, largest, **hardware)}


def models(zero2, zero3):
    # A meta tensor has no address; its identity shows shared weights as well.
    torch.Tensor.data_ptr = lambda tensor: id(tensor)
    for name, settings in MODELS.items():
        rest = {key: value for key, value in settings.items() if key != "model_type"}
        config = transformers.AutoConfig.for_model(settings["model_type"], **rest)
        # estimate-memory as it runs, except for the hub: the same call makes the model.
        with accelerate.init_empty_weights():
            base = transformers.AutoModel.from_config(config, dtype=torch.float32)
        estimate.create_empty_model = lambda *args, **kwargs: base
        args = argparse.Namespace(model_name=name, library_name="transformers",
                                  trust_remote_code=False,
                                  dtypes=["float32", "float16", "int8", "int4"])
        rows = estimate.gather_data(args)
        total = calculate_maximum_sizes(base)[0]

        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        parameters, largest = zero3.model_to_params(model)
        assert parameters == zero2.model_to_params(model)
        yield {"name": name, "config": settings,
               "deepspeed": {"total_params": parameters, "largest_layer_params": largest,
                             "zero2_text_8x2": printed(
                                 zero2.estimate_zero2_model_states_mem_needs_all_live, model, 8, 2),
                             "zero3_text_8x2": printed(
                                 zero3.estimate_zero3_model_states_mem_needs_all_live, model, 8, 2)},
               "accelerate": {"rows": rows,
                              "bfloat16_training": estimate.estimate_training_usage(total, "bfloat16"),
                              "text": printed(estimate.estimate_command, args)}}


def main():
    root = pathlib.Path(sys.argv[1])
    zero = root / "deepspeed/runtime/zero"
    zero2 = deepspeed_estimators(zero / "stage_1_and_2.py", OffloadDevice)
    zero3 = deepspeed_estimators(zero / "stage3.py", OffloadDevice)
    lines = lambda items: ",\n".join(json.dumps(item) for item in items)
    versions = {"deepspeed": (root / "version.txt").read_text().strip(),
                "accelerate": accelerate.__version__, "transformers": transformers.__version__}
    sizes = ([size, divisor, convert_bytes(size if divisor == 1 else size / divisor)]
             for size in SIZES for divisor in (1, 2, 4, 8))
    print(f'{{"versions": {json.dumps(versions)},\n"cold": [\n{lines(cold(zero2, zero3))}],\n'
          f'"models": [\n{lines(models(zero2, zero3))}],\n"sizes": [\n{lines(sizes)}]}}')


main()
