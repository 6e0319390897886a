"""FP8 weights with one scale per tensor, per fused part, or per output channel.

weight       uint8 e4m3 [n, k]
weight_scale one value ([] or [1]); one per fused part ([parts]); one per channel ([n, 1] or [n])
"""

import numpy as np

from .numbers import FLOAT, e4m3fn


def decode(tensors, *, n, k, widths=None, dtype="float32"):
    """[n, k] of weight * scale. `widths`: rows of each fused part, where the scales are per part."""
    scale = FLOAT[dtype](tensors["weight_scale"]).reshape(-1)
    if widths is not None:
        scale = np.repeat(scale, widths)
    if scale.size == 1:
        scale = np.repeat(scale, n)
    assert scale.shape == (n,)
    return e4m3fn(tensors["weight"])[:n, :k] * scale[:, None]
