"""The numbers that a kernel of the cpu backend gets: a table of jobs, cut into turns that threads share.

A job is a grid of blocks of one output, for every expert: rows and columns, each with tables of addresses, walked tile
by tile. A turn is one tile of one expert. So a call of a kernel makes all that has its form: of every box, program and
expert.
"""

from __future__ import annotations

END, TILES, ACROSS = 0, 1, 2
"""The number of the first turn that is another job's; tiles of one expert; tiles beside each other in it."""

ROWS, COLUMNS, HEIGHT, WIDTH = 3, 4, 5, 6
"""Of the grid, and of a tile."""

ROWS_TO, COLUMNS_TO, ROWS_OF, COLUMNS_OF, ROWS_BY, COLUMNS_BY = 7, 8, 9, 10, 11, 12
"""Addresses of the tables: of targets, sources and operands."""

TO, OF, BY, WITH = 13, 14, 15, 16
"""Where the list of places has, for each expert, the addresses of its target, source and operand, and what else a
recode needs."""

ROWS_ORDER, COLUMNS_ORDER, ROWS_BESIDE, COLUMNS_BESIDE = 17, 18, 19, 20
"""Where it has those of the orders that sources and operands are looked up in."""

MODE, VALUE = 21, 22
"""What to do, and the word that fills or what is added to a zero point."""

LOOK, STORE, STREAM = 0, 1, 2
"""Only look for what is refused; store what is made; store it past the caches."""

PANEL, PANEL_TO, PANEL_OF, SCRATCH = 23, 24, 25, 26
"""Blocks of a panel that is sorted apart, its tables, and its bytes."""

WIDE = 27
"""Columns of the table of jobs."""
