"""AWQ, 4 bits. Source: AutoAWQ's GEMM files.

qweight int32 [k, ceil(n / 8)]        eight columns share a word, in the order below
qzeros  int32 [groups, ceil(n / 8)]   same order
scales  16-bit floats [groups, n]
"""

import numpy as np

from .numbers import FLOAT

# The nibble of a word, counted from the low bits, that holds column 0, 1, ... 7 of its eight.
NIBBLE = np.array([0, 4, 1, 5, 2, 6, 3, 7])


def decode(tensors, *, n, k, group, dtype):
    """[n, k] of (code - zero) * scale; group -1 is one group for all of k."""
    i, j = np.indices((n, k))
    row = j // (k if group < 0 else group)
    shift = 4 * NIBBLE[i % 8]
    code = tensors["qweight"].astype(np.int64)[j, i // 8] >> shift & 15
    zero = tensors["qzeros"].astype(np.int64)[row, i // 8] >> shift & 15
    return (code - zero) * FLOAT[dtype](tensors["scales"])[row, i]
