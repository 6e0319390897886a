"""Random checkpoints of every format, in the shapes of their public definitions, and what they stand for.

A format draws the tensors of one matrix of given widths (the rows of its fused parts) and k, with rubbish wherever a
file has room that stands for nothing, and reads them back through its decoder as a float64 matrix per part. Arrays are
those of decoders: 16-bit floats as uint16, fp8 and e8m0 as uint8. Nothing here knows layoutdsl.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from decoders import awq, ct_int, fp8, fp8_block, gptq, mxfp4, mxfp8, nvfp4
from decoders.numbers import FLOAT, f32

FIELDS = {"float16": (5, 10, np.uint16), "bfloat16": (8, 7, np.uint16), "float32": (8, 23, np.uint32)}


# --- numbers ----------------------------------------------------------------------------------------------------------


def floats(rng, shape, dtype, *, low=-6, high=3, signs=True):
    """Random numbers of 2^low to 2^(high + 1), as bits; float32 as itself."""
    exponent, fraction, stored = FIELDS[dtype]
    bits = (rng.integers(low, high + 1, shape) + (1 << exponent - 1) - 1) << fraction | rng.integers(
        0, 1 << fraction, shape
    )
    bits |= rng.integers(0, 1 + signs, shape) << exponent + fraction
    bits = np.asarray(bits).astype(stored)
    return bits.view(np.float32) if stored is np.uint32 else bits


def bits(values, dtype):
    """Numbers that a type holds exactly, as floats() gives them."""
    values = np.asarray(values, np.float64)
    single = values.astype(np.float32)
    found = {
        "float16": values.astype(np.float16).view(np.uint16),
        "bfloat16": (single.view(np.uint32) >> 16).astype(np.uint16),
        "float32": single,
    }[dtype]
    assert (FLOAT[dtype](found) == values).all(), f"{values} are no {dtype} numbers"
    return found


def nearest(values, dtype):
    """float64 rounded once to a type, half to even, as float64."""
    exponent, fraction, _ = FIELDS[dtype]
    least = 2 - (1 << exponent - 1)
    step = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, least) - fraction)
    made = np.rint(values / step) * step
    assert (np.abs(made) < np.ldexp(1.0, 1 << exponent - 1)).all(), "beyond the type"
    return made


def e4m3(rng, shape):
    """Random FP8 codes that are numbers."""
    code = rng.integers(0, 256, shape).astype(np.uint8)
    return np.where(code & 0x7F == 0x7F, 0, code).astype(np.uint8)


def words(rng, *shape):
    return rng.integers(-(1 << 31), 1 << 31, shape).astype(np.int32)


def packed(codes, size):
    """[rows, columns] of codes -> int32 words along the columns, the first in the low bits."""
    per = 32 // size
    digits = codes.astype(np.uint64).reshape(len(codes), -1, per) << np.arange(0, 32, size, dtype=np.uint64)
    return digits.sum(axis=-1, dtype=np.uint64).astype(np.uint32).view(np.int32)


def up(value, per):
    return -(-value // per)


# --- formats ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A checkpoint format with its options. `params` are those of the spec of the same name."""

    params: dict
    scale = "weight_scale"
    exact_scale = True
    """Whether the scale is no float that a kernel would store anew."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.params.get(name, self.defaults.get(name))

    defaults: ClassVar = {"dtype": "float16"}

    @property
    def code(self):
        """What the kernel makes of the codes: a key of decoders.marlin.BITS."""
        raise NotImplementedError

    def groups(self, k):
        return 1 if self.group < 0 else up(k, self.group)

    def draw(self, rng, widths, k):
        """name -> array for one matrix."""
        found = self._draw(rng, widths, sum(widths), k)
        if self.bias:
            found["bias"] = floats(rng, sum(widths), self.dtype)
        return found

    def agree(self, rng, files):
        """Makes tensors of the parts of one matrix fit each other: an order is the same for all."""
        for name in ("g_idx", "weight_g_idx"):
            for file in files:
                file.update({name: files[0][name]} if name in file else {})

    def decode(self, tensors, widths, k, *, alternating=False):
        """One float64 matrix per part."""
        return rows_of(self._decode(tensors, sum(widths), k), widths, alternating)

    def order(self, tensors):
        """Where the file has an act-order: the inputs sorted by group, stably."""
        name = {"gptq": "g_idx", "ct_int": "weight_g_idx"}.get(self.spec)
        return np.argsort(tensors[name], kind="stable") if self.act_order else None

    def rescaled(self, tensors, change):
        """The same file with its float scales changed by a function of float64."""
        value = FLOAT[self._dtype_of(tensors[self.scale])](tensors[self.scale])
        return tensors | {self.scale: bits(change(value), "float32")}

    def _dtype_of(self, stored):
        return "float32" if stored.dtype == np.float32 else self.dtype


def rows_of(rows, widths, alternating):
    if alternating:
        return [rows[part :: len(widths)] for part in range(len(widths))]
    return np.split(rows, np.cumsum(widths)[:-1])


class Gptq(Format):
    spec, scale, exact_scale = "gptq", "scales", False
    defaults: ClassVar = {"bits": 4, "group": 128, "dtype": "float16", "qzeros": True, "zero_offset": 1, "g_idx": True}

    @property
    def code(self):
        return ("u4" if self.bits == 4 else "u8") if self.zero_points else ("u4b8" if self.bits == 4 else "u8b128")

    def _draw(self, rng, widths, n, k):
        per, groups = 32 // self.bits, self.groups(k)
        found = {"qweight": words(rng, up(k, per), n), "scales": floats(rng, (groups, n), self.dtype)}
        if self.zero_points or self.qzeros:
            nibbles = rng.integers(0, 1 << self.bits, (groups, up(n, per) * per))
            most = (1 << self.bits) - 1 - self.zero_offset
            nibbles[:, :n] = (
                np.minimum(nibbles[:, :n], most) if self.zero_points else (1 << self.bits - 1) - self.zero_offset
            )
            found["qzeros"] = packed(nibbles, self.bits)
        if self.act_order or self.g_idx:
            order = np.arange(k) // (k if self.group < 0 else self.group)
            found["g_idx"] = (rng.permutation(order) if self.act_order else order).astype(np.int32)
        return found

    def _decode(self, tensors, n, k):
        tensors = {name: tensor for name, tensor in tensors.items() if name != "qzeros" or self.zero_points}
        return gptq.decode(
            tensors,
            n=n,
            k=k,
            group=self.group,
            bits=self.bits,
            dtype=self._dtype_of(tensors["scales"]),
            checkpoint_format={1: "gptq", 0: "gptq_v2"}[self.zero_offset],
        )


class Awq(Format):
    spec, scale, exact_scale = "awq", "scales", False
    defaults: ClassVar = {"group": 128, "dtype": "float16"}
    code = "u4"

    def _draw(self, rng, widths, n, k):
        groups = self.groups(k)
        return {
            "qweight": words(rng, k, up(n, 8)),
            "qzeros": words(rng, groups, up(n, 8)),
            "scales": floats(rng, (groups, n), self.dtype),
        }

    def _decode(self, tensors, n, k):
        return awq.decode(tensors, n=n, k=k, group=self.group, dtype=self._dtype_of(tensors["scales"]))


class CtInt(Format):
    spec, exact_scale = "ct_int", False
    defaults: ClassVar = {"bits": 4, "group": 128, "dtype": "float16", "shape_tensor": True}
    code = Gptq.code

    def _draw(self, rng, widths, n, k):
        per, groups = 32 // self.bits, self.groups(k)
        found = {"weight_packed": words(rng, n, up(k, per)), "weight_scale": floats(rng, (n, groups), self.dtype)}
        if self.zero_points:
            found["weight_zero_point"] = words(rng, up(n, per), groups)
        if self.act_order:
            found["weight_g_idx"] = rng.permutation(np.arange(k) // (k if self.group < 0 else self.group)).astype(
                np.int32
            )
        if self.shape_tensor:
            found["weight_shape"] = np.array([n, k], np.int64)
        return found

    def _decode(self, tensors, n, k):
        return ct_int.decode(
            tensors, n=n, k=k, group=self.group, bits=self.bits, dtype=self._dtype_of(tensors["weight_scale"])
        )


class Fp8(Format):
    spec, exact_scale = "fp8", False
    defaults: ClassVar = {"scale": "channel", "scale_dtype": "float32", "dtype": "bfloat16"}
    scale, code = "weight_scale", "e4m3"

    def _draw(self, rng, widths, n, k):
        shape = {"channel": (n, 1), "tensor": (), "part": (len(widths),)}[self.params.get("scale", "channel")]
        found = {"weight": e4m3(rng, (n, k)), "weight_scale": floats(rng, shape, self.scale_dtype, signs=False)}
        if self.input_scale:
            found["input_scale"] = floats(rng, (), "float32", signs=False)
        return found

    def decode(self, tensors, widths, k, *, alternating=False):
        dtype = self._dtype_of(tensors["weight_scale"])
        if self.params.get("scale") != "part":
            return rows_of(fp8.decode(tensors, n=sum(widths), k=k, dtype=dtype), widths, alternating)
        parts = rows_of(tensors["weight"], widths, alternating)
        return [
            fp8.decode({"weight": rows, "weight_scale": scale}, n=len(rows), k=k, dtype=dtype)
            for rows, scale in zip(parts, tensors["weight_scale"])
        ]

    def _dtype_of(self, stored):
        return "float32" if stored.dtype == np.float32 else self.scale_dtype


class Fp8Block(Fp8):
    spec, exact_scale = "fp8_block", False
    defaults: ClassVar = {
        "group": 128,
        "block_n": 128,
        "scale_name": "weight_scale_inv",
        "scale_dtype": "float32",
        "dtype": "bfloat16",
    }

    @property
    def scale(self):
        return self.scale_name

    def _draw(self, rng, widths, n, k):
        rows = sum(up(width, self.block_n) for width in widths)
        return {
            "weight": e4m3(rng, (n, k)),
            self.scale: floats(rng, (rows, up(k, self.group)), self.scale_dtype, signs=False),
        }

    def decode(self, tensors, widths, k, *, alternating=False):
        parts = rows_of(tensors["weight"], widths, alternating)
        scales = rows_of(tensors[self.scale], [up(width, self.block_n) for width in widths], False)
        return [
            fp8_block.decode(
                {"weight": rows, self.scale: scale},
                n=len(rows),
                k=k,
                block=(self.block_n, self.group),
                dtype=self._dtype_of(scale),
            )
            for rows, scale in zip(parts, scales)
        ]


class Mxfp8(Format):
    spec, code, group = "mxfp8", "e4m3", 32
    defaults: ClassVar = {"dtype": "bfloat16"}

    def _draw(self, rng, widths, n, k):
        return {"weight": e4m3(rng, (n, k)), "weight_scale": rng.integers(0, 255, (n, up(k, 32))).astype(np.uint8)}

    def _decode(self, tensors, n, k):
        return mxfp8.decode(tensors, n=n, k=k)


class Mxfp4(Format):
    """With `most`, the largest byte of a scale."""

    spec, code, group = "mxfp4", "e2m1", 32
    defaults: ClassVar = {"dtype": "bfloat16"}
    most = 254

    def _draw(self, rng, widths, n, k):
        scale = rng.integers(0, self.most + 1, (n, up(k, 32))).astype(np.uint8)
        if self.writer == "gpt_oss":
            return {"blocks": rng.integers(0, 256, (n, up(k, 32), 16)).astype(np.uint8), "scales": scale}
        return {"weight_packed": rng.integers(0, 256, (n, up(k, 2))).astype(np.uint8), "weight_scale": scale}

    def _decode(self, tensors, n, k):
        if self.writer != "gpt_oss":
            return mxfp4.decode(tensors, n=n, k=k)
        return mxfp4.decode_gpt_oss({f"x_{name}": tensor for name, tensor in tensors.items()}, name="x", n=n, k=k)


class Mxfp4Small(Mxfp4):
    most = 249


class Nvfp4(Format):
    """Block scales stay within 2^12, so that bf16 kernels hold them all."""

    spec, code, group = "nvfp4", "e2m1", 16
    defaults: ClassVar = {"writer": "modelopt", "global_scale": "matrix", "dtype": "bfloat16"}

    @property
    def names(self):
        if self.writer == "modelopt":
            return "weight", "weight_scale_2"
        return "weight_packed", "weight_global_scale"

    def _draw(self, rng, widths, n, k):
        codes, name = self.names
        found = {
            codes: rng.integers(0, 256, (n, up(k, 2))).astype(np.uint8),
            "weight_scale": self.blocks(rng, (n, up(k, 16))),
            name: floats(rng, (), "float32", signs=False),
        }
        if self.global_scale == "part":
            found[name] = found[name] * np.ldexp(np.float32(1), rng.integers(-2, 3, len(widths))).astype(np.float32)
        return found

    def agree(self, rng, files):
        """Global scales differ by powers of two."""
        name = self.names[1]
        for file in files[1:]:
            shape = np.shape(file[name])
            file[name] = np.ldexp(np.float32(files[0][name].flat[0]), rng.integers(-2, 3, shape)).astype(np.float32)

    def blocks(self, rng, shape):
        """Scales of 2^-3 to 2^2, a few of them 0, either sign."""
        code = rng.integers(4 << 3, 9 << 3, shape) | rng.integers(0, 2, shape) << 7
        return np.where(rng.integers(0, 20, shape) == 0, 0, code).astype(np.uint8)

    def decode(self, tensors, widths, k, *, alternating=False):
        codes, name = self.names
        parts = [rows_of(tensors[of], widths, alternating) for of in (codes, "weight_scale")]
        return [
            nvfp4.decode({codes: rows, "weight_scale": scale, name: one}, n=len(rows), k=k)
            for rows, scale, one in zip(*parts, np.broadcast_to(tensors[name], len(widths)))
        ]

    def inverted(self, tensors, widths, k, *, alternating=False):
        """Decoded with the reciprocal of a dividing global scale, rounded once to float32."""
        name = self.names[1]
        if self.writer == "modelopt":
            return self.decode(tensors, widths, k, alternating=alternating)
        inverse = (1 / f32(tensors[name])).astype(np.float32)
        other = Nvfp4(self.params | {"writer": "modelopt"})
        names = dict(zip(self.names, other.names))
        tensors = {names.get(key, key): value for key, value in tensors.items()} | {"weight_scale_2": inverse}
        return other.decode(tensors, widths, k, alternating=alternating)
