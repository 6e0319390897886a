"""What the Marlin kernels read, one matrix at a time. Source: vLLM 0.33's kernels and repacking.

Each function states where logical (n, k), or (group, n), lives: a word and a shift, or a
column. Extents are the padded ones. Sizes are those of one warp's tile: 16 x 64 weights per
tile with 16-bit activations, 32 x 32 with 8-bit ones.
"""

import numpy as np

from .numbers import FLOAT, bf16, e2m1, e4m3fn, e8m0, f32, s0e5m3

BITS = {"u4b8": 4, "u4": 4, "e2m1": 4, "u8b128": 8, "u8": 8, "e4m3": 8}
ACTIVATION_BITS = {"float16": 16, "bfloat16": 16, "int8": 8, "float8_e4m3fn": 8}


def weight_codes(weight, *, n, k, bits, activation_bits):
    """int32 [k / 16, n * bits / 2] -> codes [n, k]. With 8-bit activations that shape is only
    nominal: rows of 32 inputs lie one after the other."""
    n_, k_ = np.indices((n, k))
    column = n_ % 8
    b = n_ // 8 % 2
    lane = k_ // (2 if activation_bits == 16 else 4) % 4
    if activation_bits == 16:
        tile, k_low, k_high, j = k_ // 16 * (n // 64) + n_ // 64, k_ % 2, k_ // 8 % 2, n_ // 16 % 4
    else:
        tile, k_low, k_high, j = k_ // 32 * (n // 32) + n_ // 32, k_ % 4, k_ // 16 % 2, n_ // 16 % 2

    if (bits, activation_bits) == (4, 16):
        word, position = tile * 128 + column * 16 + lane * 4 + j, k_low * 4 + b * 2 + k_high
    elif (bits, activation_bits) == (8, 16):
        word, position = tile * 256 + column * 32 + lane * 8 + j * 2 + b, k_low * 2 + k_high
    elif (bits, activation_bits) == (4, 8):
        word, position = tile * 128 + column * 16 + lane * 4 + j * 2 + b, k_low * 2 + k_high
    else:
        word, position = tile * 256 + column * 32 + lane * 8 + j * 4 + b * 2 + k_high, k_low
    return weight.reshape(-1).astype(np.int64)[word] >> bits * position & (1 << bits) - 1


def grouped_columns(n):
    """Column of each output feature where a matrix has several rows of 16-bit scales."""
    n_ = np.arange(n)
    return n_ // 64 * 64 + n_ % 8 * 8 + n_ // 8 % 8


def channel_columns(n):
    """The same for one row of scales, for every scale with 8-bit activations, and for biases."""
    n_ = np.arange(n)
    return n_ // 32 * 32 + n_ // 2 % 4 * 8 + n_ // 8 % 4 * 2 + n_ % 2


def byte_columns(n):
    """The same for 8-bit scales (MX and NVFP4) with 16-bit activations."""
    n_ = np.arange(n)
    return n_ // 64 * 64 + n_ % 8 * 8 + n_ // 32 % 2 * 4 + n_ // 8 % 2 * 2 + n_ // 16 % 2


def scale_bits(stored, *, n, activation_bits):
    """[groups, n] as stored -> the same shape in logical order of n."""
    if activation_bits == 8:
        return stored[:, channel_columns(n)]
    if stored.itemsize == 1:
        return stored[:, byte_columns(n)]
    return stored[:, channel_columns(n) if len(stored) == 1 else grouped_columns(n)]


def zero_points(stored, *, n, bits, activation_bits):
    """int32 [groups, n * bits / 32] -> [groups, n]."""
    n_ = np.arange(n)
    tile, i, j0, j1, j2 = n_ // 64, n_ % 8, n_ // 8 % 2, n_ // 16 % 2, n_ // 32 % 2
    if bits == 8:
        word, position = tile * 16 + i * 2 + j2, j0 * 2 + j1
    elif activation_bits == 16:
        word, position = tile * 8 + i, j0 * 4 + j2 * 2 + j1
    else:
        word, position = tile * 8 + i, j2 * 4 + j1 * 2 + j0
    return stored.astype(np.int64)[:, word] >> bits * position & (1 << bits) - 1


def bias_bits(stored, *, n):
    """[n] as stored -> logical order."""
    return stored[channel_columns(n)]


def decode(tensors, *, n, k, code, activation, dtype):
    """[n, k] for padded extents.

    tensors: weight, weight_scale, and where the format has them zero_point, global_scale,
    input_global_scale. code: a key of BITS. activation: a key of ACTIVATION_BITS. dtype: of
    16-bit scales, and of NVFP4's. FP4 with a global_scale is NVFP4, without one MXFP4; e4m3 with
    8-bit scales is MXFP8. An e8m0 byte 0 counts as 2^-127, as in the checkpoint.
    """
    layout = {"n": n, "activation_bits": ACTIVATION_BITS[activation]}
    stored = weight_codes(tensors["weight"], k=k, bits=BITS[code], **layout)
    scale = scale_bits(tensors["weight_scale"], **layout)
    assert k % len(scale) == 0
    row = np.arange(k) // (k // len(scale))

    if code in ("e4m3", "e2m1"):
        number = e4m3fn if code == "e4m3" else e2m1
        return number(stored) * float_scale(scale, tensors, code, activation, dtype)[row].T

    zero = 1 << BITS[code] - 1
    if code in ("u4", "u8"):
        zero = zero_points(tensors["zero_point"], bits=BITS[code], **layout)[row].T
    return levels(stored, zero, activation) * integer_scale(scale, tensors, activation, dtype)[row].T


def levels(stored, zero, activation):
    """Code minus zero point. FP8 activations: a level of 0 or more is stored as it is, a negative
    one as 15 minus the code it had."""
    if activation != "float8_e4m3fn":
        return stored - zero
    return np.where(stored <= 15 - zero, stored, 15 - stored - zero)


def integer_scale(bits, tensors, activation, dtype):
    if activation == "float8_e4m3fn":
        return FLOAT[dtype](bits) / 512
    if activation == "int8" and len(bits) > 1:
        return bits.view(np.int16) * f32(tensors["input_global_scale"]).item()
    return FLOAT[dtype](bits)


def float_scale(bits, tensors, code, activation, dtype):
    """The exponents that the kernel's fast conversion leaves out are taken off again."""
    if "global_scale" in tensors:
        # A bfloat16 kernel spreads the byte over its own exponent: bytes under 0x80 lose their value.
        byte = bits.astype(np.int64)
        scale = s0e5m3(byte) if dtype == "float16" else bf16((byte & 0x80) << 7 | (byte & 0x7F) << 4)
        bias = 14 if dtype == "float16" else 126
        return np.ldexp(scale * f32(tensors["global_scale"]).item(), -bias)
    if bits.itemsize == 1 and activation == "float8_e4m3fn":
        # 6 more than the checkpoint's byte, so that 255 is the checkpoint's 249 and no nan.
        return np.ldexp(1.0, bits.astype(np.int64) - 6 - 127)
    if bits.itemsize == 1:
        return e8m0(bits)
    return np.ldexp(FLOAT[dtype](bits), -8 if dtype == "float16" else -120)
