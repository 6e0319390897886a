"""NVFP4: groups of 16 FP4 codes share an e4m3 scale, a tensor shares a float32 one.

ModelOpt
    weight              uint8 [n, ceil(k / 2)]       the even input in the low nibble
    weight_scale        uint8 e4m3 [n, ceil(k / 16)]
    weight_scale_2      float32, one value: multiplies
compressed-tensors
    weight_packed       as weight
    weight_scale        as above
    weight_global_scale float32, one value: divides
"""

import numpy as np

from .numbers import e2m1, e4m3fn, f32


def decode(tensors, *, n, k, group=16):
    """[n, k]; which of the two conventions holds is told by the name of the packed tensor."""
    modelopt = "weight" in tensors
    packed = tensors["weight" if modelopt else "weight_packed"]
    i, j = np.indices((n, k))
    value = e2m1(packed[i, j // 2] >> 4 * (j % 2)) * e4m3fn(tensors["weight_scale"])[i, j // group]
    if modelopt:
        return value * f32(tensors["weight_scale_2"]).item()
    return value / f32(tensors["weight_global_scale"]).item()
