"""The source codes of a box for the torch backend: a view, or looked up in index tensors where an axis is gathered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.boxes import Box, boxes, first
from layoutdsl.backends.places import ANY, order_refused
from layoutdsl.backends.torch_recodes import STORED
from layoutdsl.codes import code_named
from layoutdsl.plan import Lookup, Move, Plan, TensorInfo


class Sources:
    """The inputs of one run: flat uint8 tensors, one per expert that the plan reads."""

    def __init__(self, plan: Plan, given: Mapping[str, list[torch.Tensor]], device: torch.device):
        self.plan, self.given, self.device = plan, given, device
        self.unpacked: tuple[tuple[str, int], torch.Tensor] | None = None
        self.found: dict[tuple[str, int, int], torch.Tensor] = {}

    def codes(self, name: str, expert: int) -> torch.Tensor:
        """The codes of one tensor, flat. The last 4-bit one stays unpacked."""
        info = self.plan.input[name]
        expert = 0 if info.shared or not info.experts else expert
        flat, bits = self.given[name][expert], code_named(info.code).bits
        if bits != 4:
            return flat.view(STORED[bits])
        if self.unpacked is None or self.unpacked[0] != (name, expert):
            self.unpacked = None
            nibbles = torch.empty(flat.numel(), 2, dtype=torch.uint8, device=flat.device)
            torch.bitwise_and(flat, 15, out=nibbles[:, 0])
            torch.bitwise_right_shift(flat, 4, out=nibbles[:, 1])
            self.unpacked = (name, expert), nibbles.view(-1)
        return self.unpacked[1]

    def box(self, move: Move, box: Box, name: str, expert: int) -> torch.Tensor:
        """The source codes of a box, of its shape: a view, or looked up where an axis is gathered."""
        if move.gather_n is None and move.gather_k is None:
            return box.source(self.codes(name, expert))
        n = self._addresses(move.gather_n, box.part, box.grid(0, 4, box.src[0], self.device), expert)
        k = self._addresses(move.gather_k, 0, box.grid(1, 4, box.src[1], self.device), expert)
        return self.codes(name, expert).take(n.reshape(-1, 1) + k.reshape(1, -1)).view(box.sizes)

    def _addresses(self, lookup: Lookup | None, part: int, src: torch.Tensor, expert: int) -> torch.Tensor:
        if lookup is None:
            return src
        offset, step, base = lookup.views[part]
        x = self.order(lookup.tensor, expert, lookup.group)[src] * step + offset
        found = torch.full_like(x, base)
        for weight, extent, stride in lookup.digits:
            found += (x // weight % extent if extent else x // weight) * stride
        return found

    def orders(self, move: Move, expert: int) -> None:
        for lookup in (move.gather_n, move.gather_k):
            if lookup is not None:
                self.order(lookup.tensor, expert, lookup.group)

    def order(self, tensor: str, expert: int, group: int) -> torch.Tensor:
        """The coordinates of k sorted by group, stably. Refused where a group does not have its number of elements,
        unless that does not count (ANY)."""
        key = (tensor, expert, group)
        if key not in self.found:
            groups, order = (self.codes(tensor, expert).to(torch.int64) & 0xFFFFFFFF).sort(stable=True)
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


def data(sources: tuple[str, ...], moves: tuple[Move, ...]) -> Iterator[tuple[Move, Box, str]]:
    """The boxes of the moves that bring data, with the tensor that each comes from."""
    for move in moves:
        if move.kind == "data":
            for box in boxes(move):
                yield move, box, sources[box.part]
