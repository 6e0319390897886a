"""How zero points are stored depends on a parameter that no config states.

## Why is this bad

Two conventions are about: the zero point itself, and one less. They cannot be told apart by shapes or names, and the
wrong one shifts every weight by a whole step. A format that allows both must say which key of a checkpoint's config
decides.

## Example

    params: {zero_offset: {values: [1, 0]}}
    z: {role: zero_point, plus: zero_offset, ...}

## Use instead

    params: {zero_offset: {values: [1, 0], config: checkpoint_format, map: {gptq: 1, gptq_v2: 0}}}
    z: {role: zero_point, plus: zero_offset, ...}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.formats import stated
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Checkpoint


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Checkpoint):
        return
    for one in stated(spec, "plus"):
        for name, start, end in one.tensor.plus.names() if one.tensor.plus is not None else ():
            param = spec.params.get(name)
            if param is not None and param.config is None and len(param.values) != 1:
                yield Found(
                    f"what is added to `{one.key}` depends on `{name}`, which no config states",
                    one.path("plus"),
                    within=(start, end),
                    help=f"add `config: KEY` to the parameter `{name}`, and `map` what that key may hold",
                )
