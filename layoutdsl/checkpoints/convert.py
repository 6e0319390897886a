"""A quantized Hugging Face checkpoint in, one folder of kernel tensors per tensor-parallel rank out.

    report = convert("model", "model-tp2", tp=2)         # layoutdsl convert model model-tp2 --tp 2
    print(report)

writes model-tp2/rank-0 and rank-1, each with model.safetensors and the checkpoint's config.json. The metadata of the
file holds every plan (`layoutdsl.plan.DIGEST`) and which unit was made by which (`layoutdsl.units`).

Everything is checked before anything is written, and the output gets its name when it is whole. Refused are tensors
that no template names, missing ones, files that differ from config.json, and an output folder that is there already.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    from layoutdsl.checkpoints.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl convert`."""
    parser.add_argument("src", metavar="SRC", help="folder with config.json and safetensors files")
    parser.add_argument("dst", metavar="DST", help="folder to write, with a folder rank-R in it for each rank")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="number of tensor-parallel ranks (default: 1)")
    parser.add_argument("--rank", type=int, metavar="R", help="write this rank alone")
    parser.add_argument("--to", metavar="KERNEL", help="kernel spec, by name or path (default: chosen by the codes)")
    parser.add_argument("--backend", default="torch", metavar="B", help="how plans are run (default: torch)")
    parser.add_argument(
        "--check", action="store_true", help="read the output, convert it back, compare with the source"
    )
    parser.add_argument("--dry-run", action="store_true", help="check and plan everything, write nothing")


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl convert` and print its report."""
    report = convert(
        args.src,
        args.dst,
        tp=args.tp,
        rank=args.rank,
        to=args.to,
        specs=args.specs,
        backend=args.backend,
        check=args.check,
        dry_run=args.dry_run,
    )
    print(report)
    return 0


def convert(
    src: str | Path,
    dst: str | Path,
    *,
    tp: int,
    rank: int | None = None,
    to: str | None = None,
    specs: Sequence[str | Path] = (),
    backend: str = "torch",
    check: bool = False,
    dry_run: bool = False,
) -> Report:
    """Convert the checkpoint `src` for `tp` ranks, or for one of them, into `dst`.

    to: a kernel spec; without it the first shipped one that takes the codes. specs: folders of the user's own specs
    and names. check: read the output and compare the way back with the source. dry_run: write nothing.

    Returns the report. Raises LayoutError that names file and tensor, what was expected and what was found; nothing is
    left behind.
    """
    from layoutdsl.checkpoints import binding, names, quantization
    from layoutdsl.checkpoints.folder import read_folder
    from layoutdsl.checkpoints.planning import Planner
    from layoutdsl.checkpoints.report import Report
    from layoutdsl.library import load_spec

    start = time.perf_counter()
    folders = tuple(map(str, specs))
    ranks = _ranks(tp, rank)
    if to is not None:
        load_spec(to, specs=folders, kind="kernel")
    folder = read_folder(Path(src))
    declared = quantization.declared(folder.config, folders)
    architecture = _architecture(folder.config)
    work = binding.bound(folder, declared, names.for_architecture(architecture, folders), architecture, folders)
    planner = Planner(declared.spec, declared.path, tp, ranks, to, folders)
    plans = tuple(planner.plans(job) for job in work.jobs)
    report = Report.of(str(src), str(dst), str(declared), work, planner, plans)
    if not dry_run:
        from layoutdsl.checkpoints import run, writing

        conversion = run.Conversion(folder, work, planner, plans, backend)
        with writing.published(Path(dst) if rank is None else Path(dst) / f"rank-{rank}") as place:
            homes = {r: place if rank is not None else place / f"rank-{r}" for r in ranks}
            run.write(conversion, homes, report.row_of())
            report.checked = run.check(conversion, homes) if check else None
        report.written = True
    report.seconds = time.perf_counter() - start
    return report


def _ranks(tp: int, rank: int | None) -> tuple[int, ...]:
    if tp < 1 or (rank is not None and not 0 <= rank < tp):
        raise LayoutError(
            f"rank {rank or 0} of {tp} tp ranks does not exist",
            code="LP110",
            name="ranks",
            help=f"ranks count from 0 to {max(tp, 1) - 1}",
        )
    return tuple(range(tp)) if rank is None else (rank,)


def _architecture(config: Mapping[str, Any]) -> str:
    stated = config.get("architectures")
    if not isinstance(stated, list) or len(stated) != 1 or not isinstance(stated[0], str):
        raise LayoutError(
            "config.json states no single architecture",
            code="LP215",
            name="bad-config",
            help='it needs an entry such as "architectures": ["LlamaForCausalLM"]',
        )
    return stated[0]
