"""Recodes of 8-bit codes as rules, which vectors follow faster than they look codes up.

The definition makes a table of all codes. Nearly all of it is a straight line: codes of floats and of powers of two
have their exponents shifted, and nothing else. What is not is listed, code by code. A rule says that of x = code & mask
the target's code is (x << shift) + plus; 0 for an x below `low`, which a value other than 0 does not survive; that an x
above `high` is refused; and that exceptions are what they are, `flagged` ones among them refused or lost. The shift is
by how many bits of mantissa the target has more.

Most vectors have no code that is no usual one. Those from `safe` to `last` follow the line and nothing else; of those
below, `rest` becomes `fill`. Whoever sees no other code needs not look for exceptions.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from layoutdsl import recodes
from layoutdsl.backends.cpu.forms import LOST, REFUSED
from layoutdsl.codes import Unrepresentable, code_named
from layoutdsl.recodes import Recode

MASK, PLUS, LOW, HIGH, COUNT, FLAGGED, SAFE, LAST, REST, FILL, EXCEPTIONS = range(11)
"""Where a rule, a list of int64, has its numbers, those of exceptions without and with flags, and from where on these
are: a byte of the code, up to four of what is made of it, and one each, not 0, of what is refused and of what is
lost."""


@lru_cache(maxsize=256)
def table(recode: Recode, shift: int) -> np.ndarray:
    """What the definition makes of every code of 4 or 8 bits: int64, with flags of what is refused and what becomes 0.
    `shift` is that of a reduction."""
    made = np.zeros(1 << code_named(recode.source).bits, dtype=np.int64)
    for code in range(len(made)):
        try:
            found = recodes.apply(recode, code, shift=shift)
            made[code] = found | int(recodes.vanishes(recode, code, found)) << LOST
        except Unrepresentable:
            made[code] = 1 << REFUSED
    return made


@lru_cache(maxsize=256)
def rule(recode: Recode, shift: int) -> np.ndarray:
    """The rule that makes of every 8-bit code what the definition makes of it."""
    made = table(recode, shift)
    width = code_named(recode.target).bits
    steps = max(code_named(recode.target).mantissa - code_named(recode.source).mantissa, 0)
    mask = 0x7F if np.array_equal(made[:128], made[128:]) else 0xFF
    x = np.arange(mask + 1, dtype=np.int64)
    known = made[: mask + 1]
    known_refused = known >> REFUSED != 0
    high = int(np.flatnonzero(~known_refused).max(initial=-1))
    line = (known - (x << steps)) % (1 << width)
    unmarked = (known >> LOST == 0)[: high + 1]
    pluses, counts = np.unique(line[: high + 1][unmarked], return_counts=True)
    plus = int(pluses[counts.argmax()]) if len(pluses) else 0
    below = (x > 0).astype(np.int64) << LOST
    low = int(np.cumprod(known == below).sum())
    low = low if low > 1 else 0
    follows = np.where(x < low, below, ((x << steps) + plus) % (1 << width))
    others = (x if high < 0 else np.flatnonzero((follows != known) & (x <= high))).tolist()
    flagged = [code for code in others if known[code] >> LOST]
    plain = [code for code in others if not known[code] >> LOST]
    entries = [
        code | (int(known[code]) & ((1 << width) - 1)) << 8
        | int(known[code] >> REFUSED & 1) << 40 | int(known[code] >> LOST & 1) << 48
        for code in (*plain, *flagged)
    ]  # fmt: skip
    odd = np.flatnonzero((((x << steps) + plus) % (1 << width) != known) & (x <= high))
    safe, last = (int(odd.max(initial=-1)) + 1, high) if high >= 0 else (mask + 1, 0)
    if safe > min(high, 254):  # none: nor does any code stand for the rest
        safe, last = 255, 0
    rest = 0 if 0 < safe < 255 and known[0] < 1 << width else 255
    numbers = [mask, plus, low, max(high, 0), len(plain), len(flagged), safe, last, rest, int(known[0])]
    return np.array([*numbers, *entries], dtype=np.int64)
