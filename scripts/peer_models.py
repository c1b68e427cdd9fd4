"""The families that dstrain trains, as transformers makes them (Baichuan as peer_baichuan.py does): tiny models of
random shapes for the scripts that hold the two against each other. Not a program."""
import torch
import transformers
from transformers.models.deepseek_v2 import modeling_deepseek_v2

from peer_baichuan import BaichuanConfig

rotate = modeling_deepseek_v2.apply_rotary_emb  # which fails on f32 of odd strides
modeling_deepseek_v2.apply_rotary_emb = lambda queries, keys, turns: rotate(queries.contiguous(), keys.contiguous(), turns)


def random_model(family, draw, *, attention="eager", **fixed):
    """A model of that family in f32 with every parameter drawn, norms' factors around one. `fixed` stands for
    what is not to be drawn: vocab_size, positions, window, layers; ranks share heads and widths: shared_by."""
    config = random_config(family, draw, **fixed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).float()
    for name, parameter in model.named_parameters():
        is_norm = parameter.dim() == 1 and name.endswith(".weight") and "gemma" not in family
        parameter.data = torch.randn_like(parameter) * 0.1 + (1.0 if is_norm else 0.0)
    draw_balancing_biases(model, 0.1)
    model.tie_weights()
    if hasattr(config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # the usual one wants rows of multiples of 16 bytes
    return model.eval()


def random_config(family, draw, *, vocab_size=None, positions=None, window=None, layers=None, shared_by=1):
    """Sizes that no tile divides; every key that a family has is drawn."""
    vocab_size = vocab_size or draw.randint(50, 400)
    layers = layers or draw.randint(1, 5)
    positions = positions or draw.randint(33, 90)
    window = window or draw.randint(3, 20)
    tokens = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if family == "gpt2":
        heads = draw.randint(1, 5) * shared_by
        return transformers.GPT2Config(
            vocab_size=vocab_size, n_positions=positions, n_embd=heads * draw.choice([4, 7, 10]), n_head=heads,
            n_layer=layers, n_inner=draw.choice([None, 37 * shared_by, 90]), tie_word_embeddings=draw.random() < 0.7,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **tokens)
    groups = draw.choice([1, shared_by]) if shared_by > 1 else draw.randint(1, 3)
    group_size = draw.randint(1, 3) * shared_by
    heads = groups * group_size
    sizes = dict(
        vocab_size=vocab_size, hidden_size=heads * draw.choice([4, 8, 12]), intermediate_size=draw.randint(20, 90) * shared_by,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=groups,
        max_position_embeddings=positions, tie_word_embeddings=draw.random() < 0.5, **tokens)
    epsilon = dict(rms_norm_eps=draw.choice([1e-5, 1e-6]))
    head_dim = dict(head_dim=draw.choice([4, 8, 14]))
    some_window = draw.choice([None, window])
    attention_bias = dict(attention_bias=draw.random() < 0.4)
    mlp_bias = dict(mlp_bias=draw.random() < 0.4)
    rope = dict(rope_parameters=rotation(draw, positions))
    by_layer = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    match family:
        case "llama":
            return transformers.LlamaConfig(**sizes, **epsilon, **head_dim, **rope, **attention_bias, **mlp_bias)
        case "mistral":
            return transformers.MistralConfig(**sizes, **epsilon, **rope, **draw.choice([head_dim, {}]),
                                              sliding_window=some_window)
        case "ministral":
            return transformers.MinistralConfig(**sizes, **epsilon, **rope, **head_dim, sliding_window=window,
                                                layer_types=draw.choice([None, by_layer]))
        case "qwen2":
            return transformers.Qwen2Config(**sizes, **epsilon, **rope, use_sliding_window=some_window is not None,
                                            sliding_window=window, max_window_layers=draw.randint(0, layers))
        case "qwen3":
            return transformers.Qwen3Config(**sizes, **epsilon, **rope, **head_dim, **attention_bias,
                                            use_sliding_window=some_window is not None, sliding_window=window,
                                            max_window_layers=draw.randint(0, layers))
        case "olmo2":
            return transformers.Olmo2Config(**sizes, **epsilon, **rope, **attention_bias)
        case "olmo3":
            both = {"full_attention": rotation(draw, positions), "sliding_attention": {"rope_type": "default"}}
            both["sliding_attention"]["rope_theta"] = draw.choice([both["full_attention"]["rope_theta"], 777.0])
            return transformers.Olmo3Config(**sizes, **epsilon, **attention_bias, rope_parameters=both,
                                            sliding_window=window, layer_types=draw.choice([None, by_layer]))
        case "smollm3":
            rotary = [draw.choice([0, 1, 1]) for _ in range(layers)]
            return transformers.SmolLM3Config(**sizes, **epsilon, **rope, **attention_bias, **mlp_bias,
                                              no_rope_layers=draw.choice([None, rotary]),
                                              use_sliding_window=some_window is not None, sliding_window=some_window)
        case "phi3":
            sizes["hidden_size"] = heads * 8  # of which every part below is even
            share = draw.choice([0.25, 0.75, 1.0])
            part = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
            factors = lambda most: [draw.uniform(1, most) for _ in range(int(8 * share) // 2)]
            original = positions // 2
            long = part | {"rope_type": "longrope", "short_factor": factors(2), "long_factor": factors(40),
                           "original_max_position_embeddings": original}
            return transformers.Phi3Config(**sizes, **epsilon, rope_parameters=draw.choice([part, long, long]),
                                           original_max_position_embeddings=original, sliding_window=some_window)
        case "starcoder2":
            return transformers.Starcoder2Config(**sizes, **rope, use_bias=draw.random() < 0.7,
                                                 norm_epsilon=draw.choice([1e-5, 1e-6]), sliding_window=some_window)
        case "gemma2" | "gemma3_text":
            made = transformers.Gemma2Config if family == "gemma2" else transformers.Gemma3TextConfig
            both = {"full_attention": rotation(draw, positions),
                    "sliding_attention": {"rope_type": "default", "rope_theta": draw.choice([1e4, 777.0])}}
            return made(**sizes, **epsilon, **head_dim, **attention_bias, sliding_window=window,
                        rope_parameters=rope["rope_parameters"] if family == "gemma2" else both,
                        layer_types=draw.choice([None, by_layer]), query_pre_attn_scalar=draw.choice([4, 8, 14, 37]),
                        attn_logit_softcapping=draw.choice([None, 0.8, 5.0]) if family == "gemma2" else None,
                        final_logit_softcapping=draw.choice([None, 1.5, 30.0]))
        case "gpt_neox":
            del sizes["num_key_value_heads"]
            part = rotation(draw, positions) | {"partial_rotary_factor": draw.choice([0.25, 0.5, 1.0])}
            return transformers.GPTNeoXConfig(
                **(sizes | {"hidden_size": heads * draw.choice([8, 16])}), **attention_bias, rope_parameters=part,
                layer_norm_eps=draw.choice([1e-5, 1e-6]), hidden_act=draw.choice(["gelu", "gelu", "gelu_pytorch_tanh", "relu"]),
                use_parallel_residual=draw.random() < 0.7)
        case "opt":
            return transformers.OPTConfig(
                vocab_size=vocab_size, hidden_size=sizes["hidden_size"], ffn_dim=sizes["intermediate_size"],
                num_hidden_layers=layers, num_attention_heads=heads, max_position_embeddings=positions,
                tie_word_embeddings=draw.random() < 0.7, enable_bias=draw.random() < 0.7, dropout=0.0,
                activation_function=draw.choice(["relu", "relu", "gelu"]), **tokens)
        case "bloom":  # of any number of heads, each of which has a slope of its own
            heads = draw.randint(1, 9 // shared_by) * shared_by
            return transformers.BloomConfig(
                vocab_size=vocab_size, hidden_size=heads * draw.choice([4, 7, 12]), n_layer=layers, n_head=heads,
                layer_norm_epsilon=draw.choice([1e-5, 1e-6]), tie_word_embeddings=draw.random() < 0.7,
                hidden_dropout=0.0, attention_dropout=0.0, seq_length=positions, **tokens)
        case "baichuan":
            heads = draw.randint(1, 9 // shared_by) * shared_by
            length = draw.choice(["max_position_embeddings", "model_max_length"])
            return BaichuanConfig(
                vocab_size=vocab_size, hidden_size=heads * draw.choice([4, 8, 12]), num_hidden_layers=layers,
                intermediate_size=sizes["intermediate_size"], num_attention_heads=heads, **epsilon, **{length: positions},
                norm_head=draw.random() < 0.5, **tokens)
        case "mixtral":
            return transformers.MixtralConfig(**sizes, **epsilon, **rope, **head_dim, **experts(draw, fewest=2),
                                              num_local_experts=draw.randint(3, 7), sliding_window=some_window)
        case "qwen3_moe":
            normalised = draw.random() < 0.5
            return transformers.Qwen3MoeConfig(
                **sizes, **epsilon, **rope, **draw.choice([head_dim, {}]), **attention_bias,
                **experts(draw, fewest=1 + normalised), norm_topk_prob=normalised, num_experts=draw.randint(3, 7),
                moe_intermediate_size=draw.randint(5, 40) * shared_by, decoder_sparse_step=draw.choice([1, 1, 2]),
                mlp_only_layers=draw.choice([[], [0], [layers - 1]]),
                use_sliding_window=some_window is not None, sliding_window=window)
        case "olmoe":
            normalised = draw.random() < 0.5
            return transformers.OlmoeConfig(**sizes, **epsilon, **rope, **attention_bias,
                                            **experts(draw, fewest=1 + normalised), norm_topk_prob=normalised,
                                            num_experts=draw.randint(3, 7))
        case "gpt_oss":
            return transformers.GptOssConfig(**sizes, **epsilon, **rope, **head_dim, **attention_bias, **experts(draw),
                                             num_local_experts=draw.randint(3, 7), swiglu_limit=draw.choice([7.0, 2.5]),
                                             layer_types=draw.choice([None, by_layer]), sliding_window=window)
        case "deepseek_v2":  # which has heads of one kind, and writes no coefficient of the auxiliary loss itself
            del sizes["num_key_value_heads"]
            nope, rotated = draw.randint(3, 12), draw.choice([4, 8])
            groups, of_each = draw.choice([1, 1, 2, 3]), draw.randint(2, 3)
            among = draw.randint(1, groups)
            chosen = experts(draw) | {"num_experts_per_tok": draw.randint(1, min(3, among * of_each))}
            by_group = dict(topk_method="group_limited_greedy", n_group=groups, topk_group=among) if groups > 1 else {}
            if rope["rope_parameters"]["rope_type"] == "yarn":
                rope["rope_parameters"] |= draw.choice([{}, {"mscale": 0.9, "mscale_all_dim": 0.7}])
            return transformers.DeepseekV2Config(
                **sizes, **epsilon, **rope, **chosen, **by_group, q_lora_rank=draw.choice([None, draw.randint(5, 20)]),
                kv_lora_rank=draw.randint(5, 20), qk_nope_head_dim=nope, qk_rope_head_dim=rotated,
                v_head_dim=draw.randint(3, nope + rotated), n_routed_experts=groups * of_each, n_shared_experts=draw.randint(1, 2),
                moe_intermediate_size=draw.randint(5, 40) * shared_by, first_k_dense_replace=draw.randint(0, layers - 1),
                routed_scaling_factor=draw.choice([1.0, 2.5]))
        case "deepseek_v3":  # whose class never moves the balancing bias
            groups, of_each = draw.choice([1, 2, 3]), draw.randint(2, 4)
            among, normalised = draw.randint(1, groups), draw.random() < 0.7
            chosen = experts(draw) | {"num_experts_per_tok": draw.randint(1 + normalised, min(4, among * of_each))}
            if rope["rope_parameters"]["rope_type"] == "yarn":
                rope["rope_parameters"] |= draw.choice([{}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.9, "mscale_all_dim": 0.7}])
            nope, rotated = draw.randint(3, 12), draw.choice([4, 8])
            return transformers.DeepseekV3Config(
                **(sizes | {"num_key_value_heads": heads}), **epsilon, **rope, **chosen, norm_topk_prob=normalised,
                n_group=groups, topk_group=among, q_lora_rank=draw.choice([None, draw.randint(5, 20)]),
                kv_lora_rank=draw.randint(5, 20), qk_nope_head_dim=nope, qk_rope_head_dim=rotated,
                v_head_dim=draw.randint(3, nope + rotated), n_routed_experts=groups * of_each, n_shared_experts=draw.randint(1, 2),
                moe_intermediate_size=draw.randint(5, 40) * shared_by, first_k_dense_replace=draw.randint(0, layers - 1),
                routed_scaling_factor=draw.choice([1.0, 2.5]), moe_router_bias_update_rate=0.0)
    raise KeyError(family)


def draw_balancing_biases(model, deviation):
    """In f32, as files have them whatever the rest is in."""
    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.e_score_correction_bias = torch.randn(module.num_experts) * deviation


def experts(draw, fewest=1):
    """A share that is divided by itself, as of one expert alone, gets a gradient of rounding in transformers, and AdamW
    makes whole steps of it: no fewer than two where shares are divided by their sum."""
    return dict(num_experts_per_tok=draw.randint(fewest, 3), output_router_logits=draw.random() < 0.5,
                router_aux_loss_coef=draw.choice([0.001, 0.25]))


def rotation(draw, positions):
    """Plain rotation, or one of the ways to stretch it, over lengths at which each branch of a rule is taken."""
    theta = draw.choice([1e4, 5e5, 12345.5])
    return draw.choice([
        {"rope_type": "default", "rope_theta": theta},
        {"rope_type": "linear", "rope_theta": theta, "factor": 2.5},
        {"rope_type": "llama3", "rope_theta": theta, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": positions // 2},
        {"rope_type": "yarn", "rope_theta": theta, "factor": 2.0, "beta_fast": 4.0, "beta_slow": 1.0,
         "original_max_position_embeddings": positions // 2}])


FAMILIES = ["gpt2", "llama", "mistral", "ministral", "qwen2", "qwen3", "olmo2", "olmo3", "smollm3", "phi3",
            "starcoder2", "gemma2", "gemma3_text", "gpt_neox", "opt", "bloom", "baichuan"]
ALL_FAMILIES = FAMILIES + ["mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v2", "deepseek_v3"]  # those with experts too


def add_family_option(parser, families=FAMILIES):
    parser.add_argument("--family", nargs="+", choices=families, default=families, metavar="NAME",
                        help=f"these alone, of {', '.join(families)}")
