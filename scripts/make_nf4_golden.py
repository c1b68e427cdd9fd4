#!/usr/bin/env python3
"""Write tests/golden/nf4.safetensors: a matrix as bitsandbytes codes it, 4 bits a number with double
quantisation, and what it decodes that to.

  scripts/make_nf4_golden.py --output tests/golden

Needs torch, bitsandbytes and safetensors from PyPI, in this interpreter.
"""
import argparse
import pathlib

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from safetensors.torch import save_file

ROWS, COLUMNS = 70, 256  # 280 blocks: more than one of scales


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    output = parser.parse_args().output
    torch.manual_seed(1)
    # Rows of several sizes, a block of zeros, and numbers that are levels themselves.
    weight = (torch.randn(ROWS, COLUMNS) * torch.logspace(-3, 1, ROWS)[:, None]).bfloat16()
    weight[3, 64:128] = 0
    weight[4, :16] = torch.linspace(-1, 1, 16).bfloat16()
    packed, state = quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
    assert state.state2.blocksize == 256
    save_file({
        "weight": weight, "codes": packed.reshape(-1), "magnitudes": state.absmax,
        "scales": state.state2.absmax, "mean": state.offset.reshape(1), "levels": state.code,
        "dynamic_levels": state.state2.code, "decoded": dequantize_4bit(packed, state).float(),
    }, output / "nf4.safetensors", metadata={"bitsandbytes": bitsandbytes.__version__, "torch": torch.__version__})


main()
