#!/usr/bin/env python3
"""Write tests/golden/onebit.json: runs of 1-bit Adam, 0/1 Adam and 1-bit LAMB on one to eight ranks, in fp64.

Needs numpy 2.4.6, and nothing else:
    scripts/make_onebit_golden.py --output tests/golden/onebit.json

The formulas are those of DeepSpeed 0.19 (runtime/fp16/onebit/, runtime/comm/nccl.py), but for this:
* Update 1 takes a gradient; DeepSpeed's first step sets up buffers and drops it.
* Every tensor is coded by itself with a scale of its own, whose root is of the number of its elements. A chunk is
  ceil(elements / 8 / ranks) bytes of signs, and the last ranks have what is left, or nothing. DeepSpeed pads each
  tensor to a multiple of ranks * lcm(ranks, 8) and counts the padding; it codes all of LAMB's tensors in one row,
  after bringing them to one scale.
* The decay of 0/1 Adam's local steps acts on the parameters that all ranks agree on, and does not get into the
  momentum.
* On one rank nothing is coded, and 0/1 Adam's momentum is updated at each step.
scripts/compare_onebit_golden.py runs DeepSpeed's own classes where nothing of that makes a difference.
"""
import argparse, itertools, json, math, pathlib
import numpy as np

LR, BETA1, BETA2, EPS = 1e-2, 0.9, 0.99, 1e-8
ADAM = dict(freeze_step=4, updates=12)
LAMB = dict(freeze_step=4, updates=14, coeff_beta=0.75, max_coeff=10.0, min_coeff=0.01, factor_max=4.0, factor_min=0.85,
            factor_threshold=0.02)


class TooClose(Exception):
    """A number so near zero, or a factor so near a limit, that fp32 might take the other side."""


# ---- what travels ---------------------------------------------------------------------------------------------------

def code(x, error):
    """What the others receive of x + error, an array; changes `error` to what the code leaves out."""
    if not x.size:
        return x
    x = x + error
    scale = np.linalg.norm(x) / math.sqrt(x.size)
    nearest = np.abs(x[x != 0])
    if nearest.size and nearest.min() < 1e-5 * scale:
        raise TooClose
    coded = np.where(x < 0, -scale, scale)
    error[:] = x - coded
    return coded


class Exchange:
    """The errors of all ranks for one tensor."""

    def __init__(self, elements, ranks):
        self.ranks, self.chunk = ranks, -(-elements // (8 * ranks)) * 8
        self.worker, self.server = np.zeros((ranks, elements)), np.zeros(elements)

    def mean(self, rows):
        """Of a row of each rank, as all receive it."""
        if self.ranks == 1:
            return rows[0].copy()
        mean = sum(code(row, self.worker[r]) for r, row in enumerate(rows)) / self.ranks
        chunks = [slice(r * self.chunk, (r + 1) * self.chunk) for r in range(self.ranks)]
        return np.concatenate([code(mean[part], self.server[part]) for part in chunks])

    def forget(self):
        self.worker[:] = 0
        self.server[:] = 0


# ---- the optimizers -------------------------------------------------------------------------------------------------

def numbers(x):
    return x.tolist()


def gradients_of(random, updates, ranks, elements):
    """A start and gradients with few digits, which fp32 represents exactly."""
    grid = 1 / 16
    start = np.round(random.normal(0, 1, elements) / grid) * grid
    drift = random.normal(0, 0.3, elements)
    return start, np.round((drift + random.normal(0, 1, (updates, ranks, elements))) / grid) * grid


def adam(random, elements, ranks, decay):
    start, gradients = gradients_of(random, ADAM["updates"], ranks, elements)
    p, m, v = start.copy(), np.zeros(elements), np.zeros(elements)
    exchange, steps = Exchange(elements, ranks), []
    for update, g in enumerate(gradients, 1):
        if update <= ADAM["freeze_step"]:
            mean = g.mean(axis=0)
            m = BETA1 * m + (1 - BETA1) * mean
            v = BETA2 * v + (1 - BETA2) * mean * mean
        else:
            m = exchange.mean([BETA1 * m + (1 - BETA1) * own for own in g])
        p = p - LR * (m / (np.sqrt(v) + EPS) + decay * p)
        steps.append(numbers(p))
    return dict(elements=elements, ranks=ranks, weight_decay=decay, start=numbers(start), gradients=numbers(gradients),
                parameters=steps, momentum=numbers(m), worker_error=numbers(exchange.worker),
                server_error=numbers(exchange.server))


def zero_one_adam(random, elements, ranks, decay, var_update_scaler, local_step_scaler, local_step_clipper,
                  var_freeze_step, updates):
    start, gradients = gradients_of(random, updates, ranks, elements)
    rates = 1e-2 * (1 + np.arange(updates) % 3 / 4)  # not the same, so that the sum of rates matters
    master, m, v = start.copy(), np.zeros((ranks, elements)), np.zeros(elements)
    w, summed, exchange, steps = np.zeros((ranks, elements)), 0.0, Exchange(elements, ranks), []
    var_interval, exact_updates, local_interval, local_updates = 1, 0, 1, 0
    for update, (g, lr) in enumerate(zip(gradients, rates), 1):
        parameters = None
        if update <= var_freeze_step:
            exact = update % var_interval == 0
            mean = g.mean(axis=0) if exact else exchange.mean(g)
            m[:] = BETA1 * m + (1 - BETA1) * mean
            if exact:
                v = BETA2 * v + (1 - BETA2) * mean * mean
                exact_updates += 1
                if exact_updates == var_update_scaler:
                    exact_updates, var_interval = 0, 2 * var_interval
            master = master - lr * (m[0] / (np.sqrt(v) + EPS) + decay * master)
        else:
            if update == var_freeze_step + 1:
                exchange.forget()
            m = BETA1 * m + (1 - BETA1) * g
            w, summed = w + lr * m, summed + lr
            master = master - lr * decay * master
            if update % local_interval == 0:
                agreed = exchange.mean(w)
                m[:] = agreed / summed
                master = master - agreed / (np.sqrt(v) + EPS)
                w[:], summed = 0, 0.0
            else:
                parameters = master - w / (np.sqrt(v) + EPS)
            local_updates += 1
            if local_updates == local_step_scaler:
                local_updates, local_interval = 0, min(local_step_clipper, 2 * local_interval)
        steps.append(numbers(master[None] if parameters is None else parameters))
    return dict(elements=elements, ranks=ranks, weight_decay=decay, var_update_scaler=var_update_scaler,
                local_step_scaler=local_step_scaler, local_step_clipper=local_step_clipper,
                var_freeze_step=var_freeze_step, rates=numbers(rates), start=numbers(start),
                gradients=numbers(gradients), parameters=steps, momentum=numbers(m), third_moment=numbers(w),
                worker_error=numbers(exchange.worker), server_error=numbers(exchange.server))


def clamped(x, least, most):
    for limit in (least, most):
        if x != limit and abs(x - limit) < 1e-5 * abs(limit):
            raise TooClose
    return min(max(x, least), most)


def lamb(random, sizes, ranks, decay):
    """Tensors one after another in each row."""
    start, gradients = gradients_of(random, LAMB["updates"], ranks, sum(sizes))
    tensors = [slice(end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes))]
    p, m, v, fresh = start.copy(), np.zeros(start.size), np.zeros(start.size), np.zeros(start.size)
    exchanges = [Exchange(size, ranks) for size in sizes]
    coefficient, last, steps, factors = [0.0] * len(sizes), [1.0] * len(sizes), [], []
    for update, g in enumerate(gradients, 1):
        for t, part in enumerate(tensors):
            if update <= LAMB["freeze_step"]:
                mean = g[:, part].mean(axis=0)
                m[part] = BETA1 * m[part] + (1 - BETA1) * mean
                v[part] = BETA2 * v[part] + (1 - BETA2) * mean * mean
                direction = m[part] / (np.sqrt(v[part]) + EPS) + decay * p[part]
                ratio = clamped(np.linalg.norm(p[part]) / np.linalg.norm(direction), LAMB["min_coeff"],
                                LAMB["max_coeff"])
                coefficient[t] = LAMB["coeff_beta"] * coefficient[t] + (1 - LAMB["coeff_beta"]) * ratio
                p[part] -= LR * ratio * direction
                if update == LAMB["freeze_step"]:
                    fresh[part] = v[part]
                continue
            old = m[part].copy()
            m[part] = exchanges[t].mean([BETA1 * old + (1 - BETA1) * own[part] for own in g])
            implied = (m[part] - BETA1 * old) / (1 - BETA1)
            fresh[part] = BETA2 * fresh[part] + (1 - BETA2) * implied * implied
            deviation = np.sqrt(v[part]) + EPS
            first_term = m[part] / deviation
            direction = first_term + decay * p[part]
            factor = (deviation / (np.sqrt(fresh[part]) + EPS)).max()
            if decay > 0:
                share = min(1.0, np.linalg.norm(first_term) / np.linalg.norm(direction))
                factor = factor * share + (1 - share)
            factor = clamped(factor, LAMB["factor_min"], LAMB["factor_max"])
            last[t] = clamped(factor, last[t] * (1 - LAMB["factor_threshold"]),
                              last[t] * (1 + LAMB["factor_threshold"]))
            p[part] -= LR * coefficient[t] * last[t] * direction
        steps.append(numbers(p))
        factors.append(list(last))
    return dict(sizes=sizes, ranks=ranks, weight_decay=decay, start=numbers(start), gradients=numbers(gradients),
                parameters=steps, factors=factors, coefficients=coefficient, momentum=numbers(m),
                fresh_variance=numbers(fresh),
                worker_error=np.concatenate([e.worker for e in exchanges], axis=1).tolist(),
                server_error=np.concatenate([e.server for e in exchanges]).tolist())


def first_clear_run(optimizer, *case):
    for seed in itertools.count():
        try:
            return optimizer(np.random.default_rng(seed), *case)
        except TooClose:
            pass


# Elements, ranks, decay: some multiples of ranks * lcm(ranks, 8), and some that leave ranks without a chunk.
ADAM_CASES = [(7, 3, 0.1), (64, 2, 0.1), (70, 4, 0.0), (33, 5, 0.1), (64, 8, 0.1), (48, 1, 0.1)]
ZERO_ONE_CASES = [  # and var_update_scaler, local_step_scaler, local_step_clipper, var_freeze_step, updates
    (40, 1, 0.1, 2, 3, 4, 10, 25), (48, 2, 0.0, 2, 3, 4, 10, 26), (33, 2, 0.1, 3, 2, 4, 13, 26),
    (72, 3, 0.0, 2, 4, 2, 9, 22), (70, 3, 0.1, 2, 2, 4, 8, 22), (64, 8, 0.0, 2, 2, 4, 8, 19),
    (21, 8, 0.1, 4, 3, 4, 14, 27)]
LAMB_CASES = [([40], 1, 0.0), ([32], 2, 0.0), ([32], 2, 0.1), ([96], 4, 0.1), ([7, 33, 70], 1, 0.1),
              ([7, 33, 70], 2, 0.1), ([16, 9, 64], 4, 0.0)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("tests/golden/onebit.json"))
    golden = dict(lr=LR, betas=[BETA1, BETA2], eps=EPS, numpy=np.__version__,
                  adam=dict(ADAM, runs=[first_clear_run(adam, *case) for case in ADAM_CASES]),
                  zero_one_adam=dict(runs=[first_clear_run(zero_one_adam, *case) for case in ZERO_ONE_CASES]),
                  lamb=dict(LAMB, runs=[first_clear_run(lamb, *case) for case in LAMB_CASES]))
    text = json.dumps(json.loads(json.dumps(golden), parse_float=lambda x: float(f"{float(x):.8g}")),
                      separators=(",", ":"))
    parser.parse_args().output.write_text(text + "\n")


if __name__ == "__main__":
    main()
