"""What is served of many models, or of one, before any weight is there: `layoutdsl coverage`.

    layoutdsl coverage --models models.yaml --source gptq --param group=128 --tp 1,2,4,8,16
    layoutdsl coverage folder-with-config-json --tp 1,2,4

`families` and `folder` say what is needed, `table` works it out with `ranks` and `packed`, `report` and `heatmap` show
it. Needs no torch.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from layoutdsl import flags
from layoutdsl.errors import LayoutError

FORMATS = ("text", "json", "markdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl coverage`."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("folder", nargs="?", metavar="FOLDER", help="folder with a config.json; no weights are needed")
    what.add_argument("--models", metavar="FILE", help="YAML file of model families and their extents")
    parser.add_argument("--tp", type=_counts, default=(1, 2, 4, 8, 16), metavar="N,N,...", help=(
        "numbers of tensor-parallel ranks (default: 1,2,4,8,16)"))  # fmt: skip
    parser.add_argument("--ep", type=_counts, default=(1,), metavar="N,N,...", help=(
        "numbers of expert-parallel ranks, each with each of --tp (default: 1)"))  # fmt: skip
    parser.add_argument("--source", metavar="FORMAT", help=(
        "format of the weights: a checkpoint spec's name or path (default: what config.json states)"))  # fmt: skip
    parser.add_argument("--param", action="append", default=[], type=flags.param, metavar="NAME=VALUE", help=(
        "a parameter of the specs, as for plan; without --source one of the kernels, as for convert"))  # fmt: skip
    parser.add_argument("--to", action="append", metavar="KERNEL", help="kernel spec, as for convert; may be repeated")
    parser.add_argument("--format", choices=FORMATS, default="text", help="how to print it (default: text)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a heat map there as well")
    parser.add_argument("--jobs", type=_processes, default=None, metavar="N", help=(
        "processes to work in (default: as many as there are cores, for few plans one)"))  # fmt: skip


def _counts(text: str) -> tuple[int, ...]:
    """`1,2,4`, each once."""
    if not re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*", text):
        raise argparse.ArgumentTypeError(f"expected whole numbers apart by commas, found `{text}`")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def _processes(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found `{text}`")
    return int(text)


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl coverage`: 0 where everything that counts is accepted, else 1."""
    from layoutdsl.coverage.families import families
    from layoutdsl.coverage.folder import folder
    from layoutdsl.coverage.heatmap import heat_map
    from layoutdsl.coverage.report import json_of, markdown_of, text_of
    from layoutdsl.coverage.table import covered
    from layoutdsl.show import svg

    params, specs = dict(args.param), tuple(map(str, args.specs))
    if args.models is None:
        asked = folder(args.folder, args.source, params, args.to or (), specs)
    elif args.source is None:
        raise LayoutError("--models needs the format of the weights", code="LP211", name="unknown-format",
                          help="--source names it, such as `--source gptq --param group=128`")  # fmt: skip
    else:
        asked = families(args.models, args.source, params, args.to or (), specs)
    counts = [(tp, ep) for ep in args.ep for tp in args.tp]
    found = covered(asked, counts, specs=specs, jobs=_jobs() if args.jobs is None else args.jobs)
    if args.svg:
        svg.write(args.svg, heat_map(found))
    print({"text": text_of, "json": json_of, "markdown": markdown_of}[args.format](found))
    return 0 if found.accepted == found.of > 0 else 1


def _jobs() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
