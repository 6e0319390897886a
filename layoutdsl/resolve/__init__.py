"""A spec plus numbers: parameters, ranks, padding, and where each tensor's elements stand.

This is the only stage that sees sizes from outside: `params` binds a spec's parameters, `matrices` cuts a module for
one rank, `tensors` lays a format's tensors over a matrix, `padding` fits a matrix to a kernel.
"""

from layoutdsl.resolve import padding as _padding
from layoutdsl.resolve import tensors as _tensors
from layoutdsl.resolve.matrices import Grains, Matrix, Ranks, Sizes, Stretch, dealt, matrices, with_extents
from layoutdsl.resolve.padding import group_of, groups_nest, pad, padded_to, stored_bytes, taken
from layoutdsl.resolve.params import MAX_EXTENT, Scope, bind
from layoutdsl.resolve.tensors import Side, Stored, tensors

__all__ = [
    "MAX_EXTENT",
    "Grains",
    "Matrix",
    "Ranks",
    "Scope",
    "Side",
    "Sizes",
    "Stored",
    "Stretch",
    "bind",
    "dealt",
    "forget",
    "group_of",
    "groups_nest",
    "matrices",
    "pad",
    "padded_to",
    "stored_bytes",
    "taken",
    "tensors",
    "with_extents",
]


def forget() -> None:
    """Empty the memory of resolved tensors and paddings."""
    _tensors._KNOWN.clear()
    _padding._PADDED.clear()
