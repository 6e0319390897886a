"""A quantized Hugging Face checkpoint in, one folder of kernel tensors per tensor-parallel rank out.

    report = convert("model", "model-tp2", tp=2)         # layoutdsl convert model model-tp2 --tp 2
    print(report)

writes model-tp2/rank-0 and rank-1, each with model.safetensors and the checkpoint's config.json. The file's metadata holds
every plan (`layoutdsl.plan.DIGEST`) and which unit was made by which (`layoutdsl.units`).

Everything is checked before anything is written, and the output gets its name when it is whole. Refused are tensors that
no template names, missing ones, files that differ from config.json, and an output folder that is there already.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    import torch

    from layoutdsl.convert.binding import Job, Work
    from layoutdsl.convert.checkpoint import Entry, Folder
    from layoutdsl.convert.planning import Planner
    from layoutdsl.convert.report import Checked, Progress, Report, Row
    from layoutdsl.convert.writing import Writer
    from layoutdsl.plan import Plan

FILE = "model.safetensors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl convert`."""
    parser.add_argument("src", metavar="SRC", help="folder with config.json and safetensors files")
    parser.add_argument("dst", metavar="DST", help="folder to write, with a folder rank-R in it for each rank")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="number of tensor-parallel ranks (default: 1)")
    parser.add_argument("--rank", type=int, metavar="R", help="write this rank alone")
    parser.add_argument("--to", metavar="KERNEL", help="kernel spec, by name or path (default: chosen by the codes)")
    parser.add_argument("--specs", action="append", metavar="DIR", help="a folder of your own specs, searched first; may be repeated")
    parser.add_argument("--backend", default="torch", metavar="B", help="how plans are run (default: torch)")
    parser.add_argument("--check", action="store_true", help="read the output again, convert it back and compare with the source")
    parser.add_argument("--dry-run", action="store_true", help="check and plan everything, write nothing")


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl convert` and print its report."""
    print(convert(args.src, args.dst, tp=args.tp, rank=args.rank, to=args.to, specs=tuple(args.specs or ()),
                  backend=args.backend, check=args.check, dry_run=args.dry_run))
    return 0


def convert(
    src: str | Path, dst: str | Path, *, tp: int, rank: int | None = None, to: str | None = None,
    specs: Sequence[str] = (), backend: str = "torch", check: bool = False, dry_run: bool = False,
) -> Report:
    """Convert the checkpoint `src` for `tp` ranks, or for one of them, into `dst`.

    to: a kernel spec; without it the first shipped one that takes the codes. specs: folders of the user's own specs and
    names. check: read the output again and compare the way back with the source. dry_run: write nothing.

    Returns the report. Raises LayoutError with file, tensor, what was expected and what was found; nothing is left behind.
    """
    from layoutdsl.convert import binding, checkpoint, names, quantization
    from layoutdsl.convert.planning import Planner
    from layoutdsl.convert.writing import published

    start = time.perf_counter()
    folders = tuple(map(str, specs))
    ranks = _ranks(tp, rank)
    folder = checkpoint.read_folder(Path(src))
    declared = quantization.declared(folder.config, folders)
    architecture = _architecture(folder.config)
    work = binding.bound(folder, declared, names.for_architecture(architecture, folders), architecture, folders)
    planner = Planner(declared.spec, declared.path, tp, ranks, to, folders)
    plans = [planner.plans(job) for job in work.jobs]
    report = _report(src, dst, str(declared), work, planner, plans, dry_run)
    if not dry_run:
        final = Path(dst) if rank is None else Path(dst) / f"rank-{rank}"
        with published(final) as place:
            homes = {r: place if rank is not None else place / f"rank-{r}" for r in ranks}
            _write(folder, work, plans, planner, homes, report, backend)
            if check:
                report.checked = _checked(folder, work, plans, planner, homes, backend)
    report.seconds = time.perf_counter() - start
    return report


def _ranks(tp: int, rank: int | None) -> tuple[int, ...]:
    if tp < 1 or (rank is not None and not 0 <= rank < tp):
        raise LayoutError(f"rank {rank or 0} of {tp} tp ranks does not exist", code="LP110", name="ranks",
                          help=f"ranks count from 0 to {max(tp, 1) - 1}")
    return tuple(range(tp)) if rank is None else (rank,)


def _architecture(config: Mapping[str, Any]) -> str:
    stated = config.get("architectures")
    if not isinstance(stated, list) or len(stated) != 1 or not isinstance(stated[0], str):
        raise LayoutError("config.json states no single architecture", code="LP215", name="bad-config",
                          help='it needs an entry such as "architectures": ["LlamaForCausalLM"]')
    return stated[0]


def _report(
    src: str | Path, dst: str | Path, fmt: str, work: Work, planner: Planner, plans: Sequence[tuple[Plan, ...]], dry_run: bool
) -> Report:
    from layoutdsl.convert.report import Report, size_of

    rows = list(_rows(work, plans))
    kernels = ", ".join(dict.fromkeys(row.plans[0].target.spec for row in rows))
    chosen = f"to {kernels}" + ("" if planner.to else ", the first shipped kernel by name that takes these codes; --to names another")
    units = [sum(entry.size for entry in job.inputs.values()) + max(map(size_of, p)) for job, p in zip(work.jobs, plans, strict=True)]
    peak = max([*units, *(entry.size for entry in work.copies)])
    copied = sum(entry.size for entry in work.copies)
    return Report(str(src), str(dst), fmt, planner.ranks, planner.tp, chosen, rows, len(work.copies), copied, work.unquantized,
                  dry_run, peak)


def _rows(work: Work, plans: Sequence[tuple[Plan, ...]]) -> Iterator[Row]:
    from layoutdsl.convert.report import Row

    rows: dict[tuple, Row] = {}
    for job, ranks in zip(work.jobs, plans, strict=True):
        row = rows.setdefault((job.unit.key, id(ranks)), Row(ranks))
        row.units.append(job.unit)
    return iter(rows.values())


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(
    folder: Folder, work: Work, plans: Sequence[tuple[Plan, ...]], planner: Planner, homes: Mapping[int, Path],
    report: Report, backend: str,
) -> None:
    from layoutdsl.convert.planning import within
    from layoutdsl.convert.report import Progress
    from layoutdsl.convert.writing import sync

    rows = {(unit.key, unit.at): row for row in report.rows for unit in row.units}
    progress = Progress(sum(entry.size for entry in _entries(work)))
    with ExitStack() as stack:
        stack.callback(progress.close)
        writers = []
        for at, home in enumerate(homes.values()):
            home.mkdir(exist_ok=True)
            writers.append(_writer(home, work, plans, planner, at))
            stack.callback(writers[-1].abandon)
        for job, ranks in zip(work.jobs, plans, strict=True):
            given = _read(folder, job.inputs, progress, job.unit.name)
            begin = time.perf_counter()
            for plan, writer in zip(ranks, writers, strict=True):
                try:
                    made = plan.run(given, backend=backend)
                except LayoutError as error:
                    raise within(job, error) from None
                for name, tensor in made.items():
                    writer.write(output_name(job, plan, name), tensor)
            rows[job.unit.key, job.unit.at].seconds += time.perf_counter() - begin
        for entry in work.copies:
            tensor = folder.read(entry.name)
            for writer in writers:
                writer.write(entry.name, tensor)
            progress.step(entry.size, entry.name)
        for writer, home in zip(writers, homes.values(), strict=True):
            writer.close()
            shutil.copyfile(folder.path / "config.json", home / "config.json")
            sync(home / "config.json")
            sync(home)


def output_name(job: Job, plan: Plan, name: str) -> str:
    """Name in the output of a plan's tensor: `linear.weight` of layer 0's qkv is `model.layers.0....qkv_proj.weight`."""
    matrix = plan.extents[0].matrix
    return job.unit.output(name.removeprefix(matrix + "."))


def _writer(home: Path, work: Work, plans: Sequence[tuple[Plan, ...]], planner: Planner, at: int) -> Writer:
    from layoutdsl import __version__
    from layoutdsl.convert.planning import distinct
    from layoutdsl.convert.writing import Writer

    described = {entry.name: (entry.dtype, entry.shape) for entry in work.copies}
    units: dict[str, str] = {}
    for job, ranks in zip(work.jobs, plans, strict=True):
        units[job.unit.name] = ranks[at].digest[:12]
        for info in ranks[at].outputs:
            name = output_name(job, ranks[at], info.name)
            if name in described:
                raise LayoutError(f"two tensors of the output have the name `{name}`", code="LP214", name="unknown-architecture",
                                  help="correct the output names of the names' templates")
            described[name] = info.dtypes[0], info.full_shape
    metadata = {"format": "pt", "layoutdsl.version": __version__, "layoutdsl.tp": str(planner.tp),
                "layoutdsl.rank": str(planner.ranks[at]), "layoutdsl.units": json.dumps(units)}
    metadata.update({f"layoutdsl.plan.{digest}": plan.to_json() for digest, plan in distinct(plans, at).items()})
    return Writer(home / FILE, described, metadata)


def _entries(work: Work) -> Iterator[Entry]:
    for job in work.jobs:
        yield from job.inputs.values()
    yield from work.copies


def _read(folder: Folder, inputs: Mapping[str, Entry], progress: Progress, name: str) -> dict[str, torch.Tensor]:
    given: dict[str, torch.Tensor] = {}
    for key, entry in inputs.items():
        given[key] = folder.read(entry.name)
        progress.step(entry.size, name)
    return given


# --- checking ---------------------------------------------------------------------------------------------------------


def _checked(
    folder: Folder, work: Work, plans: Sequence[tuple[Plan, ...]], planner: Planner, homes: Mapping[int, Path], backend: str
) -> Checked:
    """Read what was written, take it back through the inverse plans, and compare with the ranks' slices of the source."""
    from layoutdsl.convert.checkpoint import read_header, read_tensor
    from layoutdsl.convert.report import Checked, Progress

    checked = Checked()
    headers = [read_header(home / FILE)[0] for home in homes.values()]
    progress = Progress(sum(entry.size for entry in _entries(work)))
    try:
        for job, ranks in zip(work.jobs, plans, strict=True):
            if why := next(filter(None, map(_no_way_back, ranks)), None):
                checked.left_out[job.unit.name] = why
                continue
            given = _read(folder, job.inputs, progress, f"checking {job.unit.name}")
            for plan, header in zip(ranks, headers, strict=True):
                _compare(job, plan, planner, given, lambda name, header=header: read_tensor(header[name]), backend, checked)
        for entry in work.copies:
            _same(entry.name, [(folder.read(entry.name), read_tensor(header[entry.name])) for header in headers])
            checked.tensors += len(headers)
            progress.step(entry.size, entry.name)
    finally:
        progress.close()
    return checked


def _no_way_back(plan: Plan) -> str | None:
    """Why the bytes of the source cannot come back, where they cannot."""
    if plan.losses:
        return "lossy: " + plan.losses[0][1].partition(":")[0]
    if any(move.gather_k or move.gather_n for program in plan.programs for move in program.moves):
        return "act-order: the output is sorted by group"
    if plan.passed:
        return f"`{plan.passed[0][0]}` passes through"
    return None


def _compare(
    job: Job, plan: Plan, planner: Planner, given: Mapping[str, torch.Tensor], read: Callable[[str], torch.Tensor],
    backend: str, checked: Checked,
) -> None:
    inverse, own = planner.back(job, plan)
    back = inverse.run({info.name: read(output_name(job, plan, info.name)) for info in plan.outputs}, backend=backend)
    slices = own.run(given, backend=backend)
    assert set(back) == set(slices), (sorted(back), sorted(slices))
    for name, tensor in back.items():
        _same(f"{job.unit.name}, rank {plan.ranks.rank}, {name}", [(slices[name], tensor)])
        info = inverse.output[name]
        checked.tensors += 1
        checked.values += info.codes * max(info.experts, 1) if info.role == "codes" else 0


def _same(name: str, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    import torch

    for wanted, found in pairs:
        a, b = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (wanted, found))
        if wanted.dtype != found.dtype or not torch.equal(a, b):
            raise LayoutError(f"check failed: `{name}` read back differs from the source", code="LP221", name="check-failed",
                              help="nothing was kept; this is a fault of layoutdsl or of the disk")
