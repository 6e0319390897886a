"""The source codes of a box for the torch backend, looked up in index tensors where an axis is gathered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.places import ANY, order_refused
from layoutdsl.backends.torch.boxes import Box, Last, boxes, first
from layoutdsl.backends.torch.codes import Codes, indexed
from layoutdsl.backends.torch.pieces import piece
from layoutdsl.backends.torch.recodes import all_finite
from layoutdsl.codes import code_named
from layoutdsl.plan import Lookup, Move, Plan, TensorInfo
from layoutdsl.recodes import Recode

TOTAL = ("copy", "fp8_nibbles", "plain_nibbles", "fold_sign")
"""Recodes that take every code of 4 bits."""


class Sources:
    """The inputs of one run: flat uint8 tensors, one per expert that the plan reads."""

    def __init__(self, plan: Plan, given: Mapping[str, list[torch.Tensor]], device: torch.device):
        self.plan, self.given, self.device = plan, given, device
        self.last = Last(), Last()
        self.clean: dict[tuple[str, int], bool] = {}
        self.found: dict[tuple[str, int, int], torch.Tensor] = {}

    def codes(self, name: str, expert: int) -> Codes:
        """The codes of one tensor."""
        info = self.plan.input[name]
        flats = self.given[name]
        return Codes(flats[0 if info.shared or not info.experts else expert], code_named(info.code).bits)

    def box(self, move: Move, box: Box, codes: Codes, expert: int) -> torch.Tensor:
        """The source codes of a box, of its sizes."""
        if move.gather_n is None and move.gather_k is None:
            return codes.read(box.source)
        n = self._along(0, move.gather_n, box.part, box, expert)
        return codes.take(n, self._along(1, move.gather_k, 0, box, expert))

    def _along(self, axis: int, lookup: Lookup | None, part: int, box: Box, expert: int) -> torch.Tensor:
        where = box.along(axis, 4, box.src[axis])
        return self.last[axis].of(
            (lookup, part, where, expert), lambda: self.addresses(lookup, part, indexed(where, self.device), expert)
        )

    def addresses(self, lookup: Lookup | None, part: int, src: torch.Tensor, expert: int) -> torch.Tensor:
        """Source addresses along one axis: the columns of runs, looked up where it is gathered."""
        return src if lookup is None else stored(lookup, part, self.order(lookup.tensor, expert, lookup.group)[src])

    def refuses_none(self, recode: Recode, name: str, expert: int) -> bool:
        """Whether a recode takes every code of a tensor. Looked up once, since weights are many."""
        if recode.name != "copy" or code_named(recode.source).bits == 4:
            return recode.name in TOTAL
        if (name, expert) not in self.clean:
            codes = self.codes(name, expert).wide.split(piece(self.device))
            self.clean[name, expert] = all(all_finite(code_named(recode.source), part) for part in codes)
        return self.clean[name, expert]

    def orders(self, move: Move, expert: int) -> None:
        for lookup in (move.gather_n, move.gather_k):
            if lookup is not None:
                self.order(lookup.tensor, expert, lookup.group)

    def order(self, tensor: str, expert: int, group: int) -> torch.Tensor:
        """The coordinates of k sorted by group, stably. Refused where a group does not have its number of elements,
        unless that does not count (ANY)."""
        key = (tensor, expert, group)
        if key not in self.found:
            groups, order = (self.codes(tensor, expert).wide.to(torch.int64) & 0xFFFFFFFF).sort(stable=True)
            position = torch.arange(groups.numel(), device=groups.device)
            index = None if group == ANY else first(groups != (position // group if group else 0))
            if index is not None:
                raise order_refused(self.plan, tensor, expert, index, int(order[index]), int(groups[index]), group)
            self.found[key] = order
        return self.found[key]

    def k_perm(self, source: str, info: TensorInfo, expert: int) -> torch.Tensor:
        """The rank's slice of the sorted order, as indices into the whole input; its bytes."""
        matrix = info.name.split(".")[0]
        moves = (move for p in self.plan.programs if p.output.startswith(matrix + ".") for move in p.moves)
        group = next((move.gather_k.group for move in moves if move.gather_k is not None), ANY)
        start = next(e.start for e in self.plan.extents if e.matrix == matrix and e.role == "k")
        return buffers.flat(self.order(source, expert, group)[start : start + info.codes].to(torch.int32))


def stored(lookup: Lookup, part: int, x: torch.Tensor) -> torch.Tensor:
    """Source addresses of coordinates along a gathered axis."""
    offset, step, base = lookup.views[part]
    x = x * step + offset
    found = torch.full_like(x, base)
    for weight, extent, stride in lookup.digits:
        found += (x // weight % extent if extent else x // weight) * stride
    return found


def data(sources: tuple[str, ...], moves: tuple[Move, ...]) -> Iterator[tuple[Move, Box, str]]:
    """The boxes of the moves that bring data, with the tensor that each comes from."""
    for move in moves:
        if move.kind == "data":
            for box in boxes(move):
                yield move, box, sources[box.part]
