"""MXFP4: groups of 32 FP4 codes share a power of two. Source: OCP Microscaling 1.0.

compressed-tensors
    weight_packed       uint8 [n, ceil(k / 2)]      the even input in the low nibble
    weight_scale        uint8 e8m0 [n, ceil(k / 32)]
gpt-oss, one expert
    <name>_blocks       uint8 [n, ceil(k / 32), 16] byte b of a group holds its inputs 2b, 2b + 1
    <name>_scales       uint8 e8m0 [n, ceil(k / 32)]
"""

import numpy as np

from .numbers import e2m1, e8m0


def decode(tensors, *, n, k, group=32):
    """[n, k] of weight * 2^(byte - 127), compressed-tensors."""
    i, j = np.indices((n, k))
    code = tensors["weight_packed"][i, j // 2] >> 4 * (j % 2)
    return e2m1(code) * e8m0(tensors["weight_scale"])[i, j // group]


def decode_gpt_oss(tensors, *, name, n, k):
    """[n, k] in stored row order; `name` is gate_up_proj or down_proj."""
    i, j = np.indices((n, k))
    code = tensors[f"{name}_blocks"][i, j // 32, j % 32 // 2] >> 4 * (j % 2)
    return e2m1(code) * e8m0(tensors[f"{name}_scales"])[i, j // 32]


def gate_and_up(rows):
    """Splits gpt-oss's gate_up_proj rows (or its bias): gate is rows 0, 2, 4 ..., up rows 1, 3, 5 ..."""
    return rows[0::2], rows[1::2]
