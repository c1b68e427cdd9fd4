#!/usr/bin/env python3
"""Compare tests/golden/onebit.json with DeepSpeed's own OnebitAdam, ZeroOneAdam and OnebitLamb.

Runs the classes of a DeepSpeed source tree in fp64, a thread for each rank; what ranks exchange (compressed_allreduce,
which wants GPUs) is given here in its formulas. Takes the runs in which DeepSpeed's padding, its one row for all
tensors, its decay of 0/1 Adam and its single rank make no difference. Needs torch 2.9.1 and numpy:

    scripts/compare_onebit_golden.py deepspeed-0.19.6
"""
import contextlib, importlib.util, io, json, math, pathlib, sys, threading, types, warnings
import numpy as np
import torch

torch.set_default_dtype(torch.float64)
warnings.simplefilter("ignore")


def module(name, **names):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(names)
    return sys.modules[name]


class World:
    """Runs a function on `size` threads and codes what they exchange."""

    def __init__(self, size):
        self.size, self.here, self.meeting, self.rows = size, threading.local(), threading.Barrier(size), [None] * size

    def all_gather(self, value):
        self.rows[self.here.rank] = value
        self.meeting.wait()
        rows = list(self.rows)
        self.meeting.wait()
        return rows

    def run(self, function):
        failures = []

        def rank(index):
            self.here.rank = index
            try:
                function(index)
            except Exception as failure:
                failures.append(failure)
                self.meeting.abort()

        threads = [threading.Thread(target=rank, args=(index,)) for index in range(self.size)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        if failures:
            raise failures[0]

    def compressed_allreduce(self, buffer, worker_error, server_error, local_rank):
        def coded(x, error):
            x = x + error
            signs = x.sign().add_(1).bool().to(x.dtype) * 2 - 1
            code = signs * (torch.linalg.norm(x) / math.sqrt(x.numel()))
            error.copy_(x - code)
            return code

        assert buffer.numel() == worker_error.numel()
        chunk, rank = buffer.numel() // self.size, self.here.rank
        sent = self.all_gather(coded(buffer.flatten(), worker_error))
        mean = sum(row[rank * chunk:(rank + 1) * chunk] for row in sent) / self.size
        buffer.copy_(torch.cat(self.all_gather(coded(mean, server_error))).view_as(buffer))
        return buffer


class Backend:
    world = None

    def __init__(self, mpu):
        self.size = self.world.size
        self.compressed_allreduce = self.world.compressed_allreduce


def classes(folder):
    nothing = types.SimpleNamespace(empty_cache=lambda: None)
    module("deepspeed", comm=module("deepspeed.comm", is_initialized=lambda: True, get_rank=lambda: 1))
    module("deepspeed.accelerator", get_accelerator=lambda: nothing)
    module("deepspeed.utils")
    module("deepspeed.utils.torch", required_torch_version=lambda **_: True)
    module("deepspeed.runtime")
    module("deepspeed.runtime.utils", filter_empty_parameters=lambda parameters: parameters)
    module("deepspeed.runtime.comm")
    module("deepspeed.runtime.comm.nccl", NcclBackend=Backend)
    found = []
    for file, name in (("adam", "OnebitAdam"), ("zoadam", "ZeroOneAdam"), ("lamb", "OnebitLamb")):
        spec = importlib.util.spec_from_file_location(file, folder / f"deepspeed/runtime/fp16/onebit/{file}.py")
        source = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(source)
        found.append(getattr(source, name))
    return found


class Differences:
    """The largest of each kind, relative to the largest number."""

    def __init__(self):
        self.largest = {}

    def note(self, kind, actual, expected):
        actual, expected = np.asarray(actual), np.asarray(expected)  # the same on all ranks where it has one row
        expected = expected.reshape(actual.shape) if expected.size == actual.size else expected
        difference = np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-30)
        self.largest[kind] = max(self.largest.get(kind, 0.0), difference)


def take_steps(run, make, exact, sizes, rates, after_first):
    """Parameters of all ranks after each update, and the states in the end."""
    world = Backend.world = World(run["ranks"])
    gradients = torch.tensor(run["gradients"])
    parameters, states = [[None] * world.size for _ in rates], [None] * world.size

    def rank(index):
        tensors = list(torch.tensor(run["start"]).split(sizes))
        tensors = [tensor.clone().requires_grad_() for tensor in tensors]
        engine = types.SimpleNamespace(mpu=None, local_rank=0, enable_backward_allreduce=True)
        optimizer = make(tensors, engine)
        for update in range(-1, len(rates)):  # the first gradient is dropped
            gradient = gradients[max(update, 0)]
            gradient = gradient.mean(dim=0) if exact(update + 1, optimizer) else gradient[index]
            for tensor, part in zip(tensors, gradient.split(sizes)):
                tensor.grad = part.clone()
            optimizer.param_groups[0]["lr"] = rates[max(update, 0)]
            optimizer.step()
            if update < 0:
                after_first(optimizer.state)
            else:
                parameters[update][index] = torch.cat(tensors).tolist()
        states[index] = [dict(optimizer.state[tensor]) for tensor in tensors]
        if hasattr(optimizer, "worker_errors"):
            states[index][0].update(worker_error=optimizer.worker_errors[0] if optimizer.worker_errors else None,
                                    server_error=optimizer.server_errors[0] if optimizer.server_errors else None)

    with contextlib.redirect_stdout(io.StringIO()):
        world.run(rank)
    return parameters, states


def main():
    onebit_adam, zero_one_adam, onebit_lamb = classes(pathlib.Path(sys.argv[1]))
    golden = json.loads(pathlib.Path("tests/golden/onebit.json").read_text())
    shared = dict(betas=golden["betas"], eps=golden["eps"])

    def codes_alike(elements, ranks):
        return elements % (ranks * math.lcm(ranks, 8)) == 0

    def compare(name, runs, steps_of, sign=1.0):
        differences = Differences()
        for run in runs:
            parameters, states = steps_of(run)
            for rows, expected in zip(parameters, run["parameters"]):
                differences.note("parameters", rows, expected)
            momenta = [torch.cat([tensor["exp_avg"].flatten() for tensor in of_rank]).tolist() for of_rank in states]
            differences.note("momenta", momenta, run["momentum"])
            if run["ranks"] > 1:
                for error in ("worker_error", "server_error"):
                    differences.note("errors", [(sign * of_rank[0][error]).tolist() for of_rank in states], run[error])
            if "factors" in run:
                for kind, key, expected in (("coefficients", "lamb_coeff_freeze", run["coefficients"]),
                                            ("factors", "last_factor", run["factors"][-1])):
                    differences.note(kind, [[tensor[key] for tensor in of_rank] for of_rank in states], expected)
        print(name, f"{len(runs)} runs", {kind: f"{x:.1e}" for kind, x in differences.largest.items()})

    def adam_steps(run):
        settings = golden["adam"]
        return take_steps(
            run, lambda tensors, engine: onebit_adam(tensors, engine, freeze_step=settings["freeze_step"] + 1,
                                                     weight_decay=run["weight_decay"], **shared),
            lambda update, _: update <= settings["freeze_step"], [run["elements"]],
            [golden["lr"]] * settings["updates"], lambda state: None)

    def restart(state):
        for of_tensor in state.values():
            of_tensor["step"] = 0  # updates count from the second step

    def zero_one_steps(run):
        names = ("var_update_scaler", "local_step_scaler", "local_step_clipper")
        return take_steps(
            run, lambda tensors, engine: zero_one_adam(tensors, engine, var_freeze_step=run["var_freeze_step"] - 1,
                                                       weight_decay=run["weight_decay"], **shared,
                                                       **{name: run[name] for name in names}),
            lambda update, optimizer: update > 0 and update <= run["var_freeze_step"] and
            update % next(iter(optimizer.state.values())).get("var_interval", 1) == 0, [run["elements"]],
            run["rates"], restart)

    def lamb_steps(run):
        settings = golden["lamb"]
        names = ("coeff_beta", "max_coeff", "min_coeff", "factor_max", "factor_min", "factor_threshold")
        return take_steps(
            run, lambda tensors, engine: onebit_lamb(tensors, engine, freeze_step=settings["freeze_step"] + 1,
                                                     weight_decay=run["weight_decay"], **shared,
                                                     **{name: settings[name] for name in names}),
            lambda update, _: update <= settings["freeze_step"], run["sizes"],
            [golden["lr"]] * settings["updates"], lambda state: None)

    compare("1-bit Adam", [run for run in golden["adam"]["runs"] if codes_alike(run["elements"], run["ranks"])],
            adam_steps)
    compare("0/1 Adam", [run for run in golden["zero_one_adam"]["runs"] if run["ranks"] > 1 and
                         run["weight_decay"] == 0 and codes_alike(run["elements"], run["ranks"])], zero_one_steps,
            sign=-1.0)  # of what DeepSpeed keeps
    compare("1-bit LAMB", [run for run in golden["lamb"]["runs"] if run["ranks"] == 1 or
                           (len(run["sizes"]) == 1 and codes_alike(run["sizes"][0], run["ranks"]))], lamb_steps)


if __name__ == "__main__":
    main()
