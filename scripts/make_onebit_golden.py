#!/usr/bin/env python3
"""Write tests/golden/onebit.json: parameters, momenta and what is left to send of 1-bit Adam, step after step, by the
formulas of DeepSpeed 0.19 (runtime/fp16/onebit/adam.py, runtime/comm/nccl.py) in fp64.

Needs numpy 2.4.6, and nothing else:
    scripts/make_onebit_golden.py --output tests/golden/onebit.json

DeepSpeed's first step sets up buffers and drops the gradient. Step 1 here is the step after it.
"""
import argparse, itertools, json, math, pathlib
import numpy as np

LR, BETA1, BETA2, EPS, DECAY = 1e-2, 0.9, 0.99, 1e-8, 0.1
FREEZE, STEPS = 4, 12
CASES = [(7, 3), (64, 2), (70, 4), (33, 5), (72, 8), (48, 1)]  # elements, ranks


class TooClose(Exception):
    """A number so near zero that fp32 might give it the other sign."""


def signs(x):
    return np.where(x < 0, 0, 1).astype(np.uint8)


def code(x, error):
    """Bytes of signs and the scale; changes `error` to what they do not say."""
    x = x + error
    scale = np.linalg.norm(x) / math.sqrt(x.size)
    nearest = np.abs(x[x != 0])
    if nearest.size and nearest.min() < 1e-5 * scale:
        raise TooClose
    error[:] = x - scale * (2.0 * signs(x) - 1.0)
    return np.packbits(signs(x)), scale


def decode(packed, scale):
    return (2.0 * np.unpackbits(packed) - 1.0) * scale


def compressed_mean(momenta, worker, server):
    ranks, padded = worker.shape
    sent = [code(np.pad(m, (0, padded - m.size)), worker[r]) for r, m in enumerate(momenta)]
    chunk_bytes = padded // ranks // 8
    result = []
    for r in range(ranks):
        part = slice(r * chunk_bytes, (r + 1) * chunk_bytes)
        mean = sum(decode(packed[part], scale / ranks) for packed, scale in sent)
        result.append(decode(*code(mean, server[r])))
    return np.concatenate(result)[:momenta[0].size]


def run(elements, ranks, seed):
    random = np.random.default_rng(seed)
    grid = 1 / 64  # what fp32 represents exactly
    start = np.round(random.normal(0, 1, elements) / grid) * grid
    drift = random.normal(0, 0.3, elements)
    gradients = np.round((drift + random.normal(0, 1, (STEPS, ranks, elements))) / grid) * grid
    multiple = ranks * (ranks * 8 // math.gcd(ranks, 8))
    padded = -(-elements // multiple) * multiple
    p, m, v = start.copy(), np.zeros(elements), np.zeros(elements)
    worker, server = np.zeros((ranks, padded)), np.zeros((ranks, padded // ranks))
    steps = []
    for step in range(1, STEPS + 1):
        g = gradients[step - 1]
        if step <= FREEZE:
            mean = g.mean(axis=0)
            m = BETA1 * m + (1 - BETA1) * mean
            v = BETA2 * v + (1 - BETA2) * mean * mean
        else:
            own = [BETA1 * m + (1 - BETA1) * g[r] for r in range(ranks)]
            m = compressed_mean(own, worker, server) if ranks > 1 else own[0]
        p = p - LR * (m / (np.sqrt(v) + EPS) + DECAY * p)
        steps.append(dict(parameters=p.tolist(), momentum=m.tolist()))
    return dict(elements=elements, ranks=ranks, padded=padded, start=start.tolist(), gradients=gradients.tolist(),
                steps=steps, worker_error=worker.tolist(), server_error=server.tolist())


def first_clear_run(elements, ranks):
    for seed in itertools.count():
        try:
            return run(elements, ranks, seed)
        except TooClose:
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/golden/onebit.json"))
    golden = dict(lr=LR, betas=[BETA1, BETA2], eps=EPS, weight_decay=DECAY, freeze_step=FREEZE, numpy=np.__version__,
                  adam=[first_clear_run(*case) for case in CASES])
    text = json.dumps(json.loads(json.dumps(golden), parse_float=lambda x: float(f"{float(x):.9g}")))
    parser.parse_args().output.write_text(text + "\n")


if __name__ == "__main__":
    main()
