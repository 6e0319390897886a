"""A quantized Hugging Face checkpoint in, one folder of kernel tensors per rank out.

    report = convert("model", "model-tp2", tp=2)         # layoutdsl convert model model-tp2 --tp 2
    print(report)

writes model-tp2/rank-0 and rank-1, each with model.safetensors and the checkpoint's config.json. The metadata of the
file holds every plan (`layoutdsl.plan.DIGEST`) and which unit was made by which (`layoutdsl.units`).

Everything is checked before anything is written, and the output gets its name when it is whole. What a run has finished
that failed or was killed is kept beside it, and the same call goes on from there (journal.py). Refused are tensors
that no template names, missing ones, files that differ from config.json, and an output folder that is there already.
A job of several processes, one for each rank, can be run again as it is: what a rank has made already counts as done.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layoutdsl import files, flags
from layoutdsl.checkpoints.mesh import of_environment, only, told
from layoutdsl.collector import uncollected
from layoutdsl.errors import LayoutError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from layoutdsl.checkpoints.report import Report
    from layoutdsl.checkpoints.run import Conversion
    from layoutdsl.model import ParamValue
    from layoutdsl.plan import Lost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl convert`."""
    parser.add_argument("src", metavar="SRC", help="folder with config.json and safetensors files")
    parser.add_argument("dst", metavar="DST", help="folder to write, with a folder rank-R in it for each rank")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="number of tensor-parallel ranks (default: 1)")
    parser.add_argument("--ep", type=int, default=1, metavar="N", help="number of expert-parallel ranks (default: 1)")
    parser.add_argument(
        "--rank",
        type=flags.rank,
        metavar="R",
        help="write this rank alone, of tp times ep; `env`: the one that torchrun makes of this process",
    )
    parser.add_argument(
        "--to",
        action="append",
        metavar="KERNEL",
        help="kernel spec, by name or path; of several the first that takes a layer's codes (default: of the shipped)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16"),
        help="dtype of the activations that the kernel multiplies (default: the model's in config.json)",
    )
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        type=flags.param,
        metavar="NAME=VALUE",
        help="a parameter of the kernel, such as group=32",
    )
    parser.add_argument(
        "--experts-map",
        type=flags.numbers,
        default=(),
        metavar="E,E,...",
        help="the expert of each place that ranks have for one, where some experts have several; or a file with that",
    )
    parser.add_argument("--backend", default="torch", metavar="B", help="how plans are run (default: torch)")
    parser.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="convert on all machines of a Ray cluster; auto, the one that runs here; local, this machine alone "
        "(default: RAY_ADDRESS, else auto, else local)",
    )
    parser.add_argument("--restart", action="store_true", help="begin anew where an earlier run was stopped")
    parser.add_argument("--verify", action="store_true", help="verify the output before it gets its name")
    parser.add_argument("--dry-run", action="store_true", help="check and plan everything, write nothing")


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl convert` and print its report."""
    report = convert(
        args.src,
        args.dst,
        tp=args.tp,
        ep=args.ep,
        rank=of_environment(args.tp, args.ep) if args.rank == "env" else args.rank,
        to=args.to or (),
        dtype=args.dtype,
        params=flags.of_kernels(args.param),
        experts=args.experts_map,
        specs=args.specs,
        backend=args.backend,
        ray=args.ray,
        restart=args.restart,
        verify=args.verify,
        dry_run=args.dry_run,
    )
    print(report)
    return 0


@uncollected()
def convert(
    src: str | Path,
    dst: str | Path,
    *,
    tp: int | None = None,
    ep: int | None = None,
    rank: int | None = None,
    mesh: DeviceMesh | ProcessGroup | None = None,
    to: str | Sequence[str] = (),
    dtype: str | None = None,
    params: Mapping[str, ParamValue] | None = None,
    experts: Sequence[int] = (),
    specs: Sequence[str | Path] = (),
    backend: str = "torch",
    ray: str | None = None,
    restart: bool = False,
    verify: bool = False,
    dry_run: bool = False,
) -> Report:
    """Convert the checkpoint `src` for `tp` times `ep` ranks (default: 1 each), or for one of them, into `dst`.

    mesh: instead of these, the torch.distributed DeviceMesh or ProcessGroup that says which rank this process is, as
    `load` takes it: each process writes the folder of its own rank, and waits for no other. to: kernel specs; for each
    layer the first that takes its codes, of the shipped ones without. dtype: that of the activations, float16 or
    bfloat16; without, the model's in config.json. params: parameters of the kernels, such as {"group": 32}. experts:
    the expert of each place that ranks have for one, such as (0, 1, 2, 3, 0, 3), where some have several. specs:
    folders of the user's own specs and names. ray: the address of a Ray cluster whose machines all see `src` and `dst`,
    as ray.init takes it: "auto" is the one that runs here, "" whichever there is or else a new one of this machine
    alone. verify: hold every value of the output against the source before it gets its name. restart: begin anew, where
    an earlier run was stopped. dry_run: write nothing.

    A rank's folder that is there already counts as done where its config.json, and of its file the size and the header
    with all plans, are those that would be written, and none of the checkpoint's is newer; of its values only `verify`
    knows.

    Returns the report. Raises LayoutError that names file and tensor, what was expected and what was found; where
    something is finished by then, it says what is kept, else nothing is left behind.
    """
    from layoutdsl.checkpoints import publishing
    from layoutdsl.checkpoints.load import planned
    from layoutdsl.checkpoints.report import Report

    start = time.perf_counter()
    if mesh is None:
        tp, ep = (1 if count is None else count for count in (tp, ep))
    else:
        own = only(told(mesh, tp=tp, rank=rank, ep=ep))
        tp, ep, rank = own.tp, own.ep, own.number
    final = Path(dst) if rank is None else Path(dst) / f"rank-{rank}"
    there = rank is not None and os.path.isdir(final)  # an earlier run of the same job may have made it
    if not there:
        publishing.check_new(final)
    arguments: dict[str, Any] = {
        "model_dir": src,
        "target": to,
        "tp": tp,
        "rank": rank,
        "ep": ep,
        "dtype": dtype,
        "params": params,
        "experts": experts,
        "specs": specs,
        "backend": backend,
    }
    conversion = planned(**arguments)
    publishing.check_apart(conversion.folder.path, Path(dst))
    if not any(job.quantized for job in conversion.work.jobs):
        raise LayoutError(
            f"no layer of `{src}` is quantized",
            code="LP211",
            name="unknown-format",
            help="there is nothing to convert",
        )
    report = Report.of(str(src), str(dst), conversion)
    if there and _is_made(conversion, final):
        report.there = True
        publishing.forget(final)
    elif there:
        publishing.check_new(final)
    if ray is not None:
        report.peak, report.where = conversion.peak_of_one, " in each worker process"

    def held(folder: Path) -> str:
        from layoutdsl.checkpoints.verify import verify

        return str(verify(folder, against=src, specs=tuple(map(str, specs))))

    if not dry_run and report.there:
        report.verified = held(final) if verify else ""
    elif not dry_run:
        from layoutdsl.checkpoints import storing

        with _writing(ray, arguments) as write, publishing.published(final, restart=restart) as folder:
            place = folder / publishing.OUT
            homes = storing.homes(conversion.planner, place, alone=rank is not None)
            publishing.check_only(place, homes)
            report.lost = write(conversion, folder, homes)
            report.verified = held(place) if verify else ""
        report.written = True
    report.seconds = time.perf_counter() - start
    return report


def _is_made(conversion: Conversion, home: Path) -> bool:
    """Whether the folder of the one rank is what the conversion makes, but for the values of tensors."""
    from layoutdsl.checkpoints.run import CONFIG, files_of

    (writer,), _ = files_of(conversion, [home])
    try:
        with files.opened(writer.path) as file:
            seen = os.fstat(file.fileno())
            same = seen.st_size == writer.size and file.read(len(writer.head)) == writer.head
        weights = [state for name, state in conversion.files.items() if name.endswith(".safetensors")]
        newer = all(max(changed, placed) <= seen.st_mtime_ns for _, changed, placed in weights)
        with files.opened(home / CONFIG) as file:
            config = file.read() == (conversion.folder.path / CONFIG).read_bytes()
        return same and newer and config and len(list(home.iterdir())) == 2 and not home.is_symlink()
    except OSError:
        return False


@contextmanager
def _writing(ray: str | None, arguments: Mapping[str, Any]) -> Iterator[Callable[..., dict[str, list[Lost]]]]:
    """`run.write`, by this process or by the machines of a cluster."""
    from layoutdsl.checkpoints.run import write

    if ray is None:
        yield write
        return
    from layoutdsl.checkpoints.ray import carry_out, connected

    with connected(ray):
        yield partial(write, carry_out=partial(carry_out, arguments))
