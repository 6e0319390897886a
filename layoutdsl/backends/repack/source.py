"""Every kernel of a plan as text: `layoutdsl plan --emit cuda` prints it. What they include is in kernels/."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.backends.repack.lower import ALIGNED, Call, Kernel, checks, lowered, reductions
from layoutdsl.plan import Plan


def kernels(plan: Plan) -> dict[Kernel, list[str]]:
    """The kernels of a plan, each with the outputs that it makes, or for which it looks at inputs."""
    found: dict[Kernel, list[str]] = {}
    for call in _calls(plan):
        outputs = found.setdefault(call.kernel, [])
        output = call.output or call.sources[0][0]
        if output not in outputs:
            outputs.append(output)
    return found


def listing(plan: Plan) -> str:
    texts = [f"// for {', '.join(names)}\n{kernel.source}" for kernel, names in kernels(plan).items()]
    return "\n".join(texts).rstrip("\n")


def _calls(plan: Plan) -> Iterator[Call]:
    yield from checks(plan, ALIGNED)
    yield from reductions(plan)
    for index in range(len(plan.programs)):
        found = lowered(plan, index, ALIGNED)
        yield from (*found.writes, *found.compares, *found.checks)
