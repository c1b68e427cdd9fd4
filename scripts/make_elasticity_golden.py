#!/usr/bin/env python3
"""Write tests/golden/deepspeed_elasticity.json: results of DeepSpeed's own compute_elastic_config.

Takes the folder of DeepSpeed's source (pip download --no-deps deepspeed==0.19.6, unpacked) and runs
deepspeed/elasticity from there, with stand-ins for its logger and version; numpy and packaging are
needed, torch is not.

  python3 scripts/make_elasticity_golden.py deepspeed-0.19.6 > tests/golden/deepspeed_elasticity.json
"""

import importlib.util
import json
import logging
import pathlib
import random
import sys
import types


def load_elasticity(source):
    """The module deepspeed.elasticity.elasticity, without the package around it."""
    def stand_in(name, **members):
        module = types.ModuleType(name)
        module.__dict__.update(members)
        module.__path__ = []
        sys.modules[name] = module

    logger = logging.getLogger("deepspeed")
    logger.disabled = True
    stand_in("deepspeed")
    stand_in("deepspeed.elasticity")
    stand_in("deepspeed.utils", logger=logger)
    stand_in("deepspeed.git_version_info", version="0.19.6")
    for part in ("constants", "config", "elasticity"):
        name = f"deepspeed.elasticity.{part}"
        path = pathlib.Path(source) / "deepspeed" / "elasticity" / f"{part}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules["deepspeed.elasticity.elasticity"]


def blocks(random_state):
    yield {"max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6], "version": 0.1}
    yield {"max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6]}
    yield {"max_train_batch_size": 10000, "micro_batch_sizes": [8, 12, 16, 17],
           "min_gpus": 32, "max_gpus": 1500, "version": 0.1}
    yield {"max_train_batch_size": 4, "micro_batch_sizes": [1, 2, 3, 4], "max_gpus": 4,
           "min_gpus": 1, "version": 0.1}
    for _ in range(60):
        gpus_per_node = random_state.choice([1, 1, 2, 4, 8])
        block = {
            "max_train_batch_size": random_state.choice([7, 64, 100, 512, 1000, 2000, 4096, 9999]),
            "micro_batch_sizes": random_state.sample(range(1, 33), random_state.randint(1, 5)),
            "version": random_state.choice([0.1, 0.2]),
            "prefer_larger_batch": random_state.choice([True, True, False]),
            "min_gpus": random_state.choice([1, 1, 2, 8]),
            "max_gpus": random_state.choice([8, 64, 1000, 10000]),
        }
        if block["version"] == 0.2:
            block["num_gpus_per_node"] = gpus_per_node
            block["model_parallel_size"] = random_state.choice([1, 1, min(2, gpus_per_node)])
        yield block


def main():
    elasticity = load_elasticity(sys.argv[1])
    cases = []
    for block in blocks(random.Random(1)):
        block = {"enabled": True, **block}
        for world_size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 48, 64, 100, 128):
            try:
                batch, valid, micro = elasticity.compute_elastic_config(
                    {"elasticity": block}, "0.19.6", world_size=world_size)
                result = {"train_batch_size": int(batch), "micro_batch_size": int(micro),
                          "num_valid": len(valid), "valid": [int(v) for v in valid[:20]]}
            except Exception as error:  # which one is not our matter: it gives no batch
                result = {"error": type(error).__name__}
            cases.append({"elasticity": block, "world_size": world_size, **result})
    print('{"deepspeed": "0.19.6", "cases": [')
    print(",\n".join(json.dumps(case) for case in cases))
    print("]}")


if __name__ == "__main__":
    main()
