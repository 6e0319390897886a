"""Kernels of the backend `cuda` compiled before they are needed: `layoutdsl warmup`, with or without a GPU.

    layoutdsl warmup --arch sm_90a                               from every checkpoint format to every kernel
    layoutdsl warmup gptq marlin_int4_a16 --arch sm_80 --arch sm_120a

Kernels say nothing of sizes, but small or odd ones call for others than large ones: a pair is warmed at its target's
sizes to try and at larger ones. What else a plan needs is compiled when it first runs. Needs NVRTC, and neither a
driver nor a GPU.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from layoutdsl.compile import compile_plan
from layoutdsl.errors import LayoutError
from layoutdsl.library import files, load_spec
from layoutdsl.model import Format, ParamValue

if TYPE_CHECKING:
    from layoutdsl.backends.cuda.compile import Cubin
    from layoutdsl.backends.repack.lower import Kernel
    from layoutdsl.plan import Plan

Pair = tuple[Format, Format]

LARGE = 1024
"""Inputs and outputs of a layer that is moved in whole tiles throughout, as most layers of models are."""

CHOSEN = ("bits", "act_order")
"""Parameters of a source of which every value is warmed; the others are as the target's `try` says, or as default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl warmup`."""
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=(
        "source and target, two and two: specs' names or paths (default: every checkpoint format to every kernel)"))
    parser.add_argument("--arch", action="append", metavar="SM", help=(
        "GPUs to compile for, such as sm_80, sm_90a or sm_120a; may be repeated (default: those of this machine)"))


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl warmup` and print what it did."""
    from layoutdsl import backends

    start, specs = time.perf_counter(), tuple(map(str, args.specs))
    backends.load("cuda")  # says what is not installed
    archs = tuple(dict.fromkeys(args.arch or _here()))
    kernels = {one for pair in _pairs(args.formats, specs) for plan in plans(pair, specs) for one in kernels_of(plan)}
    done = compile_all(kernels, archs)
    size, cached = sum(len(cubin.code) for cubin in done), sum(cubin.cached for cubin in done)
    print(f"{len(kernels)} kernels for {', '.join(archs)}, {size / 1e3:.1f} kB: {len(done) - cached} compiled, "
          f"{cached} were in the cache, {time.perf_counter() - start:.2f} s")
    return 0


def plans(pair: Pair, specs: Sequence[str] = ()) -> Iterator[Plan]:
    """The plans of a pair that are warmed, of one matrix and of experts; empty where there is none."""
    source, target = pair
    values = [source.params[name].values or (False, True) for name in CHOSEN if name in source.params]
    names = [f"source.{name}" for name in CHOSEN if name in source.params]
    for chosen in product(*values):
        for module, sizes, stated in (layer for entry in target.try_ for layer in _layers(entry)):
            params = {**stated, **dict(zip(names, chosen))}
            try:
                yield compile_plan(source, target, module, sizes, params=params, specs=specs)
            except LayoutError as error:  # not every parameter goes with every other
                if error.diagnostics[0].name == "no-conversion":  # nor do others help codes of another kind
                    break


def _layers(entry: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, int], dict[str, ParamValue]]]:
    """Module, sizes and parameters of a line of a spec's `try`: as it is, as experts, and large."""
    n, k = entry["n"], entry["k"]
    params = {name: value for name, value in entry.items() if name not in ("n", "k")}
    yield "linear", {"n": n, "k": k}, params
    yield "moe_gated", {"e": 2, "i": n, "h": k}, params
    yield "linear", {"n": LARGE, "k": LARGE}, params


def kernels_of(plan: Plan) -> Iterator[Kernel]:
    """Every kernel that a plan launches."""
    from layoutdsl.backends.repack import numbers, source

    yield numbers.numbers_kernel()
    yield from source.kernels(plan)


def compile_all(kernels: Iterable[Kernel], archs: Sequence[str]) -> list[Cubin]:
    """Each kernel for each arch, on all cores: NVRTC works beside itself in threads."""
    from layoutdsl.backends.cuda import compile as cuda_compile
    from layoutdsl.backends.cuda import toolkit

    cuda_compile.check_cache()
    for arch in archs:
        toolkit.check_arch(arch)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(cuda_compile.compiled, *zip(*product(kernels, archs))))
    if lost := sum(not cubin.kept for cubin in done):
        raise LayoutError(
            f"{lost} of {len(done)} compiled kernels could not be kept in {cuda_compile.folder()}",
            code="LP331",
            name="cache-not-writable",
            help="make room on its disk, or let XDG_CACHE_HOME name a folder on another one",
        )
    return done


def _here() -> list[str]:
    from layoutdsl.backends.cuda import toolkit

    try:
        return [gpu.arch for gpu in toolkit.gpus()]
    except LayoutError as error:
        raise LayoutError(
            f"{error.message}, so that no arch is known to compile for",
            code="LP332",
            name="no-arch",
            help="name one: --arch sm_90a",
        ) from None


def _pairs(names: Sequence[str], specs: tuple[str, ...]) -> list[Pair]:
    """Those that are named, each of which has to have a plan, or all shipped checkpoint formats and kernels."""
    if len(names) % 2:
        raise LayoutError(
            f"`{names[-1]}` has no target: formats are given two and two",
            code="LP333",
            name="half-a-pair",
            help="layoutdsl warmup gptq marlin_int4_a16",
        )
    if not names:
        known = {kind: [load_spec(str(path)) for path in files() if path.parent.name == kind]
                 for kind in ("checkpoint", "kernel")}
        return cast(list[Pair], list(product(known["checkpoint"], known["kernel"])))
    found = [cast(Format, load_spec(name, specs=specs, kind="checkpoint|kernel")) for name in names]
    pairs = list(zip(found[::2], found[1::2]))
    for source, target in pairs:
        if next(plans((source, target), specs), None) is None:
            raise LayoutError(
                f"`{source.name}` is not converted to `{target.name}` at any of its sizes to try",
                code="LP334",
                name="no-plan",
                help=f"layoutdsl plan {source.name} {target.name} --module linear ... says why",
            )
    return pairs
