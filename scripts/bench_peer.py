#!/usr/bin/env python3
"""Train a dstrain config's model with PyTorch, tuned for this CPU, and print the speed.

The peer of dstrain's own step benchmark: the same shapes, batch, precision and threads; forward,
cross-entropy, backward and AdamW on random tokens. It is meant to be as strong as PyTorch gets
without writing kernels: an OpenMP BLAS, jemalloc that keeps its pages (and huge ones), on AMD an MKL
that uses AVX-512 (peer_environment.py), fused or foreach AdamW, fused q, k, v, queries of a group batched instead of keys repeated, fused attention
where PyTorch has it (2.0 and later). Masters, moments and losses are fp32 in both precisions.

  scripts/bench_peer.py --config configs/gpt2-124m.json --batch 4 --sequence 256 --precision bf16

Runs with whichever python3 has torch: Debian's python3-torch, or PyPI's. With --device cuda the
peer is PyTorch as it is trained on GPUs: torch.compile, fused attention and AdamW, bf16 weights
beside fp32 masters, no waiting for the GPU inside a step.
"""

# B batch, T sequence, C width, H heads, K key-value heads, G = H / K, D head dim, V vocabulary

import argparse
import json
import math
import os
import pathlib
import re
import resource
import statistics
import sys
import time

from peer_environment import MARK, tuned_environment


def main():
    arguments = parse_arguments()
    if arguments.device == "cpu" and not arguments.stock and MARK not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], tuned_environment(arguments.threads))
    try:
        import torch  # only in the process whose allocator and BLAS are settled
    except ModuleNotFoundError:
        sys.exit(f"bench_peer: {sys.executable} has no torch; on Debian: apt-get install python3-torch")
    globals()["torch"] = torch

    if arguments.device == "cuda":
        torch.set_default_device("cuda")
        torch.set_float32_matmul_precision("highest")
    torch.manual_seed(1234)
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    spec = Spec(read_model_block(arguments.config))
    if arguments.sequence > spec.max_positions:
        sys.exit(f"bench_peer: --sequence {arguments.sequence} is beyond the model's "
                 f"{spec.max_positions} positions")
    step_seconds, loss, cores_of_others = measure(arguments, spec)
    report(arguments, spec, step_seconds, loss, cores_of_others)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, type=pathlib.Path,
                        help='a dstrain config, whose "model" block is built, or a Hugging Face config.json')
    parser.add_argument("--batch", type=int, default=4, help="sequences a step (default: 4)")
    parser.add_argument("--sequence", type=int, default=256, help="tokens a sequence (default: 256)")
    parser.add_argument("--accumulation", type=int, default=1,
                        help="micro-batches of --batch sequences a step (default: 1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--fewest-steps", type=int, default=3, help="to measure (default: 3)")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before (default: 3)")
    parser.add_argument("--bf16-states", action="store_true",
                        help="no fp32 masters, moments in bf16: what a model may need to fit")
    parser.add_argument("--recompute", action="store_true", help="the blocks' activations in backward")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="threads (default: the cores this process may use)")
    parser.add_argument("--seconds", type=float, default=30.0, help="time to measure (default: 30)")
    parser.add_argument("--bf16-method", choices=("auto", "autocast", "copy"), default="auto",
                        help="autocast over fp32 weights, or a bf16 copy of the model refreshed from fp32 "
                             "masters after each step, which casts once a step and not at each use (auto: copy)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model (torch 2, needs g++)")
    parser.add_argument("--stock", action="store_true", help="leave allocator, BLAS and OpenMP as they are")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser.parse_args()


def read_model_block(path):
    """JSON with comments and trailing commas; the block, or the config.json of the folder it names."""
    text = path.read_text()
    strings_or_comments = r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/'
    text = re.sub(strings_or_comments, lambda m: m[0] if m[0][0] == '"' else " ", text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', lambda m: m[0] if m[0][0] == '"' else "", text)
    config = json.loads(text)
    model = config.get("model", config)
    if isinstance(model, str):
        return json.loads((pathlib.Path(model) / "config.json").read_text())
    return model


class Spec:
    """The numbers of a Hugging Face config.json that decide the shapes."""

    def __init__(self, keys):
        self.type = keys.get("model_type", "llama")
        self.vocab_size = keys["vocab_size"]
        if self.type == "gpt2":
            self.width, self.num_layers, self.num_heads = keys["n_embd"], keys["n_layer"], keys["n_head"]
            self.num_kv_heads, self.head_dim = self.num_heads, self.width // self.num_heads
            self.intermediate = keys.get("n_inner") or 4 * self.width
            self.max_positions = keys.get("n_positions", 1024)
            self.norm_epsilon = keys.get("layer_norm_epsilon", 1e-5)
            self.qkv_bias, self.tied = True, keys.get("tie_word_embeddings", True)
            return
        if self.type not in ("llama", "mistral", "qwen2"):
            sys.exit(f'bench_peer: model_type "{self.type}" is not one of gpt2, llama, mistral, qwen2')
        self.width, self.num_layers = keys["hidden_size"], keys["num_hidden_layers"]
        self.num_heads = keys["num_attention_heads"]
        self.num_kv_heads = keys.get("num_key_value_heads") or self.num_heads
        self.head_dim = keys.get("head_dim") or self.width // self.num_heads
        self.intermediate = keys["intermediate_size"]
        self.max_positions = keys.get("max_position_embeddings", 2048)
        self.norm_epsilon = keys.get("rms_norm_eps", 1e-6)
        rope = keys.get("rope_parameters") or keys
        self.rope_theta = rope.get("rope_theta", 10000.0)
        self.qkv_bias = self.type == "qwen2" or keys.get("attention_bias", False)
        self.tied = keys.get("tie_word_embeddings", False)

    def flops_per_token(self, sequence):
        """Forward and backward: 6 a matmul parameter, and attention counted causally (half)."""
        attention = self.width * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlp = (2 if self.type == "gpt2" else 3) * self.width * self.intermediate
        matmul = self.num_layers * (attention + mlp) + self.vocab_size * self.width
        return 6.0 * matmul + 6.0 * self.num_layers * self.num_heads * self.head_dim * sequence


def build_model(spec, sequence, recompute):
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    is_gpt2 = spec.type == "gpt2"
    H, K, D = spec.num_heads, spec.num_kv_heads, spec.head_dim
    G = H // K
    has_fused_attention = hasattr(F, "scaled_dot_product_attention")

    class RmsNorm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            if hasattr(F, "rms_norm"):
                return F.rms_norm(x, self.weight.shape, self.weight, spec.norm_epsilon)
            x32 = x.float()
            scale = torch.rsqrt((x32 * x32).mean(-1, keepdim=True) + spec.norm_epsilon)
            return (x32 * scale).to(x.dtype) * self.weight

    def norm():
        return nn.LayerNorm(spec.width, spec.norm_epsilon) if is_gpt2 else RmsNorm(spec.width)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(spec.width, (H + 2 * K) * D, bias=spec.qkv_bias)
            self.out = nn.Linear(H * D, spec.width, bias=is_gpt2)

        def forward(self, x, rope, mask):
            B, T, _ = x.shape
            q, k, v = self.qkv(x).split((H * D, K * D, K * D), dim=-1)
            q = rotate(q.view(B, T, H, D).transpose(1, 2), rope)
            k = rotate(k.view(B, T, K, D).transpose(1, 2), rope)
            v = v.view(B, T, K, D).transpose(1, 2)
            if has_fused_attention:
                shared = {"enable_gqa": True} if G > 1 else {}
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True, **shared)
            else:
                # The queries that share a key head are stacked in one matmul, and the mask with them.
                q = q.reshape(B * K, G * T, D)
                k, v = k.reshape(B * K, T, D), v.reshape(B * K, T, D)
                scores = torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2), alpha=1 / math.sqrt(D))
                y = torch.bmm(F.softmax(scores, dim=-1), v)
            return self.out(y.reshape(B, H, T, D).transpose(1, 2).reshape(B, T, H * D))

    def rotate(x, rope):
        if rope is None:
            return x
        cos, sin = rope
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(spec.width, spec.intermediate, bias=is_gpt2)
            self.gate = None if is_gpt2 else nn.Linear(spec.width, spec.intermediate, bias=False)
            self.down = nn.Linear(spec.intermediate, spec.width, bias=is_gpt2)

        def forward(self, x):
            if is_gpt2:
                return self.down(F.gelu(self.up(x), approximate="tanh"))
            return self.down(F.silu(self.gate(x)) * self.up(x))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.attention, self.norm_2, self.mlp = norm(), Attention(), norm(), Mlp()

        def forward(self, x, rope, mask):
            x = x + self.attention(self.norm_1(x), rope, mask)
            return x + self.mlp(self.norm_2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(spec.vocab_size, spec.width)
            self.positions = nn.Embedding(spec.max_positions, spec.width) if is_gpt2 else None
            self.blocks = nn.ModuleList(Block() for _ in range(spec.num_layers))
            self.norm = norm()
            self.head = nn.Linear(spec.width, spec.vocab_size, bias=False)
            for parameter in self.parameters():
                if parameter.dim() >= 2:
                    nn.init.normal_(parameter, std=0.02)
            if spec.tied:
                self.head.weight = self.tokens.weight
            causal = torch.full((sequence, sequence), float("-inf")).triu(1)
            self.mask = causal.repeat(G, 1).unsqueeze(0)  # [1, G*T, T], plain attributes: kept in fp32
            self.rope = None
            if not is_gpt2:
                frequency = spec.rope_theta ** (-torch.arange(0, D, 2).float() / D)
                angle = torch.arange(sequence).float()[:, None] * frequency
                self.rope = (angle.cos(), angle.sin())

        def forward(self, inputs, targets):
            x = self.tokens(inputs)
            if is_gpt2:
                x = x + self.positions.weight[: inputs.shape[1]]
            rope = self.rope and tuple(table.to(x.dtype) for table in self.rope)
            for block in self.blocks:
                if recompute:
                    x = checkpoint(block, x, rope, self.mask, use_reentrant=False)
                else:
                    x = block(x, rope, self.mask)
            logits = self.head(self.norm(x))
            return F.cross_entropy(logits.view(-1, spec.vocab_size).float(), targets.view(-1))

    return Model()


class Trainer:
    """One AdamW step at a time, on fp32 weights, in the precision asked for."""

    def __init__(self, model, arguments):
        self.model = model
        self.method = None
        self.device = arguments.device
        if arguments.precision == "bf16":
            self.method = "copy" if arguments.bf16_method == "auto" else arguments.bf16_method
        if arguments.bf16_states:
            self.method = None  # the optimizer works on the weights themselves
            model.to(torch.bfloat16)
        self.parameters = list(model.parameters())
        self.masters = self.parameters
        if self.method == "copy":
            self.masters = [p.detach().clone() for p in self.parameters]
            model.to(torch.bfloat16)
        groups = [
            {"params": [p for p in self.masters if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in self.masters if p.dim() < 2], "weight_decay": 0.0}]
        self.optimizer = make_adamw(groups)
        self.compute_loss = torch.compile(model) if arguments.compile else model

    def step(self, micro_batches):
        """The mean loss; a step of several micro-batches adds their gradients up."""
        for parameter in self.parameters:
            parameter.grad = None
        total = 0.0
        for inputs, targets in micro_batches:
            with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.method == "autocast"):
                loss = self.compute_loss(inputs, targets) / len(micro_batches)
            loss.backward()
            total = total + loss.detach()
        if self.method != "copy":
            self.optimizer.step()
            return total.item()
        for master, parameter in zip(self.masters, self.parameters):
            master.grad = parameter.grad.float()
            parameter.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters):
                parameter.copy_(master)
                master.grad = None
        return total.item()


def make_adamw(groups):
    settings = {"lr": 6e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, fused=True, **settings)  # single pass; on CPUs since 2.4
    except (TypeError, RuntimeError):
        return torch.optim.AdamW(groups, foreach=True, **settings)


def measure(arguments, spec):
    """Seconds of each step after the warm-up, the last loss, and the cores other processes took."""
    trainer = Trainer(build_model(spec, arguments.sequence, arguments.recompute), arguments)
    micro_batches = []
    for _ in range(arguments.accumulation):
        stream = torch.randint(spec.vocab_size, (arguments.batch, arguments.sequence + 1))
        micro_batches.append((stream[:, :-1].contiguous(), stream[:, 1:].contiguous()))
    # First touch of memory, primitive caches, compilation, the optimizer's moments.
    for _ in range(arguments.warm_up):
        trainer.step(micro_batches)
    step_seconds, loss = [], math.nan
    begin, others_before = time.perf_counter(), cpu_seconds_of_others()
    deadline = begin + arguments.seconds
    while len(step_seconds) < arguments.fewest_steps or time.perf_counter() < deadline:
        start = time.perf_counter()
        loss = trainer.step(micro_batches)
        step_seconds.append(time.perf_counter() - start)
    cores = (cpu_seconds_of_others() - others_before) / (time.perf_counter() - begin)
    return step_seconds, loss, max(0.0, cores)


def cpu_seconds_of_others():
    """User, nice and system time of the machine without this process: how busy others kept it."""
    user, nice, system = map(int, pathlib.Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


def report(arguments, spec, step_seconds, loss, cores_of_others):
    if not math.isfinite(loss):
        sys.exit(f"bench_peer: the loss is {loss} after {len(step_seconds)} steps; the figures would mean nothing")
    tokens = arguments.batch * arguments.sequence * arguments.accumulation
    median = statistics.median(step_seconds)
    maps = pathlib.Path("/proc/self/maps").read_text()
    result = {
        "peer": f"PyTorch {torch.__version__}",
        "config": str(arguments.config), "batch": arguments.batch, "sequence": arguments.sequence,
        "accumulation": arguments.accumulation, "device": arguments.device,
        "precision": arguments.precision, "threads": torch.get_num_threads(),
        "tuned": os.environ.get(MARK, ""), "compiled": arguments.compile,
        "blas": loaded(maps, "openblas|libblas") or "built into PyTorch",
        "jemalloc": loaded(maps, "jemalloc") is not None,
        "steps": len(step_seconds), "loss": loss,
        "tokens_per_second": tokens / median,
        "tokens_per_second_min": tokens / max(step_seconds),
        "tokens_per_second_max": tokens / min(step_seconds),
        "model_flops_per_second": tokens / median * spec.flops_per_token(arguments.sequence),
        "cores_taken_by_others": round(cores_of_others, 2),
        "peak_memory_bytes": peak_memory(arguments.device),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{result['peer']}, {result['precision']}, {result['threads']} threads, "
          f"batch {arguments.batch} x {arguments.sequence}, {result['steps']} steps")
    print(f"  tokens/s     {result['tokens_per_second']:.0f}   "
          f"(slowest {result['tokens_per_second_min']:.0f}, fastest {result['tokens_per_second_max']:.0f})")
    print(f"  model GFLOP/s {result['model_flops_per_second'] / 1e9:.0f}")
    print(f"  peak memory  {result['peak_memory_bytes'] / 2**30:.2f} GiB")
    if cores_of_others > 0.1:
        print(f"  NOT QUIET: other processes took {cores_of_others:.1f} cores meanwhile; the figures are too low")


def peak_memory(device):
    if device == "cuda":
        return torch.cuda.max_memory_reserved()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def loaded(maps, pattern):
    found = re.search(rf"\S*(?:{pattern})\S*", maps)
    return found and found[0]


if __name__ == "__main__":
    main()
