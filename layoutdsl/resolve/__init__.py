"""A spec plus numbers: parameters, ranks, padding, and where each tensor's elements stand.

This is the only stage that sees sizes from outside: `params` binds a spec's parameters, `cuts` and `matrices` cut
a module for one rank, `tensors` lays a format's tensors over a matrix, `padding` fits a matrix to a kernel.
"""

from layoutdsl.resolve.cuts import Cut, dealt
from layoutdsl.resolve.matrices import (
    Grains,
    Matrix,
    Ranks,
    Sizes,
    Stretch,
    held_matrices,
    is_tight,
    matrices,
    part_names,
    with_defaults,
    with_extents,
)
from layoutdsl.resolve.memory import forget
from layoutdsl.resolve.padding import (
    CHOICES,
    Fit,
    are_few,
    cheapest,
    fitted,
    front_of,
    groups_nest,
    groups_of,
    named,
    shapes,
    stored_bytes,
    stored_group,
    taken,
    tile_of,
    up,
    widened,
    worth,
)
from layoutdsl.resolve.params import MAX_EXTENT, Scope, bind, filled
from layoutdsl.resolve.tensors import Side, Stored, tensors

__all__ = [
    "CHOICES",
    "MAX_EXTENT",
    "Cut",
    "Fit",
    "Grains",
    "Matrix",
    "Ranks",
    "Scope",
    "Side",
    "Sizes",
    "Stored",
    "Stretch",
    "are_few",
    "bind",
    "cheapest",
    "dealt",
    "filled",
    "fitted",
    "forget",
    "front_of",
    "groups_nest",
    "groups_of",
    "held_matrices",
    "is_tight",
    "matrices",
    "named",
    "part_names",
    "shapes",
    "stored_bytes",
    "stored_group",
    "taken",
    "tensors",
    "tile_of",
    "up",
    "widened",
    "with_defaults",
    "with_extents",
    "worth",
]
