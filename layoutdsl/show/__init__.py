"""Which element of a spec stands where, as text and as a picture: `layoutdsl show`.

    layoutdsl show marlin_int4_a16 --size n=100 --size k=132 --tensor weight --svg weight.svg

`sheet` inverts resolve's views, `picture` resolves a format at some sizes, `window` chooses what of a tensor is drawn,
`text` and `drawing` draw it; `module` draws modules, and `svg` writes files of any kind. All that is drawn is what
resolve says; no format is known by name.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

from layoutdsl import flags
from layoutdsl.errors import LayoutError
from layoutdsl.library import load_spec
from layoutdsl.model import Checkpoint, Kernel, Module
from layoutdsl.show import module, svg
from layoutdsl.show.drawing import drawing_of
from layoutdsl.show.picture import picture_of
from layoutdsl.show.text import drawn_at, text_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl show`."""

    def option(flag: str, metavar: str, help: str, **more: Any) -> None:
        parser.add_argument(flag, metavar=metavar, help=help, **more)

    parser.add_argument("spec", metavar="SPEC", help="a checkpoint, kernel or module spec: its name or path")
    option(
        "--size",
        "AXIS=N",
        "extent of an axis before sharding (default: the first that the spec tries); AXIS=N,N,... for fused parts",
        action=_Named,
        type=flags.size,
    )
    option(
        "--param",
        "NAME=VALUE",
        "a parameter of the spec; parts=stacked draws fused parts, split=k lets ranks cut the inputs",
        action=_Named,
        type=flags.param,
    )
    option("--module", "MODULE", "draw a format's tensors for the matrices of this module")
    option("--tensor", "NAME", "this tensor alone (default: the codes, and the others in brief)")
    option("--tp", "N", "how many tensor-parallel ranks share the matrix", type=int)
    option("--rank", "R", "draw what this rank holds (a kernel's tensors are always one rank's; default: 0)", type=int)
    option("--rows", "FIRST:END", "rows to draw, from FIRST to before END", type=_window)
    option("--words", "FIRST:END", "words to draw of each row", type=_window)
    option("--svg", "FILE", "write a picture there instead of printing text", type=Path)


class _Named(argparse.Action):
    """Collects NAME=VALUE."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        found = dict(getattr(namespace, self.dest) or {})
        name, value = values
        if name in found:
            raise argparse.ArgumentError(self, f"{name}=... is given twice")
        setattr(namespace, self.dest, {**found, name: value})


def _window(text: str) -> range:
    first, colon, end = text.partition(":")
    numbers = [int(number) for number in (first, end) if re.fullmatch("[0-9]{1,18}", number)]
    found = range(numbers[0], numbers[-1] + (not colon)) if len(numbers) == 1 + len(colon) else range(0)
    if not found:
        raise argparse.ArgumentTypeError(f"expected FIRST:END with FIRST below END, or one number, found `{text}`")
    return found


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl show`: print the text, or write the picture and say where it is."""
    spec = load_spec(args.spec, specs=args.specs)
    if isinstance(spec, Module):
        cut = module.cut_of(spec, args.size, args.param, _plain(args, spec))
        said, drawn = module.text_of(cut), cut.drawn_at
        picture = module.drawing_of(cut) if args.svg else ""
    else:
        assert isinstance(spec, Checkpoint | Kernel)
        tp = 1 if args.tp is None else args.tp
        laid = picture_of(spec, args.size, args.param, module=args.module, tp=tp, rank=args.rank, specs=args.specs)
        colour = _is_terminal() and not os.environ.get("NO_COLOR")
        choice = (args.tensor, args.rows, args.words)
        said, drawn = "" if args.svg else text_of(laid, *choice, colour), drawn_at(laid)
        picture = drawing_of(laid, *choice) if args.svg else ""
    if args.svg:
        svg.write(args.svg, picture)
        print(f"{args.svg}: {spec.name} {drawn}")
    else:
        print(said)
    return 0


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _plain(args: argparse.Namespace, spec: Module) -> int | None:
    """The number of ranks, where nothing is asked that a module does not have."""
    for flag in ("module", "tensor", "rank", "rows", "words"):
        if getattr(args, flag) is not None:
            raise LayoutError(
                f"`{spec.name}` is a module, which has no tensors for --{flag} to choose from",
                code="LP106",
                name="wrong-kind",
                help=f"layoutdsl show FORMAT --module {spec.name} draws the tensors of a format for it",
            )
    return args.tp
