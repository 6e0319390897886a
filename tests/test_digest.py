"""The digest of what a conversion wrote: the same for any pieces, another for any change."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutdsl.checkpoints.digest import ROW, Digest

DATA = np.random.default_rng(1).integers(0, 256, 3 * ROW + 100, np.uint8).tobytes()


def digest(*pieces: bytes) -> str:
    found = Digest()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


@given(st.lists(st.integers(0, len(DATA)), max_size=5), st.integers(0, len(DATA)))
def test_pieces_do_not_matter(cuts: list[int], size: int) -> None:
    places = sorted({0, size, *(min(cut, size) for cut in cuts)})
    pieces = [DATA[a:b] for a, b in zip(places, places[1:])]
    assert digest(*pieces) == digest(DATA[:size])


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_told(at: int, change: int) -> None:
    changed = bytearray(DATA)
    changed[at] ^= change
    assert digest(bytes(changed)) != digest(DATA)


@pytest.mark.parametrize(
    "other",
    [
        DATA[ROW : 2 * ROW] + DATA[:ROW] + DATA[2 * ROW :],  # two rows change places
        DATA[8:16] + DATA[:8] + DATA[16:],
        DATA[:-1],
        DATA + b"\0",
        DATA[: 2 * ROW] + bytes(ROW) + DATA[3 * ROW :],  # a page that never reached the disk
        b"",
    ],
)
def test_other_bytes_are_told(other: bytes) -> None:
    assert digest(other) != digest(DATA)


def test_it_is_what_it_says() -> None:
    """The sum of rows times odd numbers, worked out with integers of any size."""
    found = Digest(DATA)
    rows = np.frombuffer(DATA + bytes(-len(DATA) % ROW), "<u8").reshape(-1, ROW // 8)
    odd = []
    for number in range(len(rows)):
        value = (number + 1) * 0x9E3779B97F4A7C15 % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            value = (value ^ value >> shift) * factor % 2**64
        odd.append((value ^ value >> 31) | 1)
    sums = [sum(int(word) * factor for word, factor in zip(column, odd)) % 2**64 for column in rows.T[:64]]
    whole = np.zeros(ROW // 8, np.uint64)
    for row, factor in zip(rows, odd):
        whole += row * np.uint64(factor)
    assert whole[:64].tolist() == sums
    assert found.hexdigest() == hashlib.sha256(whole.tobytes() + len(DATA).to_bytes(8, "little")).hexdigest()
    assert found.hexdigest() == found.hexdigest()
