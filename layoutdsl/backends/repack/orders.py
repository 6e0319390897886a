"""Act-order on the device: inputs sorted by group, and where the entries of a gathered axis then stand in the source.

Like all else that is enqueued, nothing here is read back: groups of unequal size mark the status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from layoutdsl.backends import buffers
from layoutdsl.backends.places import ANY
from layoutdsl.backends.repack.axes import PART
from layoutdsl.plan import Lookup, Plan, TensorInfo


class Orders:
    """The orders of one conversion; `status` becomes 0 where one is refused."""

    def __init__(self, plan: Plan, given: Mapping[str, Sequence[torch.Tensor]], status: torch.Tensor):
        self.plan, self.given, self.status = plan, given, status
        self.found: dict[tuple[str, int], torch.Tensor] = {}

    def order(self, tensor: str, group: int) -> torch.Tensor:
        """The coordinates of k sorted by group, stably, [experts, k]; marked where a group does not have its number of
        elements, unless that does not count (ANY)."""
        if (tensor, group) not in self.found:
            flats = torch.stack([flat.view(torch.int32) for flat in self.given[tensor]])
            groups, order = (flats.to(torch.int64) & 0xFFFFFFFF).sort(dim=1, stable=True)
            if group != ANY:
                position = torch.arange(groups.shape[1], device=groups.device)
                expected = position // group if group else torch.zeros_like(position)
                self.status.masked_fill_((groups != expected).any(), 0)
            self.found[tensor, group] = order
        return self.found[tensor, group]

    def gathered(self, lookup: Lookup, views: int, entries: torch.Tensor, row: int, experts: int) -> torch.Tensor:
        """Addresses of an axis' entries, [experts, entries], whose positions are in that row of them; `views`: how many
        parts see it in their own way."""
        coordinates = self.order(lookup.tensor, lookup.group)[:, entries[row]].expand(experts, -1)
        made = torch.zeros_like(coordinates)
        for part, (offset, step, base) in enumerate(lookup.views[:views]):
            x = coordinates * step + offset
            found = torch.full_like(x, base)
            for weight, extent, stride in lookup.digits:
                found += (x // weight % extent if extent else x // weight) * stride
            made = torch.where(entries[PART] == part, found, made) if views > 1 else found
        return made.contiguous()

    def k_perm(self, source: str, info: TensorInfo) -> list[torch.Tensor]:
        """The rank's slice of the sorted order, as indices into the whole input; bytes per expert."""
        matrix = info.name.split(".")[0]
        moves = (move for one in self.plan.programs if one.output.startswith(matrix + ".") for move in one.moves)
        group = next((move.gather_k.group for move in moves if move.gather_k is not None), ANY)
        start = next(e.start for e in self.plan.extents if e.matrix == matrix and e.role == "k")
        order = self.order(source, group)[:, start : start + info.codes].to(torch.int32)
        return [buffers.flat(row) for row in order]
