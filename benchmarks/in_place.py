"""One expert of many given anew, tensor by tensor, into the outputs of a run: its time over its share of the run's.

The cpu backend on two threads, both into the same storage, in turns. What is over 1 is what every tensor takes
whatever its size, and that one of a few MiB is not shared between threads as a run is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks import Figure, Scale
from benchmarks.timing import THREADS, Conversion, against_copy, use_threads
from layoutdsl import compile_plan

PROCESSES = 3
LIMIT = 3.0
"""Times 1/experts of a full run."""

SIZES: dict[Scale, Mapping[str, int]] = {
    "full": {"e": 256, "i": 1536, "h": 4096},
    "quick": {"e": 4, "i": 128, "h": 128},
}


def measure(scale: Scale) -> Iterator[Figure]:
    use_threads(THREADS)
    sizes = SIZES[scale]
    experts = sizes["e"]
    params = {"group": 128, "qzeros": False, "g_idx": False}
    conversion = Conversion(compile_plan("gptq", "marlin_int4_a16", "moe_gated", sizes, params=params))
    ((plan, given, out),) = conversion.jobs
    updates = plan.updates(out, backend="cpu")
    at = 0

    def update() -> None:
        nonlocal at
        at = (at + 37) % experts  # one that is in no cache
        for name, tensor in given.items():
            updates.update(name, tensor[at], expert=at)

    for _ in range(2):
        update()
    taken = against_copy(scale, lambda: None, run=conversion.run, update=update)
    ratio = taken["update"].seconds * experts / taken["run"].seconds
    times = {name: one.seconds * 1e3 for name, one in taken.items()}
    note = f"{conversion.mebibytes:.0f} MiB, run {times['run']:.0f} ms, update {times['update']:.1f} ms"
    yield Figure(f"update_one_of_{experts}", ratio, f"times 1/{experts} of a run", LIMIT, note)
