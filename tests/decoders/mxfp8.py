"""MXFP8: groups of 32 inputs share a power of two. Source: OCP Microscaling 1.0.

weight       uint8 e4m3 [n, k]
weight_scale uint8 e8m0 [n, ceil(k / 32)]
"""

import numpy as np

from .numbers import e4m3fn, e8m0


def decode(tensors, *, n, k, group=32):
    """[n, k] of weight * 2^(byte - 127)."""
    i, j = np.indices((n, k))
    return e4m3fn(tensors["weight"])[i, j] * e8m0(tensors["weight_scale"])[i, j // group]
