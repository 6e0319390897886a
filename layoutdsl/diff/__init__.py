"""Which elements move between two versions of a spec, as a reviewer reads it: `layoutdsl diff`.

    layoutdsl diff specs/kernel/marlin_int4_a16.yaml                   the last commit against the file as it is
    layoutdsl diff main:specs/kernel/x.yaml specs/kernel/x.yaml        two versions, each a name, a path or a revision
    git config diff.layoutdsl.command 'layoutdsl diff'                 git's own diff of specs, with .gitattributes

`versions` opens both, `settings` says at which sizes they are compared, `compare` does it with `moves` and `facts`,
`stated` looks at what has no place, `modules` at modules; `text`, `data` and `picture` tell of it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layoutdsl import flags
from layoutdsl.diff import modules, versions
from layoutdsl.diff.compare import Difference, difference
from layoutdsl.diff.data import data_of
from layoutdsl.diff.picture import drawing_of
from layoutdsl.diff.settings import Size
from layoutdsl.diff.text import markdown_of, text_of
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.lint import ink
from layoutdsl.model import Module
from layoutdsl.show import svg

FROM_GIT = (7, 9)
"""How many arguments git gives to a program that it has show a difference; nine where a file was renamed."""

NONE = "/dev/null"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl diff`."""
    parser.add_argument(
        "versions",
        nargs="+",
        metavar="VERSION",
        help="what was and what is: a spec's name, its path, or REVISION:PATH; one path is held against the last "
        "commit; git's own seven arguments are understood",
    )
    parser.add_argument(
        "--size",
        metavar="AXIS=N",
        action="append",
        default=[],
        type=flags.size,
        help="extent of n or k (default: each that either version tries)",
    )
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=flags.param,
        help="a parameter of the specs (default: each that they try, and each value in turn)",
    )
    parser.add_argument(
        "--output-format",
        choices=("text", "json", "markdown"),
        default="text",
        help="markdown is a comment for a pull request (default: text)",
    )
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write a picture of what moves there")


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl diff`: 0 where both versions describe the same layout, 1 where they do not.

    Called by git it returns 0 whatever it finds, and says what stops it in place of the difference: git takes another
    status for a fault of the program.
    """
    count = len(args.versions)
    if count in FROM_GIT:
        return _shown_to_git(args)
    if count > 2:
        print(f"layoutdsl: one or two versions are compared, {count} are given", file=sys.stderr)
        return 2
    after = versions.opened(args.versions[-1], args.specs)
    if count == 2:
        return _told(args, versions.opened(args.versions[0], args.specs), after)
    return _told(args, versions.committed(args.versions[0], args.specs), after)


def _shown_to_git(args: argparse.Namespace) -> int:
    try:
        try:
            _of_git(args)
        except LayoutError as error:
            print(f"{args.versions[0]}: the layouts cannot be compared\n{error}")
        sys.stdout.flush()
    except BrokenPipeError:
        # Git's reader has enough; nothing may be written when the interpreter closes its output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _of_git(args: argparse.Namespace) -> None:
    """`path old-file old-hex old-mode new-file new-hex new-mode`; bases stand beside the path, not beside the files."""
    path, old, name, _, new = args.versions[:5]
    if NONE in (old, new):
        print(f"{path}: {'a new spec' if old == NONE else 'this spec is gone'}, there is no other version of it")
        return
    specs = (*args.specs, str(Path(path).parent))
    before = versions.opened(old, specs, f"{path} at {name[:10]}")
    _told(args, before, versions.opened(new, specs, path))


def _told(args: argparse.Namespace, before: versions.Version, after: versions.Version) -> int:
    kinds = isinstance(before.spec, Module), isinstance(after.spec, Module)
    if kinds[0] != kinds[1]:
        raise LayoutError(
            f"one of `{before.spec.name}` and `{after.spec.name}` is a module, the other one a format",
            code="LP106",
            name="wrong-kind",
            help="compare two modules, or two formats",
        )
    specs = before.spec, after.spec
    modular = [spec for spec in specs if isinstance(spec, Module)]
    sizes = _known("size", args.size, [axis for spec in modular for axis in spec.axes] or ["n", "k"])
    _refuse_nothing(sizes)
    own = [] if modular else ["parts", "names"]
    params = _known("param", args.param, [*own, *(name for spec in specs for name in spec.params)])
    if modular:
        found = modules.difference(before, after, sizes, params)
    else:
        found = difference(before, after, sizes, params, args.specs)
    if not found.settings:
        raise _not_compared(found)
    if args.svg:
        svg.write(args.svg, drawing_of(found))
        print(f"{args.svg}: {found.before.label} -> {found.after.label}", file=sys.stderr)
    print(_printed(args.output_format, found))
    return 0 if found.is_same else 1


def _refuse_nothing(sizes: Mapping[str, Size]) -> None:
    """Else the first parameter at hand would be blamed."""
    for axis, size in sizes.items():
        if 0 in (size if isinstance(size, tuple) else (size,)):
            raise LayoutError(
                f"size `{axis}` cannot be 0", code="LP111", name="sizes", help="expected a whole number from 1"
            )


def _not_compared(found: Difference) -> LayoutError:
    """What to say where no element of one version was held against one of the other: nothing is known of them."""
    whys = [f"{refusal.label} has no layout at {refusal.settings[0]}: {refusal.message}" for refusal in found.refusals]
    return LayoutError(
        f"`{found.before.spec.name}` and `{found.after.spec.name}` cannot be compared: no setting suits both",
        code="LP192",
        name="nothing-compared",
        help="; ".join([*whys[:2], "--size and --param give what suits both"]),
    )


def _printed(form: str, found: Difference) -> str:
    if form == "json":
        return json.dumps(data_of(found), indent=1, ensure_ascii=False)
    if form == "markdown":
        return markdown_of(found)
    return text_of(found, colour=ink.is_wanted())


def _known(flag: str, pairs: Sequence[tuple[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """What a flag gives, each name once, and only names that one of the versions has."""
    found = dict(pairs)
    for name in found:
        if name not in names:
            raise LayoutError(
                f"--{flag} names `{name}`, which neither version has",
                code="LP191",
                name="unknown-name",
                help=did_you_mean(name, names) or f"what they have: {', '.join(dict.fromkeys(names))}",
            )
    if len(found) < len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise LayoutError(f"--{flag} gives `{twice}` twice", code="LP191", name="unknown-name", help="give it once")
    return found
