"""A kernel accepts a group size that is none, or has one as its default that it does not accept.

## Why is this bad

Which groups a kernel takes is a fact about it, and everything else is refused: a default outside is refused from
everyone who sets nothing. Finer groups than these cannot be merged, so no size may be listed that the kernel was not
built for.

## Example

    params: {group: {type: group, default: 256}}
    accepts: {tiles: [{n: 64, k: 128}], groups: [-1, 0, 128]}

## Use instead

    params: {group: {type: group, default: 128}}
    accepts: {tiles: [{n: 64, k: 128}], groups: [-1, 128]}
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.model import Kernel


def check(subject: Subject) -> Iterator[Found]:
    spec = subject.spec
    if not isinstance(spec, Kernel):
        return
    for at, group in enumerate(spec.accepts.groups):
        if group < -1 or group == 0:
            yield Found(
                f"{group} is no group size", ("accepts", "groups", at), help="write -1 for one group over all of k"
            )
        elif group in spec.accepts.groups[:at]:
            yield Found(f"groups of {group} are accepted twice", ("accepts", "groups", at), help="remove one")
    param = spec.params.get("group")
    if param is not None and param.default is not None and param.default not in spec.accepts.groups:
        yield Found(
            f"the default group of {param.default} is none that the kernel accepts",
            ("params", "group", "default"),
            help=f"it accepts {', '.join(map(str, dict.fromkeys(spec.accepts.groups)))}",
        )
