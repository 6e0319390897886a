"""The name of a spec is not that of its file.

## Why is this bad

A spec is found by the name of its file: plans, modules, builds and the command line look for `NAME.yaml`, and a plan
states the name that stands inside. Where the two differ, the spec that was compiled cannot be found again.

## Example

In `my_gptq.yaml`:

    checkpoint: gptq

## Use instead

    checkpoint: my_gptq
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from layoutdsl.library import kind_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject


def check(subject: Subject) -> Iterator[Found]:
    file, spec = Path(subject.tree.file), subject.spec
    if spec.name != file.stem:
        kind = kind_of(spec)
        yield Found(
            f"the file `{file.name}` holds the {kind} `{spec.name}`",
            (kind,),
            help=f"name the file `{spec.name}.yaml`: a spec is found by the name of its file",
        )
