"""Stored codes to fragments of 8-bit bytes on the host: every code with every zero point at every place, against the
values of layoutdsl.codes, and whole tiles in the places that a decoder written apart gives them."""

import numpy as np
import pytest
import torch
from decoders import marlin
from host_kernels import Kernel, aligned, launched

from layoutdsl.codes import code_named

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64).numpy()
INT8 = np.arange(256, dtype="u1").view("i1").astype("f8")

# code of the shape and operand -> code, bytes' values, words of a fragment, value of a byte over that of its code
POLICIES = {
    "u4b8, s8": ("u4b8", INT8, 1, 16.0),
    "u4, s8": ("u4", INT8, 1, 1.0),
    "u8b128, s8": ("u8b128", INT8, 2, 1.0),
    "u4b8, e4m3": ("n4b8", E4M3, 1, 2.0**-9),
    "u4, e4m3": ("n4", E4M3, 1, 2.0**-9),
    "e2m1, e4m3": ("e2m1", E4M3, 1, 2.0**-6),
}


def fragments(policy: str, given: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """[fragments, 8] bytes, k = 4 (register) + byte, of the words [fragments, words] with zero points [fragments]."""
    code, operand = policy.split(", ")
    of = Kernel(
        "decode",
        f"""#include "gemm/decode8.cuh"
namespace ld {{
using D = Decode8<Code::{code}, Operand::{operand}>;
LD_KERNEL(decode, 32)(Global in, Global zeros, Global out) {{
    const i64 at = i64{{block()}} * 32 + lane();
    u32 words[D::words];
    for (int i = 0; i < D::words; ++i) words[i] = in.load<u32>((at * D::words + i) * 4);
    const Fragment<u32, 2> made = D::fragment(words, zeros.load<u32>(at * 4));
    out.store<u32>(at * 8, made[0]);
    out.store<u32>(at * 8 + 4, made[1]);
}}
}}
""",
        threads=32,
    )
    count = -(-len(given) // 32) * 32
    words, of_zeros, out = aligned((count, given.shape[1]), "u4"), aligned(count, "u4"), aligned((count, 8))
    words[: len(given)], of_zeros[: len(given)] = given, zeros
    launched(of, count // 32, {"words": words, "zeros": of_zeros}, {"out": out})
    return out[: len(given)]


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """[fragments, 8] codes, k4 outermost -> [fragments, words]"""
    codes = codes.reshape(-1, 2, 4).astype("u4")
    if bits == 8:
        return (codes << np.arange(0, 32, 8, dtype="u4")).sum(axis=2, dtype="u4")
    places = (2 * np.arange(4) + np.arange(2)[:, None]).astype("u4")
    return (codes << 4 * places).sum(axis=(1, 2), dtype="u4")[:, None]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_code_at_every_place(policy):
    name, number, _, unit = POLICIES[policy]
    code = code_named(name)
    every = 1 << code.bits
    zeros = np.arange(16) if code.needs_zero_point else np.array([0])
    place, one, zero = (axis.reshape(-1) for axis in np.meshgrid(np.arange(8), np.arange(every), zeros, indexing="ij"))
    codes = np.random.default_rng(0).integers(0, every, (len(place), 8))
    codes[np.arange(len(place)), place] = one
    values = np.array([[code.decode(c, z if code.needs_zero_point else None) for c in range(every)] for z in zeros])
    found = number[fragments(policy, packed(codes, code.bits), zero)]
    assert np.array_equal(found, values[zero[:, None], codes] * unit)


@pytest.mark.parametrize("policy", POLICIES)
def test_tiles(policy):
    """A lane's words in a row are fragments in a row, of column lane / 4, inputs by the tables of the PTX manual."""
    name, number, words, unit = POLICIES[policy]
    code, n, k = code_named(name), 64, 64
    stored = np.random.default_rng(1).integers(0, 1 << 32, (k // 16, n * code.bits // 2), dtype="u4")
    logical = marlin.weight_codes(stored, n=n, k=k, bits=code.bits, activation_bits=8)
    found = fragments(policy, stored.reshape(-1, words), np.full(stored.size // words, 5))
    values = np.zeros((n, k))
    kt, nt, lane, fragment, register, byte = np.indices((k // 32, n // 32, 32, 4, 2, 4)).reshape(6, -1)
    column = nt * 32 + fragment * 8 + lane // 4
    values[column, kt * 32 + register * 16 + lane % 4 * 4 + byte] = number[found.reshape(-1)]
    zero = 5 if code.needs_zero_point else None
    wanted = np.vectorize(lambda c: code.decode(int(c), zero) * unit)(logical)
    assert np.array_equal(values, wanted)
