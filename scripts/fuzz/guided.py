"""Look for inputs that reach new code, with atheris (`pip install atheris`); by hand, on Python 3.11.

    python scripts/fuzz/guided.py plan -max_total_time=600          # then any flags of libFuzzer

Inputs are changed as in the plain run; what counts is which lines of layoutdsl they reach. It ends at the first fault
and shows it; the input is kept in the current folder.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))

with atheris.instrument_imports(include=["layoutdsl"]):
    import fuzzing

EVERY = 1000
"""Inputs between two lines about how it goes: libFuzzer ends the process without a word to Python."""


class Target:
    """What libFuzzer calls, for inputs of one kind."""

    def __init__(self, name: str):
        self.kind = fuzzing.KINDS[name]
        self.inputs = self.past = 0

    def one(self, data: bytes) -> None:
        """Read one input; a fault ends the run."""
        outcome = fuzzing.tried(self.kind, data.decode("utf-8", "surrogatepass" if b"\\xed" in data else "replace"))
        self.inputs += 1
        self.past += outcome.past
        if self.inputs % EVERY == 0:
            print(json.dumps({"inputs": self.inputs, "past": self.past}), flush=True)
        # With every line counted, reading takes several times as long; only what never ends is a fault here.
        if outcome.fault and not outcome.fault.startswith("it takes"):
            raise RuntimeError(outcome.fault)

    def changed(self, data: bytes, most: int, seed: int) -> bytes:
        """Another input made from one that reached something new, or from a valid one."""
        dice = random.Random(seed)
        text = data.decode("utf-8", "replace")
        if len(text) < 20 or dice.random() < 0.1:
            text = dice.choice(self.kind.seeds())
        changes = self.kind.sound if self.kind.sound is not None and dice.random() < 0.3 else None
        try:
            made = changes(dice, text) if changes else fuzzing.mutated(self.kind, dice, text)
        except (ValueError, KeyError, TypeError, AttributeError):  # a sound change needs a sound input
            made = fuzzing.mutated(self.kind, dice, text)
        return made.encode("utf-8", "replace")[:most]


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in fuzzing.KINDS:
        sys.exit(f"name a kind of input: {', '.join(fuzzing.KINDS)}")
    target = Target(sys.argv[1])
    target.kind.seeds()
    flags = [sys.argv[0], "-max_len=40000", *sys.argv[2:]]
    atheris.Setup(flags, target.one, custom_mutator=target.changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
