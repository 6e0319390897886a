"""GPTQ, 4 or 8 bits. Source: the quantizer's own files (AutoGPTQ, GPTQModel).

qweight int32 [ceil(k / per), n]     per = 32 / bits codes of one column, k growing from the low bits
scales  16-bit floats [groups, n]
qzeros  int32 [groups, ceil(n / per)]  zero points, n growing from the low bits; absent: 2^(bits - 1)
g_idx   int32 [k]                    group of each input (act-order); absent: k // group
"""

import numpy as np

from .numbers import FLOAT


def decode(tensors, *, n, k, group, bits, dtype, checkpoint_format="gptq"):
    """[n, k] of (code - zero) * scale; group -1 is one group for all of k.

    `checkpoint_format` is the field of that name in the file's configuration: "gptq" (v1)
    stores zero - 1, "gptq_v2" stores zero. A v1 zero of 2^bits is taken at its word.
    """
    per, mask = 32 // bits, (1 << bits) - 1
    i, j = np.indices((n, k))
    qweight = tensors["qweight"].astype(np.int64)
    code = qweight[j // per, i] >> bits * (j % per) & mask

    row = tensors["g_idx"].astype(np.int64)[j] if "g_idx" in tensors else j // (k if group < 0 else group)
    scale = FLOAT[dtype](tensors["scales"])[row, i]
    if "qzeros" not in tensors:
        return (code - (1 << bits - 1)) * scale

    qzeros = tensors["qzeros"].astype(np.int64)
    zero = qzeros[row, i // per] >> bits * (i % per) & mask
    return (code - zero - {"gptq": 1, "gptq_v2": 0}[checkpoint_format]) * scale
