"""Activations quantized row by row on the host against numpy, byte for byte, and what the kernel reads and writes."""

import gemm_cases
import numpy as np
import pytest
import torch
from host_kernels import aligned

from layoutdsl import LayoutError
from layoutdsl.backends.host.launch import FORWARD, Launcher, Schedule
from layoutdsl.gemm.quantize import MOST_COLUMNS, quantizer, quantizers

KINDS = [(dtype, code) for dtype in ("float16", "bfloat16") for code in gemm_cases.TOPS]
SCHEDULES = [FORWARD, Schedule("reverse"), Schedule("random", resident=2, seed=1), Schedule("ahead")]


def quantized(x: torch.Tensor, code: str, columns: int, front: int = 0, schedule: Schedule = FORWARD):
    """Codes [m, columns], scales [m] and the launcher; x has rows of its own stride."""
    m, valid = x.shape
    of = quantizer(str(x.dtype).removeprefix("torch."), code, columns)
    codes, scales = aligned((m, columns)), aligned(m, "f4")
    codes[:], scales[:] = 0xEE, 7
    launcher = Launcher(schedule)
    launcher.reads("x", x._base)
    launcher.writes("codes", codes)
    launcher.writes("scales", scales)
    stride = x.stride(0) * 2
    arguments = of.arguments(
        codes.ctypes.data, scales.ctypes.data, x.data_ptr(), stride=stride, front=front, valid=valid
    )
    launcher.launch(of, m, arguments)
    return codes, scales, launcher.counters[of.name]


def defined(x: torch.Tensor, code: str, columns: int, front: int = 0):
    """What quantize.cuh says, and zeros around it."""
    made, scales = gemm_cases.quantized(x, code)
    codes = np.zeros((len(x), columns), dtype="u1")
    codes[:, front : front + x.shape[1]] = made
    return codes, scales


def same(found, wanted) -> bool:
    return np.array_equal(found[0], wanted[0]) and np.array_equal(found[1], wanted[1], equal_nan=True)


def rows(m: int, valid: int, dtype: str, stride: int | None = None, seed: int = 0) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    stride = stride or valid
    raw = torch.from_numpy(aligned(m * stride, "i2")).view(getattr(torch, dtype))
    raw.copy_(torch.randn(m * stride, generator=dice))
    return raw.view(m, stride)[:, :valid]


@pytest.mark.parametrize("dtype, code", KINDS)
@pytest.mark.parametrize("columns", [64, 128, 320, 4096, 14336])
def test_rows_of_all_lengths(dtype, code, columns):
    for m, schedule in zip((1, 3, 5, 2), SCHEDULES):
        x = rows(m, columns, dtype, seed=m)
        assert same(quantized(x, code, columns, schedule=schedule), defined(x, code, columns)), schedule


@pytest.mark.parametrize("dtype, code", KINDS)
def test_padded_columns_are_zero(dtype, code):
    x = rows(3, 40, dtype, stride=56)
    assert same(quantized(x, code, 192, front=24), defined(x, code, 192, front=24))


@pytest.mark.parametrize("dtype, code", KINDS)
def test_every_element(dtype, code):
    """All finite 16-bit codes, rows of magnitudes that lie together, so that each is rounded at many scales."""
    codes = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))
    codes = codes[codes.isfinite()]
    x = rows(len(codes) // 64, 64, dtype)
    x.copy_(codes[: len(x) * 64].view(-1, 64))
    assert same(quantized(x, code, 64), defined(x, code, 64))
    x.copy_(codes[: len(x) * 64].view(64, -1).t())
    assert same(quantized(x, code, 64), defined(x, code, 64))


@pytest.mark.parametrize("dtype, code", KINDS)
def test_rows_that_are_special(dtype, code):
    """Zeros of both signs; an infinity, a NaN; the least and the largest there is."""
    x = rows(8, 64, dtype)
    x[0], x[1] = 0, -0.0
    x[2, 5], x[3, 63], x[4, 0] = float("inf"), float("-inf"), float("nan")
    x[5] = torch.full((64,), 1, dtype=torch.int16).view(x.dtype)
    x[6] = torch.finfo(x.dtype).max
    codes, scales, _ = found = quantized(x, code, 64)
    assert same(found, defined(x, code, 64))
    assert not (codes[:5] & 0x7F).any() and np.isnan(scales[2:5]).all() and (scales[[0, 1]] > 0).all()
    assert np.isfinite(scales[5:]).all()


@pytest.mark.parametrize("dtype, code", KINDS)
def test_an_element_is_its_code_times_the_scale(dtype, code):
    x = rows(4, 512, dtype)
    codes, scales, _ = quantized(x, code, 512)
    values = codes.view("i1").astype("f8") if code == "int8" else e4m3(codes)
    off = np.abs(values * scales[:, None].astype("f8") - x.double().numpy())
    step = 0.5 if code == "int8" else np.maximum(np.abs(values) * 2.0**-4, 2.0**-10)  # half a unit in the last place
    assert (off <= scales[:, None] * (step + np.abs(values) * 2.0**-22)).all()


def e4m3(codes: np.ndarray) -> np.ndarray:
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float64).numpy()


def test_each_byte_is_read_once_in_full_sectors():
    x = rows(3, 4096, "bfloat16")
    counted = quantized(x, "int8", 4096)[2]
    loads, stores = counted.global_loads, counted.global_stores
    assert loads.bytes == 32 * loads.sectors == x.nbytes and loads.accesses == loads.wide
    assert stores.bytes == 3 * (4096 + 4) and stores.sectors == 3 * (4096 // 32 + 1)
    assert counted.shared_loads.conflicts == counted.shared_stores.conflicts == 0


def test_kernels_of_all_lengths():
    """They are few, and whatever row comes has its own among them."""
    names = [of.name for of in quantizers("float16", "int8")]
    assert {quantizer("float16", "int8", columns).name for columns in range(8, MOST_COLUMNS + 1, 8)} == set(names)
    assert len(set(names)) == len(names) == 9


def test_what_is_refused():
    of = quantizer("float16", "int8", 64)
    for rows_, stride, front, valid in ((8, 128, 0, 64), (16, 72, 0, 64), (16, 128, 4, 32), (16, 128, 0, 36)):
        with pytest.raises(LayoutError, match="not read 16 bytes at a time"):
            of.arguments(0, 0, rows_, stride=stride, front=front, valid=valid)
    with pytest.raises(LayoutError, match="65544 columns") as caught:
        quantizer("float16", "int8", MOST_COLUMNS + 8)
    assert "16-bit activations" in caught.value.help
