#!/usr/bin/env python3
"""Write the fixtures in tests/golden/huggingface: folders as transformers writes them, with the name
and layout in dstrain of each of their weights, worked out here in PyTorch, independently of dstrain.

For each folder expected.safetensors holds every parameter in f32 under dstrain's names, matrices as
[outputs, inputs]. gpt2.bin is the GPT-2 of one of them as llm.c lays it out. tests/golden/README.md
describes every file. Needs torch, transformers, safetensors and numpy.
"""
import argparse, json, pathlib, struct

import numpy
import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from peer_baichuan import BaichuanConfig, BaichuanForCausalLM


def gpt2():
    return transformers.GPT2Config(vocab_size=61, n_positions=20, n_embd=24, n_head=3, n_layer=2,
                                   bos_token_id=0, eos_token_id=0)


def mistral():
    return transformers.MistralConfig(
        vocab_size=67, hidden_size=32, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=64, sliding_window=16,
        tie_word_embeddings=False)


def qwen2():
    return transformers.Qwen2Config(
        vocab_size=59, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True)


def llama_with_biases():
    return transformers.LlamaConfig(
        vocab_size=53, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=64, attention_bias=True, mlp_bias=True,
        tie_word_embeddings=False)


def qwen3():
    return transformers.Qwen3Config(
        vocab_size=47, hidden_size=20, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=64, tie_word_embeddings=False)


def olmo2():
    return transformers.Olmo2Config(
        vocab_size=43, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=0,
        pad_token_id=1, tie_word_embeddings=False)


def phi3():
    return transformers.Phi3Config(
        vocab_size=41, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=0, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        tie_word_embeddings=False)


def gemma3():
    return transformers.Gemma3TextConfig(
        vocab_size=41, hidden_size=20, intermediate_size=28, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, max_position_embeddings=64, sliding_window=9, query_pre_attn_scalar=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], pad_token_id=None)


def gpt_neox():
    return transformers.GPTNeoXConfig(
        vocab_size=31, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=3,
        max_position_embeddings=64)


def opt():
    return transformers.OPTConfig(
        vocab_size=29, hidden_size=24, ffn_dim=36, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=30, pad_token_id=None)


def bloom():
    return transformers.BloomConfig(vocab_size=29, hidden_size=24, n_layer=2, n_head=3)


def baichuan():
    return BaichuanConfig(vocab_size=29, hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                          num_attention_heads=3, max_position_embeddings=30)


def starcoder2():
    return transformers.Starcoder2Config(
        vocab_size=37, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0)


def mixture(config_class, **keys):
    return config_class(**(dict(
        vocab_size=31, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, num_experts_per_tok=2, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=0, pad_token_id=None) | keys))


def mixtral():
    return mixture(transformers.MixtralConfig, num_local_experts=3, sliding_window=9, output_router_logits=True)


def qwen3_moe():  # whose first and third layers are dense
    return mixture(transformers.Qwen3MoeConfig, num_hidden_layers=4, head_dim=6, moe_intermediate_size=10, num_experts=4,
                   norm_topk_prob=True, decoder_sparse_step=2)


def olmoe():
    return mixture(transformers.OlmoeConfig, num_experts=3)


def gpt_oss():
    return mixture(transformers.GptOssConfig, num_local_experts=3, head_dim=6, sliding_window=9)


# name: (config, class, dtype, largest shard)
CASES = {
    "gpt2-f32": (gpt2, transformers.GPT2LMHeadModel, torch.float32, "1GB"),
    "mistral-bf16-sharded": (mistral, transformers.MistralForCausalLM, torch.bfloat16, "9KB"),
    "qwen2-f16": (qwen2, transformers.Qwen2ForCausalLM, torch.float16, "1GB"),
    "qwen3-bf16": (qwen3, transformers.Qwen3ForCausalLM, torch.bfloat16, "1GB"),
    "olmo2-f32-sharded": (olmo2, transformers.Olmo2ForCausalLM, torch.float32, "20KB"),
    "phi3-bf16": (phi3, transformers.Phi3ForCausalLM, torch.bfloat16, "1GB"),
    "starcoder2-bf16": (starcoder2, transformers.Starcoder2ForCausalLM, torch.bfloat16, "1GB"),
    "gemma3-bf16": (gemma3, transformers.Gemma3ForCausalLM, torch.bfloat16, "1GB"),
    "gpt-neox-f16-sharded": (gpt_neox, transformers.GPTNeoXForCausalLM, torch.float16, "6KB"),
    "opt-f16": (opt, transformers.OPTForCausalLM, torch.float16, "1GB"),
    "bloom-bf16": (bloom, transformers.BloomForCausalLM, torch.bfloat16, "1GB"),
    "baichuan-f32-sharded": (baichuan, BaichuanForCausalLM, torch.float32, "15KB"),
    "mixtral-bf16": (mixtral, transformers.MixtralForCausalLM, torch.bfloat16, "1GB"),
    "qwen3-moe-bf16-sharded": (qwen3_moe, transformers.Qwen3MoeForCausalLM, torch.bfloat16, "9KB"),
    "olmoe-f32": (olmoe, transformers.OlmoeForCausalLM, torch.float32, "1GB"),
    "gpt-oss-bf16": (gpt_oss, transformers.GptOssForCausalLM, torch.bfloat16, "1GB"),
    "llama-biases-sharded": (llama_with_biases, transformers.LlamaForCausalLM, torch.float32, "20KB"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="tests/golden/huggingface", type=pathlib.Path)
    parser.add_argument("--only", choices=sorted(CASES), help="write this folder alone")
    arguments = parser.parse_args()
    output = arguments.output
    torch.manual_seed(20240)
    cases = {arguments.only: CASES[arguments.only]} if arguments.only else CASES
    for name, (config, model_class, dtype, shard) in cases.items():
        model = model_class(config())
        for parameter in model.parameters():  # nothing equal to its neighbour or to zero
            parameter.data = torch.randn_like(parameter)
        model.tie_weights()
        model.to(dtype).save_pretrained(output / name, max_shard_size=shard)
        (output / name / "generation_config.json").unlink(missing_ok=True)
        expected = ours(model)
        save_file({key: value.float().contiguous() for key, value in expected.items()},
                  output / name / "expected.safetensors")
        if name == "gpt2-f32":
            write_llmc(model.config, expected, output / "gpt2.bin")
            write_as_of_old(model, output / "gpt2-of-old")
        if name == "olmoe-f32":
            write_as_held(model, output / "olmoe-as-held")
        if name == "gpt-oss-bf16":
            write_as_mxfp4(output / "gpt-oss-mxfp4-bf16")
        print(name, sum(value.numel() for value in expected.values()), "parameters")


def write_as_mxfp4(output):
    """A gpt-oss as it is published: experts' matrices in 4 bits, whose values are transformers' own."""
    torch.manual_seed(20241)
    model = transformers.GptOssForCausalLM(mixture(
        transformers.GptOssConfig, hidden_size=64, intermediate_size=32, num_local_experts=2, head_dim=6, sliding_window=9))
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter)
    model.to(torch.bfloat16)
    state = {}
    for index, layer in enumerate(model.model.layers):
        for what, outputs, inputs in (("gate_up_proj", 64, 64), ("down_proj", 64, 32)):
            blocks = torch.randint(0, 256, (2, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(105, 135, (2, outputs, inputs // 32), dtype=torch.uint8)
            scales[0, 0, 0], scales[1, -1, -1] = 0, 251  # from the smallest there is to nearly the largest
            getattr(layer.mlp.experts, what).data = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
            name = f"model.layers.{index}.mlp.experts.{what}"
            state[f"{name}_blocks"], state[f"{name}_scales"] = blocks, scales
    packed = {name.removesuffix("_blocks") for name in state}
    state |= {name: value for name, value in model.state_dict().items() if name not in packed}
    model.config.save_pretrained(output)
    config = json.loads((output / "config.json").read_text())
    config["quantization_config"] = {"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"}
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(state, output / "model.safetensors", metadata={"format": "pt"})
    save_file({key: value.float().contiguous() for key, value in ours(model).items()}, output / "expected.safetensors")


def ours(model):
    """The parameters under dstrain's names."""
    return {"gpt2": gpt2_names, "phi3": phi3_names, "starcoder2": starcoder2_names,
            "gpt_neox": gpt_neox_names, "opt": opt_names, "bloom": bloom_names, "baichuan": baichuan_names}.get(
        model.config.model_type, llama_names)(model)


def gpt2_names(model):
    width = model.config.n_embd
    named = {"embedding.token.weight": model.transformer.wte.weight,
             "embedding.position.weight": model.transformer.wpe.weight}
    for index, layer in enumerate(model.transformer.h):
        block = f"blocks.{index}."
        fused, bias = layer.attn.c_attn.weight, layer.attn.c_attn.bias
        for part, what in enumerate(("query", "key", "value")):
            columns = slice(part * width, (part + 1) * width)
            named[f"{block}attention.{what}.weight"] = fused[:, columns].T
            named[f"{block}attention.{what}.bias"] = bias[columns]
        for what, module in (("attention.output", layer.attn.c_proj), ("mlp.up", layer.mlp.c_fc),
                             ("mlp.down", layer.mlp.c_proj)):
            named[f"{block}{what}.weight"] = module.weight.T
            named[f"{block}{what}.bias"] = module.bias
        for what, module in (("attention_norm", layer.ln_1), ("mlp_norm", layer.ln_2)):
            named[f"{block}{what}.weight"], named[f"{block}{what}.bias"] = module.weight, module.bias
    named["final_norm.weight"] = model.transformer.ln_f.weight
    named["final_norm.bias"] = model.transformer.ln_f.bias
    return {key: value.detach().clone() for key, value in named.items()}


def llama_names(model):
    named = {"embedding.token.weight": model.model.embed_tokens.weight,
             "final_norm.weight": model.model.norm.weight}
    if not model.config.tie_word_embeddings:
        named["head.weight"] = model.lm_head.weight
    for index, layer in enumerate(model.model.layers):
        block = f"blocks.{index}."
        attention, mlp = layer.self_attn, layer.mlp
        if model.config.model_type == "olmo2":  # behind their halves, and none before
            norms = layer.post_attention_layernorm, layer.post_feedforward_layernorm
        elif model.config.model_type == "gemma3_text":  # before them and behind
            norms = layer.input_layernorm, layer.pre_feedforward_layernorm
            named[f"{block}attention_result_norm.weight"] = layer.post_attention_layernorm.weight
            named[f"{block}mlp_result_norm.weight"] = layer.post_feedforward_layernorm.weight
        else:
            norms = layer.input_layernorm, layer.post_attention_layernorm
        named[f"{block}attention_norm.weight"], named[f"{block}mlp_norm.weight"] = (
            norm.weight for norm in norms)
        if model.config.model_type in ("qwen3", "olmo2", "gemma3_text", "qwen3_moe", "olmoe"):
            named[f"{block}attention.query_norm.weight"] = attention.q_norm.weight
            named[f"{block}attention.key_norm.weight"] = attention.k_norm.weight
        modules = {"attention.query": attention.q_proj, "attention.key": attention.k_proj,
                   "attention.value": attention.v_proj, "attention.output": attention.o_proj}
        if model.config.model_type == "gpt_oss":
            named[f"{block}attention.sinks"] = attention.sinks
            named[f"{block}mlp.router.weight"], named[f"{block}mlp.router.bias"] = mlp.router.weight, mlp.router.bias
            of = mlp.experts
            for expert in range(model.config.num_local_experts):
                for what, weight, bias in (
                        ("gate", of.gate_up_proj[expert][:, ::2], of.gate_up_proj_bias[expert][::2]),
                        ("up", of.gate_up_proj[expert][:, 1::2], of.gate_up_proj_bias[expert][1::2]),
                        ("down", of.down_proj[expert], of.down_proj_bias[expert])):
                    place = f"{block}mlp.experts.{expert}.{what}"
                    named[f"{place}.weight"], named[f"{place}.bias"] = weight.T, bias
        elif hasattr(mlp, "experts"):
            named[f"{block}mlp.router.weight"] = mlp.gate.weight
            for expert, (gate_up, down) in enumerate(zip(mlp.experts.gate_up_proj, mlp.experts.down_proj)):
                gate, up = gate_up.chunk(2)
                for what, weight in (("gate", gate), ("up", up), ("down", down)):
                    named[f"{block}mlp.experts.{expert}.{what}.weight"] = weight
        else:
            modules |= {"mlp.gate": mlp.gate_proj, "mlp.up": mlp.up_proj, "mlp.down": mlp.down_proj}
        for what, module in modules.items():
            named[f"{block}{what}.weight"] = module.weight
            if module.bias is not None:
                named[f"{block}{what}.bias"] = module.bias
    return {key: value.detach().clone() for key, value in named.items()}


def phi3_names(model):
    named = {"embedding.token.weight": model.model.embed_tokens.weight,
             "final_norm.weight": model.model.norm.weight, "head.weight": model.lm_head.weight}
    config = model.config
    depth = config.hidden_size // config.num_attention_heads
    keys = config.num_key_value_heads * depth
    for index, layer in enumerate(model.model.layers):
        block = f"blocks.{index}."
        fused = layer.self_attn.qkv_proj.weight
        query, key, value = fused[:config.hidden_size], fused[config.hidden_size:-keys], fused[-keys:]
        gate_up = layer.mlp.gate_up_proj.weight
        for what, weight in (("attention.query", query), ("attention.key", key), ("attention.value", value),
                             ("attention.output", layer.self_attn.o_proj.weight),
                             ("mlp.gate", gate_up[:config.intermediate_size]),
                             ("mlp.up", gate_up[config.intermediate_size:]), ("mlp.down", layer.mlp.down_proj.weight),
                             ("attention_norm", layer.input_layernorm.weight),
                             ("mlp_norm", layer.post_attention_layernorm.weight)):
            named[f"{block}{what}.weight"] = weight
    return {key: value.detach().clone() for key, value in named.items()}


def starcoder2_names(model):
    named = {"embedding.token.weight": model.model.embed_tokens.weight}
    modules = {"final_norm": model.model.norm}
    for index, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for what, module in (("attention_norm", layer.input_layernorm), ("mlp_norm", layer.post_attention_layernorm),
                             ("attention.query", attention.q_proj), ("attention.key", attention.k_proj),
                             ("attention.value", attention.v_proj), ("attention.output", attention.o_proj),
                             ("mlp.up", mlp.c_fc), ("mlp.down", mlp.c_proj)):
            modules[f"blocks.{index}.{what}"] = module
    for name, module in modules.items():
        named[f"{name}.weight"], named[f"{name}.bias"] = module.weight, module.bias
    return {key: value.detach().clone() for key, value in named.items()}


def gpt_neox_names(model):
    """For each head the rows of its queries, its keys, its values; then those of the next head."""
    base, config = model.gpt_neox, model.config
    depth = config.hidden_size // config.num_attention_heads
    named = {"embedding.token.weight": base.embed_in.weight, "head.weight": model.get_output_embeddings().weight}
    modules = {"final_norm": base.final_layer_norm}
    for index, layer in enumerate(base.layers):
        block, fused = f"blocks.{index}.", layer.attention.query_key_value
        for part, what in enumerate(("query", "key", "value")):
            starts = range(part * depth, 3 * config.hidden_size, 3 * depth)
            rows = [row for start in starts for row in range(start, start + depth)]
            named[f"{block}attention.{what}.weight"], named[f"{block}attention.{what}.bias"] = (
                fused.weight[rows], fused.bias[rows])
        for what, module in (("attention_norm", layer.input_layernorm), ("mlp_norm", layer.post_attention_layernorm),
                             ("attention.output", layer.attention.dense), ("mlp.up", layer.mlp.dense_h_to_4h),
                             ("mlp.down", layer.mlp.dense_4h_to_h)):
            modules[f"{block}{what}"] = module
    for name, module in modules.items():
        named[f"{name}.weight"], named[f"{name}.bias"] = module.weight, module.bias
    return {key: value.detach().clone() for key, value in named.items()}


def bloom_names(model):
    """As GPT-NeoX's: of each head the rows of its queries, its keys, its values."""
    base, config = model.transformer, model.config
    depth = config.hidden_size // config.n_head
    named = {"embedding.token.weight": base.word_embeddings.weight}
    modules = {"embedding.norm": base.word_embeddings_layernorm, "final_norm": base.ln_f}
    for index, layer in enumerate(base.h):
        block, fused = f"blocks.{index}.", layer.self_attention.query_key_value
        for part, what in enumerate(("query", "key", "value")):
            rows = [3 * depth * head + depth * part + row for head in range(config.n_head) for row in range(depth)]
            named[f"{block}attention.{what}.weight"], named[f"{block}attention.{what}.bias"] = (
                fused.weight[rows], fused.bias[rows])
        for what, module in (("attention_norm", layer.input_layernorm), ("mlp_norm", layer.post_attention_layernorm),
                             ("attention.output", layer.self_attention.dense), ("mlp.up", layer.mlp.dense_h_to_4h),
                             ("mlp.down", layer.mlp.dense_4h_to_h)):
            modules[f"{block}{what}"] = module
    for name, module in modules.items():
        named[f"{name}.weight"], named[f"{name}.bias"] = module.weight, module.bias
    return {key: value.detach().clone() for key, value in named.items()}


def baichuan_names(model):
    named = {"embedding.token.weight": model.model.embed_tokens.weight,
             "final_norm.weight": model.model.norm.weight, "head.weight": model.lm_head.weight}
    for index, layer in enumerate(model.model.layers):
        block, attention, mlp = f"blocks.{index}.", layer.self_attn, layer.mlp
        query, key, value = attention.W_pack.weight.chunk(3)
        for what, weight in (("attention.query", query), ("attention.key", key), ("attention.value", value),
                             ("attention.output", attention.o_proj.weight), ("mlp.gate", mlp.gate_proj.weight),
                             ("mlp.up", mlp.up_proj.weight), ("mlp.down", mlp.down_proj.weight),
                             ("attention_norm", layer.input_layernorm.weight),
                             ("mlp_norm", layer.post_attention_layernorm.weight)):
            named[f"{block}{what}.weight"] = weight
    return {key: value.detach().clone() for key, value in named.items()}


def opt_names(model):
    base = model.model.decoder
    named = {"embedding.token.weight": base.embed_tokens.weight,
             "embedding.position.weight": base.embed_positions.weight}
    modules = {"final_norm": base.final_layer_norm}
    for index, layer in enumerate(base.layers):
        attention = layer.self_attn
        for what, module in (("attention_norm", layer.self_attn_layer_norm), ("mlp_norm", layer.final_layer_norm),
                             ("attention.query", attention.q_proj), ("attention.key", attention.k_proj),
                             ("attention.value", attention.v_proj), ("attention.output", attention.out_proj),
                             ("mlp.up", layer.fc1), ("mlp.down", layer.fc2)):
            modules[f"blocks.{index}.{what}"] = module
    for name, module in modules.items():
        named[f"{name}.weight"], named[f"{name}.bias"] = module.weight, module.bias
    return {key: value.detach().clone() for key, value in named.items()}


def write_as_held(model, folder):
    """The tensors as transformers 5 holds them, one for all experts, where save_pretrained writes one for each."""
    folder.mkdir(exist_ok=True)
    weights = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)


def write_as_of_old(model, folder):
    """As the first GPT-2 on the hub: the base model's names, and causal masks among the weights."""
    folder.mkdir(exist_ok=True)
    weights = {key.removeprefix("transformer."): value.contiguous()
               for key, value in model.state_dict().items() if key != "lm_head.weight"}
    positions = model.config.n_positions
    for layer in range(model.config.n_layer):
        weights[f"h.{layer}.attn.bias"] = torch.ones(positions, positions).tril()[None, None]
        weights[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    old = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": model.config.vocab_size,
           "n_positions": positions, "n_ctx": positions, "n_embd": model.config.n_embd,
           "n_layer": model.config.n_layer, "n_head": model.config.n_head}
    (folder / "config.json").write_text(json.dumps(old, indent=2) + "\n")


def write_llmc(config, named, path):
    """256 int32, then f32 tensors, with those of all layers one after the other."""
    padded = (config.vocab_size + 127) // 128 * 128
    header = [20240326, 3, config.n_positions, config.vocab_size, config.n_layer, config.n_head,
              config.n_embd, padded]
    with open(path, "wb") as out:
        out.write(struct.pack("<256i", *(header + [0] * (256 - len(header)))))
        put = lambda tensor: out.write(tensor.float().numpy().astype(numpy.float32).tobytes())
        layers = range(config.n_layer)
        stack = lambda what: torch.stack([named[f"blocks.{layer}.{what}"] for layer in layers])
        fused = lambda kind: torch.stack([torch.cat([named[f"blocks.{layer}.attention.{part}.{kind}"]
                                                     for part in ("query", "key", "value")]) for layer in layers])
        put(torch.nn.functional.pad(named["embedding.token.weight"], (0, 0, 0, padded - config.vocab_size)))
        put(named["embedding.position.weight"])
        put(stack("attention_norm.weight"))
        put(stack("attention_norm.bias"))
        put(fused("weight"))
        put(fused("bias"))
        for what in ("attention.output", "mlp_norm", "mlp.up", "mlp.down"):
            put(stack(f"{what}.weight"))
            put(stack(f"{what}.bias"))
        put(named["final_norm.weight"])
        put(named["final_norm.bias"])


if __name__ == "__main__":
    main()
