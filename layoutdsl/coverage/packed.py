"""Which sizes no file of a format has: packed words that would be filled in part.

A plan takes such tensors, since a spec says where each code stands. But whoever writes files packs whole words, so
there is no checkpoint of that shape, and a table of what is served would count a layer that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.codes import DTYPE_BITS
from layoutdsl.coverage.needs import Need, side
from layoutdsl.layout import Chain
from layoutdsl.resolve import Matrix, Ranks, Side, Stored, bind, matrices, tensors


def left_over(need: Need, specs: tuple[str, ...]) -> str | None:
    """Why no writer makes files of these sizes; None where nothing is left over."""
    module, source, params = need.of_module(specs), need.of_source(specs), dict(need.params)
    whole = Side(source, bind(source, side(params, "source", {**source.params, "parts": None})), "whole")
    bound = bind(module, side(params, "module", module.params))
    for matrix in matrices(module, bound, dict(need.sizes), Ranks(), only=need.only):
        for tensor in tensors(whole, matrix):
            word = DTYPE_BITS[tensor.dtypes[0]] // tensor.code.bits
            for axis, extent, chain in _extents(matrix, tensor):
                if extent % _packed(chain, word):
                    return (f"`{tensor.name}` packs {_packed(chain, word)} codes along `{axis}` in a word of "
                            f"{tensor.dtypes[0]}, and {extent} are no whole number of words")  # fmt: skip
    return None


def _extents(matrix: Matrix, tensor: Stored) -> Iterator[tuple[str, int, Chain]]:
    """Each axis of a tensor as it is stored: its name, how many elements stand there, and their chain."""
    yield matrix.k.axis, matrix.k.size, tensor.k[0].chain
    parts = [(matrix.n[part], tensor.view(part)[0]) for part in tensor.parts]
    if len({view.base for _, view in parts}) == 1:  # one axis for all of them
        yield parts[0][0].axis, sum(stretch.size for stretch, _ in parts), parts[0][1].chain
        return
    for stretch, view in parts:
        yield stretch.axis, stretch.size, view.chain


def _packed(chain: Chain, word: int) -> int:
    """How many neighbours along an axis fill a word: up to the top one of the digits inside it."""
    return max((weight * extent for weight, extent, stride in chain.digits if extent and 0 < stride < word), default=1)
