"""Each device primitive's host body against a definition in numpy: the kernels of primitives_check.cu on all kinds of
bytes, in every order of threads. scripts/gpu_check holds the GPU's bodies against the host's with the same kernels."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from host_kernels import PRIMITIVES, Kernel, aligned, launched

from layoutdsl.backends.host.launch import Schedule, schedules

SOURCE = '#include "primitives_check.cu"\n'
THREADS, ROW = 64, 64
FLOAT_NAN, HALF_NAN = 0x7FFFFFFF, 0x7FFF

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64).numpy()

FEW = [Schedule(), Schedule("reverse", "late"), Schedule("random", "mixed", 2, 1), Schedule("ahead", "mixed", 2, 2)]


def rows(seed: int, blocks: int = 3) -> np.ndarray:
    """[blocks, threads, 64] random bytes, a row for each thread."""
    found = aligned((blocks, THREADS, ROW))
    found[:] = np.random.default_rng(seed).integers(0, 256, found.shape)
    return found


def result(name: str, given: np.ndarray, schedule: Schedule = FEW[0]) -> np.ndarray:
    out = aligned(given.shape)
    launched(Kernel(name, SOURCE, shared=4096), len(given), {"in": given}, {"out": out}, schedule=schedule)
    return out


def words(of: np.ndarray, dtype: str, at: int, count: int = 1) -> np.ndarray:
    """[blocks, threads, count] values that stand at byte `at` of each row."""
    size = np.dtype(dtype).itemsize * count
    return np.ascontiguousarray(of[..., at : at + size]).view(dtype)


def put(into: np.ndarray, at: int, values: np.ndarray) -> None:
    values = np.ascontiguousarray(values)
    values = values.reshape(*into.shape[:2], -1).view(np.uint8)
    into[..., at : at + values.shape[-1]] = values


# ---------------------------------------------------------------- definitions: what a kernel writes for what it reads


def of_global(given, out):
    for to, at, size in ((0, 1, 1), (2, 6, 2), (4, 12, 4), (8, 24, 8), (16, 48, 16), (32, 4, 4)):
        out[..., to : to + size] = given[..., at : at + size]


def of_shared(given, out):
    following = np.roll(given, -1, axis=1)
    for to, at, size in ((0, 1, 1), (2, 6, 2), (4, 12, 4), (8, 24, 8), (16, 48, 16)):
        out[..., to : to + size] = following[..., at : at + size]


def of_indices(given, out):
    blocks = len(given)
    for block in range(blocks):
        for thread in range(THREADS):
            numbers = [thread, THREADS, block, blocks, thread % 32, thread // 32]
            out[block, thread, :24] = np.array(numbers, dtype=np.uint32).view(np.uint8)


def of_sync_warp(given, out):
    out[..., :4] = given[:, np.arange(THREADS) ^ 5, :4]


def of_shfl(given, out):
    threads = np.arange(THREADS)
    values, lanes = words(given, "u4", 0)[..., 0], words(given, "u4", 4)[..., 0]
    base = threads // 32 * 32
    put(out, 0, np.take_along_axis(values, base + lanes % 32, axis=1))
    put(out, 4, values[:, base + 7])
    put(out, 8, values[:, threads ^ 1])
    put(out, 12, values[:, threads ^ 22])


def of_ballot(given, out):
    for at, holds in ((0, words(given, "u4", 0) % 3 == 0), (4, words(given, "u1", 0) > 200)):
        bits = (holds.reshape(-1, 2, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=2)
        put(out, at, np.repeat(bits.astype(np.uint32), 32, axis=1))


def of_atomics(given, out):
    flag = words(given, "u4", 16) % 2
    swapped = np.where(flag == 1, words(given, "u4", 20), flag)
    put(out, 0, swapped + words(given, "u4", 24))
    put(out, 4, flag)
    put(out, 8, swapped)
    sums = words(given, "u4", 0).sum(axis=1, dtype=np.uint32)
    floats = words(given, "u1", 4).sum(axis=1, dtype=np.float32)
    least = words(given, "u8", 8).min(axis=1)
    for at, values in ((32, sums), (36, floats), (40, least)):
        made = values.view(np.uint8)
        out[:, 0, at : at + made.shape[-1]] = made


def of_atomic_add_ordered(given, out):
    out[..., :4] = np.array([1], "u4").view("u1")
    for at, sums in ((32, np.full(len(given), 64, "u4")), (36, words(given, "u4", 0)[..., 0].sum(axis=1, dtype="u4"))):
        out[:, 0, at : at + 4] = sums.view("u1").reshape(-1, 4)


def of_release(given, out):
    out[:, :32, :4] = given[:, :32, :4]
    out[:, :32, 4] = 1
    out[:, 32:, :4] = given[:, :32, :4]


def of_copy_async(given, out):
    for to, at, size in ((0, 16, 16), (16, 40, 8), (24, 4, 4)):
        out[..., to : to + size] = given[..., at : at + size]
    for to, at, size, by in ((32, 0, 16, 0), (48, 8, 8, 1), (56, 16, 4, 2)):
        valid = np.arange(size) < given[..., by : by + 1] % (size + 1)
        out[..., to : to + size] = np.where(valid, given[..., at : at + size], 0)


def permuted(a, b, selector):
    both = (int(b) << 32 | int(a)).to_bytes(8, "little")
    found = 0
    for i in range(4):
        nibble = int(selector) >> 4 * i & 15
        byte = both[nibble % 8]
        found |= (byte if nibble < 8 else 255 * (byte >> 7)) << 8 * i
    return found


def of_permute_bytes(given, out):
    a, b, selector = (words(given, "u4", at)[..., 0] for at in (0, 4, 8))
    each = np.vectorize(permuted, otypes=["u4"])
    put(out, 0, each(a, b, selector))
    put(out, 4, each(a, b, 0x5140))


def of_lop3(given, out):
    bits = [np.unpackbits(words(given, "u1", at, 4), axis=-1, bitorder="little") for at in (0, 4, 8)]
    for at, table in ((0, 0xEA), (4, 0x6A), (8, 0x01), (12, 0xB2)):
        found = table >> (bits[0] * 4 + bits[1] * 2 + bits[2]) & 1
        put(out, at, np.packbits(found.astype(np.uint8), axis=-1, bitorder="little"))


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def of_float_to_half(given, out):
    values = words(given, "f4", 0, 16)
    put(out, 0, np.where(np.isnan(values), np.uint16(HALF_NAN), values.astype("f2").view("u2")))


def of_float_to_bfloat16(given, out):
    values = words(given, "f4", 0, 16)
    rounded = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view("u2")
    put(out, 0, np.where(np.isnan(values), np.uint16(HALF_NAN), rounded))


@np.errstate(invalid="ignore")
def of_half_to_float(given, out):
    values = words(given, "f2", 0, 32)[..., ::2]
    put(out, 0, np.where(np.isnan(values), np.uint32(FLOAT_NAN), values.astype("f4").view("u4")))


def of_bfloat16_to_float(given, out):
    put(out, 0, words(given, "u2", 0, 32)[..., ::2].astype("u4") << 16)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def of_floats_to_e4m3(given, out):
    values = words(given, "f4", 0, 16)
    distance = np.abs(E4M3[:127] - np.minimum(np.abs(values.astype("f8")), 448)[..., None])
    is_nearest = distance == distance.min(axis=-1, keepdims=True)
    nearest = (is_nearest * (2 - np.arange(127) % 2)).argmax(axis=-1) | np.signbit(values) << 7
    put(out, 0, np.where(np.isnan(values), 0x7F, nearest).astype("u1"))


def matrices(given):
    """[blocks, 2 warps, 4 matrices, 8 rows, 8 columns] of 16 bits."""
    lane = np.arange(32)
    chunks = words(given, "u2", 0, 32).reshape(len(given), 2, 128, 8)
    return chunks[:, :, lane * 5 % 32 + 32 * (lane % 3)].reshape(len(given), 2, 4, 8, 8)


def of_ldmatrix(given, out, transposed=False):
    found = matrices(given)
    if transposed:
        found = found.swapaxes(3, 4)
    pairs = found.reshape(len(given), 2, 4, 32, 2)  # lane l has the l-th pair of a matrix
    for at, count in ((0, 1), (4, 2), (16, 4)):
        put(out, at, pairs[:, :, :count].transpose(0, 1, 3, 2, 4))


def rounded(exact: Fraction, fraction: int, least: int) -> float:
    """To so many bits after the first, or a multiple of 2^least; half to even."""
    step = Fraction(2) ** max(math.frexp(abs(exact))[1] - 1 - fraction, least)
    return float(round(exact / step) * step)


@np.errstate(over="ignore", invalid="ignore")
def of_pairs(given, out, dtype):
    """Each sum of a product and a third number as a fraction, which is rounded once."""
    half = dtype == "float16"
    codes = given[..., :60].copy().view("u2").reshape(*given.shape[:2], 5, 3, 2)
    values = codes.view("f2").astype("f8") if half else (codes.astype("u4") << 16).view("f4").astype("f8")
    a, b, c = (values[..., i, :] for i in range(3))
    one, none = np.ones_like(a), np.full_like(a, -0.0)
    made = np.zeros(values.shape)
    fields, most = ((10, -24), 65520) if half else ((7, -133), (2 - 2**-8) * 2.0**127)
    for i, (x, y, z) in enumerate(((a, one, b), (a, b, none), (a, b, c))):
        product = x * y
        plain = product + z
        small = np.isfinite(plain) & (plain != 0)
        for at in zip(*np.nonzero(small)):
            exact = rounded(Fraction(product[at]) + Fraction(z[at]), *fields)
            plain[at] = math.copysign(exact, plain[at]) if abs(exact) < most else math.copysign(math.inf, exact)
        made[..., i, :] = plain
    found = made.astype("f2").view("u2") if half else (made.astype("f4").view("u4") >> 16).astype("u2")
    put(out, 0, np.where(np.isnan(made), HALF_NAN, found))


DEFINITIONS = {
    "check_global": of_global,
    "check_shared": of_shared,
    "check_indices": of_indices,
    "check_sync_warp": of_sync_warp,
    "check_shfl": of_shfl,
    "check_ballot": of_ballot,
    "check_atomics": of_atomics,
    "check_atomic_add_ordered": of_atomic_add_ordered,
    "check_release": of_release,
    "check_copy_async": of_copy_async,
    "check_permute_bytes": of_permute_bytes,
    "check_lop3": of_lop3,
    "check_float_to_half": of_float_to_half,
    "check_half_to_float": of_half_to_float,
    "check_float_to_bfloat16": of_float_to_bfloat16,
    "check_bfloat16_to_float": of_bfloat16_to_float,
    "check_f16x2": partial(of_pairs, dtype="float16"),
    "check_bf16x2": partial(of_pairs, dtype="bfloat16"),
    "check_floats_to_e4m3": of_floats_to_e4m3,
    "check_ldmatrix": of_ldmatrix,
    "check_ldmatrix_transposed": partial(of_ldmatrix, transposed=True),
}


def expected(name: str, given: np.ndarray) -> np.ndarray:
    out = np.zeros_like(given)
    DEFINITIONS[name](given, out)
    return out


# ---------------------------------------------------------------- bytes of all kinds


@pytest.mark.parametrize("name", DEFINITIONS)
def test_random_bytes(name):
    for seed, schedule in enumerate(FEW):
        given = rows(seed)
        assert np.array_equal(result(name, given, schedule), expected(name, given)), schedule


def test_every_primitive_has_a_definition():
    assert set(PRIMITIVES) == {*DEFINITIONS, *(f"check_{name}" for name in PRODUCTS)}


@pytest.mark.parametrize("name", ["check_copy_async", "check_release", "check_sync_warp", "check_shared"])
def test_every_schedule(name):
    given = rows(7, blocks=2)
    for schedule in schedules(resident=2, seeds=2):
        assert np.array_equal(result(name, given, schedule), expected(name, given)), schedule


def filled(values: np.ndarray, per_row: int) -> np.ndarray:
    """Rows that begin with these values, so many in each."""
    values = np.resize(values, -(-len(values) // (THREADS * per_row)) * THREADS * per_row).reshape(-1, THREADS, per_row)
    found = aligned((len(values), THREADS, ROW))
    put(found, 0, values)
    return found


@pytest.mark.parametrize("dtype, name", [("u2", "check_half_to_float"), ("u2", "check_bfloat16_to_float")])
def test_every_short_float(dtype, name):
    codes = np.zeros((1 << 16, 2), dtype=dtype)  # the kernels read every second one
    codes[:, 0] = np.arange(1 << 16)
    given = filled(codes.reshape(-1), 32)
    assert np.array_equal(result(name, given), expected(name, given))


@pytest.mark.parametrize("shift, name", [(13, "check_float_to_half"), (16, "check_float_to_bfloat16")])
def test_around_every_tie(shift, name):
    """Every code of the shorter float, as a float, and what lies half a step and a hair from it; all kinds of NaNs."""
    halves = np.arange(1 << 16, dtype="u2").view("f2").astype("f4").view("u4")
    exact = halves if shift == 13 else np.arange(1 << 16, dtype="u4") << 16
    around = [exact + np.uint32(step & 0xFFFFFFFF) for step in (0, 1, -1)]
    around += [exact + np.uint32(step) for step in ((1 << shift - 1) - 1, 1 << shift - 1, (1 << shift - 1) + 1)]
    tiny = np.arange(0, 0x34000000, 0x0FF00F, dtype="u4")  # below half of the least half
    steps = (np.arange(2048, dtype="u4")[:, None] + 0.5 + np.array([[-1e-4, 0, 1e-4]])) * 2.0**-24  # between subnormals
    given = filled(np.concatenate([*around, tiny, steps.astype("f4").reshape(-1).view("u4")]), 16)
    assert np.array_equal(result(name, given), expected(name, given))


@pytest.mark.parametrize("dtype, name", [("float16", "check_f16x2"), ("bfloat16", "check_bf16x2")])
def test_sums_of_near_numbers(dtype, name):
    """Exponents that lie together, so that sums cancel, tie and become subnormal."""
    random, fraction = np.random.default_rng(3), 10 if dtype == "float16" else 7
    exponents = random.integers(0, 2, (3, THREADS, 32)) * (30 if dtype == "float16" else 254) // 2
    exponents += random.integers(0, 12, exponents.shape) * random.integers(0, 2, exponents.shape)
    codes = exponents << fraction | random.integers(0, 1 << fraction, exponents.shape)
    codes |= random.integers(0, 2, exponents.shape) << 15
    given = aligned((3, THREADS, ROW))
    put(given, 0, codes.astype("u2"))
    assert np.array_equal(result(name, given), expected(name, given))


def test_around_every_tie_of_e4m3():
    """Every e4m3, the middles between neighbours and what lies a hair from them, with both signs; beyond 448; NaNs."""
    steps = np.append(E4M3[:127], 480)
    places = np.concatenate([steps, (steps[1:] + steps[:-1]) / 2]).astype("f4")
    around = np.concatenate([places, *(np.nextafter(places, np.float32(end)) for end in (np.inf, -np.inf))])
    beyond = np.array([1e4, 3e38, np.inf, np.nan, 1e-45, 1e-30], dtype="f4")
    nans = np.array([0x7F800001, 0xFFC00000, 0xFFFFFFFF], dtype="u4").view("f4")
    found = np.concatenate([around, beyond, -around, -beyond, nans])
    given = filled(found.view("u4"), 16)
    assert np.array_equal(result("check_floats_to_e4m3", given), expected("check_floats_to_e4m3", given))


# ---------------------------------------------------------------- products of matrices, by the tables of the PTX manual


def halves(codes):
    return codes.view("f2").astype("f8")


def bfloats(codes):
    return (codes.astype("u4") << 16).view("f4").astype("f8")


def e4m3s(codes):
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float64).numpy()


PRODUCTS = {
    "mma_f16": ("u2", halves, "f4"),
    "mma_bf16": ("u2", bfloats, "f4"),
    "mma_s8": ("i1", lambda codes: codes.astype("i8"), "i4"),
    "mma_e4m3": ("u1", e4m3s, "f4"),
}


@np.errstate(invalid="ignore")
def product(given: np.ndarray, code: str, value, sum_type: str) -> np.ndarray:
    """[warps, 32, 4] bits of the sums that lanes hold, for [warps, 32, 64] rows that they give."""
    per_word = 4 // np.dtype(code).itemsize
    half, depth = 4 * per_word, 8 * per_word
    warps, lane = len(given), np.arange(32)
    group, within = lane // 4, lane % 4
    a, b = np.zeros((warps, 16, depth)), np.zeros((warps, depth, 8))
    of_a, of_b = words(given, code, 0, 4 * per_word), words(given, code, 16, 2 * per_word)
    for i in range(4 * per_word):
        row = group + 8 * (i // per_word % 2)
        column = within * per_word + i % per_word + (half if i >= 2 * per_word else 0)
        a[:, row, column] = value(of_a[..., i].copy())
    for i in range(2 * per_word):
        row = within * per_word + i % per_word + (half if i >= per_word else 0)
        b[:, row, group] = value(of_b[..., i].copy())
    c = words(given, sum_type, 32, 4)
    found = np.zeros(c.shape, dtype="f8" if sum_type == "f4" else "i8")
    sums = a @ b
    for i in range(4):
        found[..., i] = c[..., i] + sums[:, group + 8 * (i // 2), 2 * within + i % 2]
    found = found.astype(sum_type).view("u4")
    return np.where(found & 0x7FFFFFFF > 0x7F800000, FLOAT_NAN, found) if sum_type == "f4" else found


def operands(name: str, seed: int) -> np.ndarray:
    """Rows whose products and sums are exact in double precision: of all signs, subnormals and zeros among them. Of an
    odd seed, some are infinite or NaNs."""
    random, given = np.random.default_rng(seed), rows(seed)
    if name == "mma_f16":
        magnitudes, signs = (random.integers(0, most, (*given.shape[:2], 12)) for most in (1 << 14, 2))
        put(given, 0, (magnitudes | signs << 15).astype("u2"))
    if name == "mma_bf16":
        eighths = (random.integers(-256, 257, (*given.shape[:2], 12)) / 8).astype("f4")
        put(given, 0, (eighths.view("u4") >> 16).astype("u2"))
    if name in ("mma_f16", "mma_bf16") and seed % 2:
        codes = given[:, :8, :24].view("u2")
        codes[:] = np.where(
            random.integers(0, 64, codes.shape) == 0, {"mma_f16": 0x7C00, "mma_bf16": 0xFF80}[name], codes
        )
    if name == "mma_e4m3" and seed % 2 == 0:
        codes = given[..., :24]
        codes[codes & 0x7F == 0x7F] = 0
    if name != "mma_s8":
        put(given, 32, (random.integers(-(1 << 12), 1 << 12, (*given.shape[:2], 4)) / 64).astype("f4"))
    return given


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    for seed, schedule in enumerate(FEW):
        given = operands(name, seed)
        found = words(result(f"check_{name}", given, schedule), PRODUCTS[name][2], 0, 4)
        wanted = product(given.reshape(-1, 32, ROW), *PRODUCTS[name])
        assert np.array_equal(found.reshape(wanted.shape).view("u4"), wanted), schedule
