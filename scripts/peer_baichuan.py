"""Baichuan 1 and 2, whose modelling code is not in transformers, as plainly as PyTorch says it: what the scripts hold
dstrain against. Where it rotates and its head is an ordinary one it is LLaMA, which as_llama() makes of it. Not a program."""
import torch
import torch.nn.functional as F
import transformers
from transformers.models.bloom.modeling_bloom import build_alibi_tensor


class BaichuanConfig(transformers.PretrainedConfig):
    """With max_position_embeddings it rotates, with model_max_length alone it has ALiBi. norm_head: Baichuan 2."""
    model_type = "baichuan"

    def __init__(self, vocab_size=64000, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                 num_attention_heads=4, rms_norm_eps=1e-6, norm_head=False, max_position_embeddings=None,
                 model_max_length=None, tie_word_embeddings=False, **keys):
        self.vocab_size, self.hidden_size, self.intermediate_size = vocab_size, hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.rms_norm_eps, self.norm_head, self.hidden_act = rms_norm_eps, norm_head, "silu"
        if max_position_embeddings is not None:
            self.max_position_embeddings = max_position_embeddings
        if model_max_length is not None:
            self.model_max_length = model_max_length
        for key in ("hidden_act", "model_type"):
            keys.pop(key, None)
        super().__init__(tie_word_embeddings=tie_word_embeddings, **keys)

    @property
    def rotates(self):
        return getattr(self, "max_position_embeddings", None) is not None


class Norm(torch.nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight, self.epsilon = torch.nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


class Attention(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, width = config, config.hidden_size
        self.W_pack = torch.nn.Linear(width, 3 * width, bias=False)
        self.o_proj = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.config.num_attention_heads
        q, k, v = (part.view(batch, length, heads, -1).transpose(1, 2) for part in self.W_pack(x).split(width, -1))
        if self.config.rotates:
            q, k = rotated(q), rotated(k)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        if not self.config.rotates:  # counted from the sequence's first key: softmax sees differences alone
            every_key = torch.ones(1, length, device=x.device)
            scores = scores + build_alibi_tensor(every_key, heads, x.dtype).view(1, heads, 1, length)
        weights = scores.masked_fill(later, -float("inf")).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, width))


def rotated(x):
    """Halves of a head as the two coordinates of points."""
    length, depth = x.shape[-2:]
    frequency = 10000.0 ** (-torch.arange(0, depth, 2).double() / depth)
    angle = torch.arange(length).double()[:, None] * frequency
    cosine, sine = (table.to(x.dtype).to(x.device) for table in (angle.cos(), angle.sin()))
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


class FeedForward(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = torch.nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = torch.nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = torch.nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn, self.mlp = Attention(config), FeedForward(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = torch.nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class BaichuanForCausalLM(transformers.PreTrainedModel):
    config_class, base_model_prefix, _supports_sdpa = BaichuanConfig, "model", True

    def __init__(self, config):
        super().__init__(config)
        self.model = Body(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, use_cache=False, **_):
        x = self.model.embed_tokens(input_ids)
        for layer in self.model.layers:
            x = layer(x)
        weight = F.normalize(self.lm_head.weight) if self.config.norm_head else self.lm_head.weight
        return transformers.modeling_outputs.CausalLMOutput(logits=F.linear(self.model.norm(x), weight))


def as_llama(model):
    """The LLaMA of transformers with the same weights, of one that rotates and has an ordinary head."""
    config = model.config
    assert config.rotates and not config.norm_head
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers, num_attention_heads=config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings, rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None))
    weights = {}
    for name, weight in model.state_dict().items():
        if "W_pack" in name:
            for part, rows in zip("qkv", weight.split(config.hidden_size)):
                weights[name.replace("W_pack", f"{part}_proj")] = rows
        else:
            weights[name] = weight
    llama.load_state_dict(weights)
    return llama.eval()


transformers.AutoConfig.register("baichuan", BaichuanConfig)
transformers.AutoModelForCausalLM.register(BaichuanConfig, BaichuanForCausalLM)
