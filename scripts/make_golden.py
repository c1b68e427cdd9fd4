#!/usr/bin/env python3
"""Write the fixtures in tests/golden: results of PyTorch with Hugging Face's own model classes.

For each small model: weights from a fixed seed, batches of tokens, the gradients of step 0 and the
losses of ten AdamW steps. dstrain's parity tests start from the same weights and must arrive at the
same figures. tests/golden/README.md describes every file.

Needs torch, transformers, safetensors and numpy; runs on the CPU in under a minute.
"""

# V vocabulary, B batch, T sequence; batches are [B, T] tokens, stacked over steps.

import argparse
import json
import math
import pathlib
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers.modeling_rope_utils import dynamic_rope_update
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from peer_baichuan import BaichuanConfig, BaichuanForCausalLM

NUM_STEPS = 10  # AdamW steps; the loss is taken before each and after the last
LEARNING_RATE = 1e-3
BETAS = (0.9, 0.95)
EPSILON = 1e-8
WEIGHT_DECAY = 0.1
MAX_GRADIENT_NORM = 1.0
WEIGHT_STD = 0.1
CLEAR_CHOICE = 1e-5  # the least gap between the share of the last expert that is chosen and the next


def gpt2_tiny():
    return transformers.GPT2Config(
        vocab_size=211, n_positions=48, n_embd=48, n_head=3, n_layer=3,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)


def llama_tiny():
    return transformers.LlamaConfig(
        vocab_size=197, hidden_size=96, intermediate_size=172, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, max_position_embeddings=64,
        rms_norm_eps=1e-5, tie_word_embeddings=False, attention_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=0, eos_token_id=0)


def qwen2_tiny():
    return transformers.Qwen2Config(
        vocab_size=131, hidden_size=56, intermediate_size=100, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        rms_norm_eps=1e-6, tie_word_embeddings=True, attention_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        bos_token_id=0, eos_token_id=0)


def llama3_rope_tiny():
    # Wavelengths 6.3, 32, 167, ...: with 64 original positions the first frequency is kept, the
    # second is blended and the others are divided, so every branch of the rule is taken.
    return transformers.LlamaConfig(
        vocab_size=113, hidden_size=64, intermediate_size=120, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
        rms_norm_eps=1e-5, tie_word_embeddings=False, attention_dropout=0.0,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        bos_token_id=0, eos_token_id=0)


def fp8_tiny():
    # All sizes that are multiplied in 8 bits are multiples of 16.
    return transformers.LlamaConfig(
        vocab_size=101, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=64,
        rms_norm_eps=1e-5, tie_word_embeddings=False, attention_dropout=0.0, attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=0, eos_token_id=0)


def qwen3_tiny():
    # Heads of a size that is not hidden_size / num_attention_heads.
    return transformers.Qwen3Config(
        vocab_size=127, hidden_size=40, intermediate_size=72, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=64,
        rms_norm_eps=1e-6, tie_word_embeddings=True, attention_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        bos_token_id=0, eos_token_id=0)


def olmo2_tiny():
    # Without a padding token, whose embedding torch would leave out of the gradient.
    return transformers.Olmo2Config(
        vocab_size=109, hidden_size=48, intermediate_size=84, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        rms_norm_eps=1e-6, tie_word_embeddings=False, attention_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        bos_token_id=0, eos_token_id=0, pad_token_id=None)


def family_tiny(config_class, **keys):
    # Without a padding token, whose embedding torch would leave out of the gradient.
    return lambda: config_class(**(dict(
        hidden_size=40, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        attention_dropout=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=None) | keys))


FULL, SLIDING = "full_attention", "sliding_attention"
mistral_tiny = family_tiny(transformers.MistralConfig, vocab_size=83, num_hidden_layers=2, head_dim=8, sliding_window=7,
                           rms_norm_eps=1e-6, tie_word_embeddings=False)
# A rotation stretched by YaRN in the layer without a window.
olmo3_tiny = family_tiny(
    transformers.Olmo3Config, vocab_size=89, num_hidden_layers=3, rms_norm_eps=1e-6, tie_word_embeddings=False,
    sliding_window=9, layer_types=[SLIDING, FULL, SLIDING], rope_parameters={
        FULL: {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
               "original_max_position_embeddings": 16},
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0}})
smollm3_tiny = family_tiny(transformers.SmolLM3Config, vocab_size=97, num_hidden_layers=3, no_rope_layers=[1, 0, 1],
                           rms_norm_eps=1e-6, tie_word_embeddings=True)
phi3_tiny = family_tiny(
    transformers.Phi3Config, vocab_size=79, num_hidden_layers=2, hidden_size=48, rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})
# 23 tokens are more than the original positions, so the long factors count.
longrope_tiny = family_tiny(
    transformers.Phi3Config, vocab_size=79, num_hidden_layers=2, hidden_size=48, rms_norm_eps=1e-5,
    tie_word_embeddings=False, original_max_position_embeddings=16,
    rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                     "short_factor": [1.0, 1.1, 1.4], "long_factor": [1.1, 2.0, 7.5],
                     "original_max_position_embeddings": 16})
starcoder2_tiny = family_tiny(transformers.Starcoder2Config, vocab_size=71, num_hidden_layers=2, sliding_window=11,
                              norm_epsilon=1e-5, tie_word_embeddings=True, residual_dropout=0.0, embedding_dropout=0.0)

# Caps so low that they bend, a scale that is not the head's, a head of 8 where the width has 10 for each.
gemma = dict(head_dim=8, query_pre_attn_scalar=14, rms_norm_eps=1e-6, tie_word_embeddings=True)
gemma2_tiny = family_tiny(
    transformers.Gemma2Config, **gemma, vocab_size=83, num_hidden_layers=2, sliding_window=7,
    attn_logit_softcapping=1.5, final_logit_softcapping=3.0, layer_types=[SLIDING, FULL],
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
# Windows rotate by a base of their own; the other layer's rotation is stretched.
gemma3_tiny = family_tiny(
    transformers.Gemma3TextConfig, **gemma, vocab_size=73, num_hidden_layers=3, sliding_window=9,
    layer_types=[SLIDING, FULL, SLIDING], rope_parameters={
        FULL: {"rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0},
        SLIDING: {"rope_type": "default", "rope_theta": 1000.0}})

# An auxiliary loss so large that it shows, and a window that binds.
mixtral_tiny = family_tiny(
    transformers.MixtralConfig, vocab_size=71, num_hidden_layers=2, intermediate_size=28, num_local_experts=4,
    num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.5, sliding_window=9, rms_norm_eps=1e-5,
    tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
# A dense layer between two with experts, and head sizes of their own.
qwen3_moe_tiny = family_tiny(
    transformers.Qwen3MoeConfig, vocab_size=67, num_hidden_layers=3, head_dim=16, moe_intermediate_size=20, num_experts=6,
    num_experts_per_tok=3, norm_topk_prob=True, mlp_only_layers=[1], output_router_logits=True, router_aux_loss_coef=0.25,
    rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
# Experts' shares as they are, and no auxiliary loss.
olmoe_tiny = family_tiny(
    transformers.OlmoeConfig, vocab_size=61, num_hidden_layers=2, intermediate_size=24, num_experts=5,
    num_experts_per_tok=2, norm_topk_prob=False, rms_norm_eps=1e-5, tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0})

# A limit of gates so low that it binds, a window of 7 in one layer, and a rotation stretched by YaRN.
gpt_oss_tiny = family_tiny(
    transformers.GptOssConfig, vocab_size=59, num_hidden_layers=2, head_dim=8, intermediate_size=24, num_local_experts=4,
    num_experts_per_tok=2, swiglu_limit=0.5, sliding_window=7, layer_types=[SLIDING, FULL], rms_norm_eps=1e-5,
    tie_word_embeddings=False, rope_parameters={
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 16})

# Latents of queries and of keys and values, a rotation stretched by YaRN whose scores grow too, and dense layers alone.
deepseek = dict(
    vocab_size=53, num_hidden_layers=2, num_key_value_heads=4, kv_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4,
    rms_norm_eps=1e-5, tie_word_embeddings=False)
deepseek_v2_tiny = family_tiny(
    transformers.DeepseekV2Config, **deepseek, q_lora_rank=12, v_head_dim=8, first_k_dense_replace=2,
    num_experts_per_tok=2, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 0.9,
        "mscale_all_dim": 0.7, "original_max_position_embeddings": 16})
# Queries without a latent, values as wide as keys, and experts among the best groups beside one for every token.
deepseek_v2_lite_tiny = family_tiny(
    transformers.DeepseekV2Config, **deepseek, q_lora_rank=None, v_head_dim=10, first_k_dense_replace=1,
    moe_intermediate_size=20, n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, n_group=3, topk_group=2,
    topk_method="group_limited_greedy", routed_scaling_factor=2.5,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
# Sigmoids, groups by their two best, weights that are divided by their sum, and a bias that transformers leaves as it is.
deepseek_v3_tiny = family_tiny(
    transformers.DeepseekV3Config, **deepseek, q_lora_rank=12, v_head_dim=8, first_k_dense_replace=1,
    moe_intermediate_size=20, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2,
    norm_topk_prob=True, routed_scaling_factor=2.5, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 0.9,
        "mscale_all_dim": 0.7, "original_max_position_embeddings": 16})


def gpt_neox_tiny():
    return transformers.GPTNeoXConfig(
        vocab_size=67, hidden_size=48, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, layer_norm_eps=1e-5, hidden_dropout=0.0, attention_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        bos_token_id=0, eos_token_id=0)



def opt_tiny():
    return transformers.OPTConfig(
        vocab_size=61, hidden_size=40, ffn_dim=56, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=48, dropout=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=None)


def bloom_tiny():
    # Three heads, of which the third's slope is one of four heads'.
    return transformers.BloomConfig(
        vocab_size=59, hidden_size=36, n_layer=2, n_head=3, hidden_dropout=0.0, attention_dropout=0.0,
        bos_token_id=0, eos_token_id=0, pad_token_id=None)


def baichuan2_tiny():
    # As the one of 13 B: ALiBi, and a head whose rows count with length one.
    return BaichuanConfig(
        vocab_size=53, hidden_size=40, intermediate_size=56, num_hidden_layers=2, num_attention_heads=5,
        model_max_length=64, norm_head=True, bos_token_id=0, eos_token_id=0, pad_token_id=None)


# name: (config, class, B, T, seed). With these, the gradient norm of gpt2-tiny lies on both sides of
# the clipping threshold, and above it in the others.
CASES = {
    "gpt2-tiny": (gpt2_tiny, transformers.GPT2LMHeadModel, 8, 33, 1001),
    "llama-tiny": (llama_tiny, transformers.LlamaForCausalLM, 3, 37, 1002),
    "qwen2-tiny": (qwen2_tiny, transformers.Qwen2ForCausalLM, 2, 31, 1003),
    "llama3-rope-tiny": (llama3_rope_tiny, transformers.LlamaForCausalLM, 2, 41, 1004),
    "qwen3-tiny": (qwen3_tiny, transformers.Qwen3ForCausalLM, 3, 29, 1006),
    "olmo2-tiny": (olmo2_tiny, transformers.Olmo2ForCausalLM, 2, 33, 1007),
    "mistral-tiny": (mistral_tiny, transformers.MistralForCausalLM, 2, 23, 1008),
    "olmo3-tiny": (olmo3_tiny, transformers.Olmo3ForCausalLM, 2, 29, 1009),
    "smollm3-tiny": (smollm3_tiny, transformers.SmolLM3ForCausalLM, 2, 23, 1010),
    "phi3-tiny": (phi3_tiny, transformers.Phi3ForCausalLM, 2, 23, 1011),
    "longrope-tiny": (longrope_tiny, transformers.Phi3ForCausalLM, 2, 23, 1017),
    "starcoder2-tiny": (starcoder2_tiny, transformers.Starcoder2ForCausalLM, 2, 27, 1012),
    "gemma2-tiny": (gemma2_tiny, transformers.Gemma2ForCausalLM, 2, 23, 1013),
    "gpt-neox-tiny": (gpt_neox_tiny, transformers.GPTNeoXForCausalLM, 2, 25, 1015),
    "opt-tiny": (opt_tiny, transformers.OPTForCausalLM, 2, 25, 1016),
    "bloom-tiny": (bloom_tiny, transformers.BloomForCausalLM, 2, 25, 1017),
    "baichuan2-tiny": (baichuan2_tiny, BaichuanForCausalLM, 2, 25, 1018),
    "mixtral-tiny": (mixtral_tiny, transformers.MixtralForCausalLM, 2, 23, 1019),
    "capacity-tiny": (mixtral_tiny, transformers.MixtralForCausalLM, 3, 23, 1025),
    "qwen3-moe-tiny": (qwen3_moe_tiny, transformers.Qwen3MoeForCausalLM, 3, 19, 1120),
    "olmoe-tiny": (olmoe_tiny, transformers.OlmoeForCausalLM, 2, 25, 1021),
    "gpt-oss-tiny": (gpt_oss_tiny, transformers.GptOssForCausalLM, 2, 25, 1022),
    "deepseek-v2-tiny": (deepseek_v2_tiny, transformers.DeepseekV2ForCausalLM, 2, 25, 1023),
    "deepseek-v2-lite-tiny": (deepseek_v2_lite_tiny, transformers.DeepseekV2ForCausalLM, 2, 25, 1024),
    "deepseek-v3-tiny": (deepseek_v3_tiny, transformers.DeepseekV3ForCausalLM, 2, 25, 1026),
    "gemma3-tiny": (gemma3_tiny, transformers.Gemma3ForCausalLM, 2, 27, 1014),
    "fp8-tiny": (fp8_tiny, transformers.LlamaForCausalLM, 4, 32, 1005),
}
IN_8_BITS = {"fp8-tiny"}  # trained once more with the blocks' products in 8 bits
CAPACITY_FACTORS = {"capacity-tiny": 0.75}  # of experts that drop tokens


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/golden"),
                        help="folder to write one folder per model into (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), help="write these models' fixtures alone")
    arguments = parser.parse_args()

    # One thread and deterministic kernels: the same bytes at every run on one machine.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.only or CASES:
        write_case(name, arguments.output / name)


def write_case(name, folder):
    make_config, model_class, batch, sequence, seed = CASES[name]
    config = make_config()
    generator = torch.Generator().manual_seed(seed)
    initial = make_weights(model_class, config, generator)
    inputs, targets = make_batches(config.vocab_size, batch, sequence, generator)

    # "eager" is the plain formula; its softmax is pinned to fp32, so the fp64 run takes "sdpa", which
    # knows no caps or sinks, nor BLOOM.
    has_eager_alone = getattr(config, "attn_logit_softcapping", None) or config.model_type in ("bloom", "gpt_oss")
    other = "eager" if has_eager_alone else "sdpa"
    models = [make_model(model_class, config, initial, dtype, attention)
              for dtype, attention in ((torch.float32, "eager"), (torch.float64, other))]
    for model in models:
        if name in CAPACITY_FACTORS:
            drop_tokens(model, sequence, CAPACITY_FACTORS[name])
    single, double = (train(model, inputs, targets) for model in models)
    conditioning = compare(single, double)

    folder.mkdir(parents=True, exist_ok=True)
    write_model(make_model(model_class, config, initial, torch.float32, "eager"), folder)
    tensors = {
        "inputs": inputs.to(torch.int32), "targets": targets.to(torch.int32),
        "losses": torch.tensor(single["losses"], dtype=torch.float32),
        "losses_f64": torch.tensor(double["losses"], dtype=torch.float64),
        "grad_norms": torch.tensor(single["grad_norms"], dtype=torch.float32),
        "grad_norms_f64": torch.tensor(double["grad_norms"], dtype=torch.float64),
    }
    if config.model_type == "gpt_neox":  # whose files keep the head's older name
        single["gradients"]["embed_out.weight"] = single["gradients"].pop("lm_head.weight")
    if any(double["auxiliary"]):
        tensors["auxiliary"] = torch.tensor(single["auxiliary"], dtype=torch.float32)
        tensors["auxiliary_f64"] = torch.tensor(double["auxiliary"], dtype=torch.float64)
    gradients = as_saved(config, single["gradients"])
    tensors |= {f"grad/{key}": value for key, value in gradients.items()}
    if name in IN_8_BITS:
        narrow = make_model(model_class, config, initial, torch.float32, "eager")
        multiply_in_8_bits(narrow)
        eight = train(narrow, inputs, targets)
        tensors["fp8_losses"] = torch.tensor(eight["losses"], dtype=torch.float64)
        tensors |= {f"fp8_grad/{key}": value for key, value in eight["gradients"].items()}
    save_file(tensors, folder / "golden.safetensors", metadata={"format": "pt"})
    write_description(name, folder, seed, batch, sequence, single, double, conditioning)
    print(f"{name}: loss {single['losses'][0]:.6f} -> {single['losses'][-1]:.6f}, "
          f"gradient norm {single['grad_norms'][0]:.3f} -> {single['grad_norms'][-1]:.3f}, "
          f"fp32 is within {conditioning['losses']:.1e} (losses) and "
          f"{conditioning['worst_gradient']:.1e} (gradients) of fp64")


def make_weights(model_class, config, generator):
    """Every parameter drawn in order of name, far enough from 0 and 1 that no term can hide."""
    weights = {}
    for name, parameter in sorted(model_class(config).named_parameters()):
        noise = WEIGHT_STD * torch.randn(parameter.shape, generator=generator)
        is_factor = parameter.dim() == 1 and name.endswith(".weight") and not counts_norms_from_one(config)
        weights[name] = noise + 1.0 if is_factor else noise
    for name, buffer in model_class(config).named_buffers():
        if name.endswith("e_score_correction_bias"):
            weights[name] = WEIGHT_STD * torch.randn(buffer.shape, generator=generator)
    return weights


def as_saved(config, tensors):
    """With those of experts, which transformers holds in one, under the names that save_pretrained gives each."""
    one_by_one = {}
    for name, value in tensors.items():
        if ".experts." not in name or config.model_type == "gpt_oss":
            saved = name.replace(".mlp.", ".block_sparse_moe.") if config.model_type == "mixtral" else name
            one_by_one[saved] = value
            continue
        block, matrix = name.split(".mlp.experts.")
        for expert, both in enumerate(value):
            for what, part in zip(("gate", "up"), both.chunk(2)) if matrix == "gate_up_proj" else (("down", both),):
                place = (f"block_sparse_moe.experts.{expert}.{ {'gate': 'w1', 'up': 'w3', 'down': 'w2'}[what]}"
                         if config.model_type == "mixtral" else f"mlp.experts.{expert}.{what}_proj")
                one_by_one[f"{block}.{place}.weight"] = part.contiguous()
    return one_by_one


def counts_norms_from_one(config):
    return config.model_type.startswith("gemma")


def make_batches(vocabulary, batch, sequence, generator):
    """[steps, B, T] inputs and next tokens. Mostly a fixed successor rule, so there is something to
    learn in ten steps; every fourth token or so is drawn with the small ids more frequent."""
    steps = NUM_STEPS + 1
    shape = (steps, batch, sequence + 1)
    drawn = (vocabulary * torch.rand(shape, generator=generator) ** 2).long().clamp(max=vocabulary - 1)
    surprise = torch.rand(shape, generator=generator) < 0.25
    stream = drawn.clone()
    for position in range(1, sequence + 1):
        successor = (stream[..., position - 1] * 3 + 7) % vocabulary
        stream[..., position] = torch.where(surprise[..., position], drawn[..., position], successor)
    return stream[..., :-1].contiguous(), stream[..., 1:].contiguous()


def make_model(model_class, config, weights, dtype, attention):
    model = model_class._from_config(config, attn_implementation=attention)
    model.load_state_dict(weights, strict=False)  # a tied head is not among the weights
    model.tie_weights()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name]), f"{name} was not loaded"
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    model.train()
    if dtype == torch.float64:
        model.double()
        unpin_from_single_precision(model)
    return model


def unpin_from_single_precision(model):
    """Hugging Face computes RMSNorm and the rotary tables in fp32 whatever the model's dtype; for the
    fp64 reference both are replaced by the same formula in fp64."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = rms_norm_in_double.__get__(module)
        elif type(module).__name__ == "DeepseekV2RotaryEmbedding":
            module.forward = complex_rotary_in_double.__get__(module)
        elif type(module).__name__ == "DeepseekV2TopkRouter":
            module.forward = deepseek_router_in_double.__get__(module)
        elif type(module).__name__ == "DeepseekV3TopkRouter":
            module.forward = balanced_router_in_double.__get__(module)
        elif type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = rotary_in_double.__get__(module)
        elif type(module).__name__.endswith("TopKRouter"):
            module.forward = router_in_double.__get__(module)


def complex_rotary_in_double(self, hidden, position_ids):
    angle = position_ids[:, :, None].double() * self.inv_freq.double()
    return torch.polar(torch.ones_like(angle), angle) * self.attention_scaling


def rotate_in_own_precision(queries, keys, turns):
    def turned(x):
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        pairs = torch.view_as_complex((pairs if x.dtype == torch.float64 else pairs.float()).contiguous())
        return torch.view_as_real(pairs * turns.unsqueeze(1)).flatten(3).type_as(x)
    return turned(queries), turned(keys)


modeling_deepseek_v2.apply_rotary_emb = rotate_in_own_precision  # which is pinned to fp32


def deepseek_router_in_double(self, hidden):
    hidden = hidden.reshape(-1, self.hidden_dim)
    logits = hidden @ self.weight.T
    shares = logits.softmax(-1)
    groups = shares.view(len(shares), self.num_group, -1).max(-1).values
    best = groups.sort(-1, descending=True)
    assert (best.values[:, self.topk_group - 1] - best.values[:, self.topk_group]).min() > CLEAR_CHOICE
    allowed = torch.zeros_like(groups).scatter(1, best.indices[:, :self.topk_group], 1.0)
    allowed = allowed.repeat_interleave(self.num_experts // self.num_group, dim=1)
    ordered, experts = (shares * allowed).sort(dim=-1, descending=True)
    assert (ordered[:, self.top_k - 1] - ordered[:, self.top_k]).min() > CLEAR_CHOICE
    return logits, ordered[:, :self.top_k] * self.routed_scaling_factor, experts[:, :self.top_k]


def balanced_router_in_double(self, hidden):
    logits = hidden.reshape(-1, self.hidden_dim) @ self.weight.T
    scores = logits.sigmoid()
    by = scores + self.e_score_correction_bias
    best = by.view(len(by), self.num_group, -1).topk(2, dim=-1).values.sum(-1).sort(-1, descending=True)
    assert (best.values[:, self.topk_group - 1] - best.values[:, self.topk_group]).min() > CLEAR_CHOICE
    allowed = torch.zeros_like(best.values).scatter(1, best.indices[:, :self.topk_group], 1.0).bool()
    allowed = allowed.repeat_interleave(self.num_experts // self.num_group, dim=1)
    ordered, experts = by.masked_fill(~allowed, -torch.inf).sort(dim=-1, descending=True)
    assert (ordered[:, self.top_k - 1] - ordered[:, self.top_k]).min() > CLEAR_CHOICE
    experts = experts[:, :self.top_k]
    weights = scores.gather(1, experts)
    return logits, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.routed_scaling_factor, experts


def router_in_double(self, hidden):
    logits = hidden.reshape(-1, self.hidden_dim) @ self.weight.T + getattr(self, "bias", 0.0)
    ordered, experts = logits.softmax(-1).sort(dim=-1, descending=True)
    # Rounding must not decide which experts a token goes through.
    gap = (ordered[:, self.top_k - 1] - ordered[:, self.top_k]).min().item()
    assert gap > CLEAR_CHOICE, f"two experts of a token are only {gap:.1e} apart: take another seed"
    shares = ordered[:, :self.top_k]
    if getattr(self, "norm_topk_prob", True):  # Mixtral has no such key
        shares = shares / shares.sum(-1, keepdim=True)
    return logits, shares, experts[:, :self.top_k]


def rms_norm_in_double(self, hidden):
    from_one = hasattr(self, "eps")  # Gemma's
    epsilon = self.eps if from_one else self.variance_epsilon
    scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + epsilon)
    return (self.weight + from_one) * (hidden * scale)


pinned_softmax = F.softmax


def softmax_in_double(x, *arguments, dtype=None, **keys):
    return pinned_softmax(x, *arguments, dtype=None if x.dtype == torch.float64 else dtype, **keys)


F.softmax = softmax_in_double


@dynamic_rope_update  # which takes LongRoPE's frequencies for the length
def rotary_in_double(self, hidden, position_ids, layer_type=None):
    prefix = "" if layer_type is None else layer_type + "_"
    angle = position_ids[:, :, None].double() * getattr(self, prefix + "inv_freq").double()
    if "GptOss" not in type(self).__name__:  # which keeps each angle once
        angle = torch.cat((angle, angle), dim=-1)
    scaling = getattr(self, prefix + "attention_scaling")
    return angle.cos() * scaling, angle.sin() * scaling


class Quantizer:
    """x as q * 2^e with q an 8-bit float of PyTorch's: e makes the largest magnitude of the previous
    steps fit, or that of x itself in the first step."""

    def __init__(self, dtype):
        self.dtype, self.largest = dtype, torch.finfo(dtype).max
        self.earlier, self.this_step = None, None

    def __call__(self, x):
        amax = x.detach().abs().max()
        exponent = int(torch.ceil(torch.log2(amax.double() / self.largest)).item())
        self.this_step = exponent if self.this_step is None else max(self.this_step, exponent)
        scale = 2.0 ** (exponent if self.earlier is None else self.earlier)
        return (x / scale).clamp(-self.largest, self.largest).to(self.dtype).to(x.dtype) * scale

    def end_step(self):
        if self.this_step is not None:
            self.earlier = self.this_step if self.earlier is None else max(self.earlier, self.this_step)
        self.this_step = None


class Product8(torch.autograd.Function):
    """A linear layer, its operands in E4M3 and the gradient of its output in E5M2."""

    @staticmethod
    def forward(context, x, weight, quantizers):
        x, weight = quantizers[0](x), quantizers[1](weight)
        context.save_for_backward(x, weight)
        context.gradient = quantizers[2]
        return x @ weight.T

    @staticmethod
    def backward(context, dy):
        x, weight = context.saved_tensors
        dy = context.gradient(dy)
        dw = dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])
        return dy @ weight, dw, None


def multiply_in_8_bits(model):
    """Scales of a step come from the steps before, so train() tells the model when one has ended."""
    quantizers = []
    for layer in model.model.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                own = [Quantizer(torch.float8_e4m3fn), Quantizer(torch.float8_e4m3fn), Quantizer(torch.float8_e5m2)]
                quantizers += own
                module.forward = linear_in_8_bits(module, own)
    model.end_step = lambda: [quantizer.end_step() for quantizer in quantizers]


def linear_in_8_bits(module, quantizers):
    def forward(x):
        y = Product8.apply(x, module.weight, quantizers)
        return y if module.bias is None else y + module.bias

    return forward


def drop_tokens(model, sequence, factor):
    """Each expert takes the first ceil(factor * k * T / E) tokens of a sequence that chose it. For the
    others the weight of that choice becomes zero; those of their other choices stay as they are."""
    for layer in model.model.layers:
        experts, k = layer.mlp.experts, layer.mlp.gate.top_k
        capacity = math.ceil(sequence * k / experts.num_experts * factor)
        experts.forward = dropping_experts(experts.forward, experts.num_experts, sequence, capacity)


def dropping_experts(compute, num_experts, sequence, capacity):
    def forward(hidden, chosen, weights):
        asked = F.one_hot(chosen, num_experts).sum(1).reshape(-1, sequence, num_experts)
        place = (asked.cumsum(1) - asked).reshape(-1, num_experts).gather(1, chosen)
        taken = place < capacity
        assert not taken.all(), "no expert is full"
        return compute(hidden, chosen, weights * taken)

    return forward


def train(model, inputs, targets):
    # transformers holds gpt-oss's biases of all experts as one matrix.
    decays = {name: p.dim() >= 2 and not name.endswith("bias") for name, p in model.named_parameters()}
    decayed = [p for name, p in model.named_parameters() if decays[name]]
    exempt = [p for name, p in model.named_parameters() if not decays[name]]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": exempt, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, foreach=False)

    losses, auxiliary, grad_norms, gradients = [], [], [], {}
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss, balance = cross_entropy_and_balance(model, inputs[step], targets[step])
        (loss + balance).backward()
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        # min(1, max / (norm + 1e-6)): the same rule as DeepSpeed's division by
        # max(1, (norm + 1e-6) / max). Returns the norm before clipping.
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM, foreach=False)
        optimizer.step()
        getattr(model, "end_step", lambda: None)()
        losses.append(loss.item())
        auxiliary.append(float(balance))
        grad_norms.append(norm.item())
    with torch.no_grad():
        loss, balance = cross_entropy_and_balance(model, inputs[NUM_STEPS], targets[NUM_STEPS])
    losses.append(loss.item())
    auxiliary.append(float(balance))
    return {"losses": losses, "auxiliary": auxiliary, "grad_norms": grad_norms, "gradients": gradients}


def cross_entropy_and_balance(model, inputs, targets):
    # The models' own loss shifts the labels; here the next tokens are given, for all B*T positions.
    output = model(input_ids=inputs, use_cache=False)
    logits = output.logits
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    return loss, balance_loss(model.config, getattr(output, "router_logits", None), len(inputs))


def balance_loss(config, router_logits, sequences):
    """The mean of transformers' own loss over layers and sequences, each by itself, times the coefficient."""
    if not router_logits:
        return 0.0
    experts = getattr(config, "num_local_experts", None) or config.num_experts
    each = [load_balancing_loss_func((one,), experts, config.num_experts_per_tok)
            for layer in router_logits for one in layer.chunk(sequences)]
    return config.router_aux_loss_coef * torch.stack(each).mean()


def compare(single, double):
    """How far rounding alone carries an fp32 implementation: the least a test can tolerate."""
    gradients = {}
    # The gradient of a key's bias without rotation is rounding noise: it moves all scores of a query alike.
    noise = 1e-9 * max(gradient.norm() for gradient in double["gradients"].values())
    for name, exact in double["gradients"].items():
        if exact.norm() < noise:
            continue
        difference = single["gradients"][name].double() - exact
        gradients[name] = (difference.norm() / exact.norm()).item()
    worst = max(gradients, key=gradients.get)
    result = {
        "losses": max(abs(s / d - 1.0) for s, d in zip(single["losses"], double["losses"])),
        "grad_norms": max(abs(s / d - 1.0) for s, d in zip(single["grad_norms"], double["grad_norms"])),
        "worst_gradient": gradients[worst], "worst_gradient_name": worst,
    }
    # A wrong formula in the fp64 run would show here, and such a fixture would be worthless.
    assert result["losses"] < 2e-6 and result["worst_gradient"] < 1e-5, result
    return result


def write_model(model, folder):
    """config.json and model.safetensors exactly as save_pretrained writes them, and nothing else."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        for file in ("config.json", "model.safetensors"):
            (folder / file).write_bytes((pathlib.Path(scratch) / file).read_bytes())


def write_description(name, folder, seed, batch, sequence, single, double, conditioning):
    description = {
        "model": name,
        "torch": torch.__version__, "transformers": transformers.__version__,
        "seed": seed, "batch": batch, "sequence": sequence, "steps": NUM_STEPS,
        "loss": "mean cross entropy over batch * sequence positions",
        "optimizer": {
            "type": "AdamW", "lr": LEARNING_RATE, "betas": BETAS, "eps": EPSILON,
            "weight_decay": WEIGHT_DECAY, "decayed": "tensors with two dims, embeddings included"},
        "gradient_clipping": {
            "max_norm": MAX_GRADIENT_NORM, "rule": "gradient / max(1, (norm + 1e-6) / max_norm)"},
        "losses": [f"{x:.9g}" for x in single["losses"]],
        "losses_f64": [f"{x:.17g}" for x in double["losses"]],
        "grad_norms": [f"{x:.9g}" for x in single["grad_norms"]],
        "grad_norms_f64": [f"{x:.17g}" for x in double["grad_norms"]],
        "fp32_relative_to_fp64": {
            key: f"{value:.2g}" if isinstance(value, float) else value
            for key, value in conditioning.items()},
    }
    (folder / "golden.json").write_text(json.dumps(description, indent=2) + "\n")


if __name__ == "__main__":
    main()
