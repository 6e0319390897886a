"""FP8 weights with a scale per two-dimensional block; the last blocks may be short.

weight           uint8 e4m3 [n, k]
weight_scale_inv float32 [ceil(n / block_n), ceil(k / block_k)]; despite its name it multiplies
weight_scale     the same under compressed-tensors, often bfloat16
"""

import numpy as np

from .numbers import FLOAT, e4m3fn


def decode(tensors, *, n, k, block=(128, 128), dtype="float32"):
    """[n, k] of weight * scale of its block."""
    stored = tensors["weight_scale_inv"] if "weight_scale_inv" in tensors else tensors["weight_scale"]
    i, j = np.indices((n, k))
    return e4m3fn(tensors["weight"])[i, j] * FLOAT[dtype](stored)[i // block[0], j // block[1]]
