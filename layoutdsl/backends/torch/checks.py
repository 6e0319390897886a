"""The checks of a plan, made by torch: what must hold in the data, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from layoutdsl.backends.places import place, refused
from layoutdsl.backends.torch.boxes import Box, boxes, first
from layoutdsl.backends.torch.codes import Codes, indexed
from layoutdsl.backends.torch.pieces import piece
from layoutdsl.backends.torch.recodes import STORED, unsigned
from layoutdsl.backends.torch.sources import Sources
from layoutdsl.plan import Check


def check_holds(check: Check, sources: Sources, expert: int) -> None:
    """Raises LayoutError with the first place where it does not."""
    if check.kind == "shape":
        _check_shape(check, sources, expert)
        return
    codes = sources.codes(check.tensor, expert)
    if check.kind == "equal" and _all_equal(codes, check.expect[0]):
        return
    other = sources.codes(check.other, expert) if check.kind == "same" else None
    for move in check.moves:
        for whole in boxes(move):
            for box in _pieces(whole, piece(sources.device)):
                found, expect = _numbers(codes, box), _expected(check, box, other, sources.device)
                index = first(found != expect)
                if index is not None:
                    where = place(sources.plan, check.tensor.split(".")[0], expert, box.part, *box.place(index))
                    code, wanted = (int(one.expand(box.sizes).reshape(-1)[index]) for one in (found, expect))
                    raise refused(check.tensor, where, f"it is {code}, expected {wanted}; {check.why}")


def _pieces(box: Box, most: int) -> Iterator[Box]:
    """A check's elements have no target: none share one, so that they can be cut anywhere."""
    loops = tuple((axis, count, dx, dsrc, dsrc) for axis, count, dx, _, dsrc in box.loops)
    return replace(box, loops=loops).pieces(most)


def _all_equal(codes: Codes, expect: int) -> bool:
    """Whether all bytes of a tensor are as expected, so that no place needs to be looked for."""
    if codes.bits not in (4, 8) or not 0 <= expect < 1 << codes.bits:
        return False
    byte = expect * 17 if codes.bits == 4 else expect
    return all(bool((part == byte).all()) for part in codes.flat.split(piece(codes.flat.device)))


def _check_shape(check: Check, sources: Sources, expert: int) -> None:
    flat, codes = sources.given[check.tensor][expert], sources.plan.input[check.tensor].codes
    bits = flat.numel() * 8 // codes
    found = [unsigned(value, bits) for value in flat.view(STORED[bits]).tolist()]
    if tuple(found) != check.expect:
        raise refused(check.tensor, "its two elements", f"it says {found}, the matrix is {list(check.expect)}")


def _numbers(codes: Codes, box: Box) -> torch.Tensor:
    """Codes as plain numbers."""
    found = codes.read(box.source).to(torch.int64)
    return found & ((1 << codes.bits) - 1) if codes.bits < 64 else found


def _expected(check: Check, box: Box, other: Codes | None, device: torch.device) -> torch.Tensor:
    if other is not None:
        return _numbers(other, box)
    if check.kind == "order":
        group, start = check.expect
        k = indexed(box.along(1, 2, box.at[1] + start), device)
        return k // group if group else torch.zeros_like(k)
    return torch.tensor(check.expect[0], device=device)
