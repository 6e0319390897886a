"""compressed-tensors `pack-quantized`, 4 or 8 bits. Source: the compressed-tensors package.

weight_packed     int32 [n, ceil(k / per)]       per = 32 / bits codes of one row, low bits first
weight_scale      floats [n, groups]
weight_zero_point int32 [ceil(n / per), groups]  packed along n; absent: the weights are symmetric
weight_g_idx      int32 [k]                      group of each input; -1 anywhere: not in use
weight_shape      [2]                            n, k

Weights and zero points are signed numbers stored with 2^(bits - 1) added, so that the
offset cancels where there is a zero point and is the zero point where there is none.
"""

import numpy as np

from .numbers import FLOAT


def decode(tensors, *, n, k, group, bits, dtype):
    """[n, k] of (code - zero) * scale; group -1 is one group for all of k."""
    assert list(tensors.get("weight_shape", [n, k])) == [n, k]
    per, mask = 32 // bits, (1 << bits) - 1
    i, j = np.indices((n, k))
    code = tensors["weight_packed"].astype(np.int64)[i, j // per] >> bits * (j % per) & mask

    row = j // (k if group < 0 else group)
    if "weight_g_idx" in tensors and -1 not in tensors["weight_g_idx"]:
        row = tensors["weight_g_idx"].astype(np.int64)[j]

    scale = FLOAT[dtype](tensors["weight_scale"])[i, row]
    if "weight_zero_point" not in tensors:
        return (code - (1 << bits - 1)) * scale
    zero = tensors["weight_zero_point"].astype(np.int64)[i // per, row] >> bits * (i % per) & mask
    return (code - zero) * scale
