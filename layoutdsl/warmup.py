"""Kernels of the backend `cuda` compiled before they are needed: `layoutdsl warmup`, with or without a GPU.

    layoutdsl warmup --arch sm_90a                               from every checkpoint format to every kernel
    layoutdsl warmup gptq marlin_int4_a16 --arch sm_80 --arch sm_120a
    layoutdsl warmup gptq marlin_int4_a16 --gemm --param dtype=bfloat16 --param group=128 --arch sm_90a

Kernels say nothing of sizes, but small or odd ones call for others than large ones: a pair is warmed at its target's
sizes to try and at larger ones. With --gemm also what MarlinLinear and MarlinMoE launch: a kernel for each tile of the
table and each dtype, group and kind of code. What else a plan needs is compiled when it first runs. Needs NVRTC, and
neither a driver nor a GPU.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from layoutdsl import flags
from layoutdsl.compile import compile_plan
from layoutdsl.errors import LayoutError
from layoutdsl.library import files, load_spec
from layoutdsl.model import Format, ParamValue

if TYPE_CHECKING:
    from layoutdsl.backends.cuda.compile import Cubin
    from layoutdsl.backends.repack.lower import Kernel
    from layoutdsl.plan import Plan

Pair = tuple[Format, Format]
Params = Mapping[str, ParamValue]

_NONE: Params = {}

LARGE = 1024
"""Inputs and outputs of a layer that is moved in whole tiles throughout, as most layers of models are."""

CHOSEN = ("bits", "act_order")
"""Parameters of a source of which every value is warmed; the others are as the target's `try` says, or as default."""

OF_GEMMS = ("bits", "zero_points", "dtype")
"""The same for GEMMs, beside groups."""

GROUPS = (-1, 16, 32, 64, 128)
"""Inputs that share a scale, which a GEMM may read: ranks may have finer groups than the checkpoint."""

MODULES = {
    "linear": {"n": LARGE, "k": LARGE},
    "moe_gated": {"e": 2, "i": LARGE, "h": LARGE},
    "moe_plain": {"e": 2, "i": LARGE, "h": LARGE},
}
"""What GEMMs are warmed for, at sizes with several groups of every length."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `layoutdsl warmup`."""
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=(
        "source and target, two and two: specs' names or paths (default: every checkpoint format to every kernel)"))
    parser.add_argument("--arch", action="append", metavar="SM", help=(
        "GPUs to compile for, such as sm_80, sm_90a or sm_120a; may be repeated (default: those of this machine)"))
    parser.add_argument("--gemm", action="store_true", help=(
        "compile GEMMs and what stands between those of experts as well: up to some hundred kernels for a pair"))
    parser.add_argument("--param", action="append", default=[], type=flags.param, metavar="NAME=VALUE", help=(
        "only kernels for this value of a parameter of the formats, such as group=128; may be repeated"))


def command(args: argparse.Namespace) -> int:
    """Run `layoutdsl warmup` and print what it did."""
    from layoutdsl import backends

    start, specs = time.perf_counter(), tuple(map(str, args.specs))
    backends.load("cuda")  # says what is not installed
    archs, asked = _archs(args.arch), _asked(args.formats, specs, dict(args.param))
    kernels = {one for pair, given in asked for plan in plans(pair, specs, given) for one in kernels_of(plan)}
    jobs = set(product(kernels, archs))
    if args.gemm:
        gemms = {one for pair, given in asked for one in gemms_of(pair, specs, given)}
        jobs |= {(one, arch) for one, arch in product(gemms, archs) if _multiplies(arch, one, bool(args.formats))}
    done = compile_all(jobs)
    size, cached = sum(len(cubin.code) for cubin in done), sum(cubin.cached for cubin in done)
    print(f"{len({one for one, _ in jobs})} kernels for {', '.join(archs)}, {size / 1e3:.1f} kB: "
          f"{len(done) - cached} compiled, {cached} were in the cache, {time.perf_counter() - start:.2f} s")
    return 0


def plans(pair: Pair, specs: Sequence[str] = (), given: Params = _NONE) -> Iterator[Plan]:
    """The plans of a pair that are warmed, of one matrix and of experts; empty where there is none."""
    source, target = pair
    values = {f"source.{name}": _values(source, name) for name in CHOSEN if name in source.params}
    for chosen in _each(values, given):
        for module, sizes, stated in (layer for entry in target.try_ for layer in _layers(entry)):
            try:
                yield compile_plan(source, target, module, sizes, params={**stated, **chosen}, specs=specs)
            except LayoutError as error:  # not every parameter goes with every other
                if error.diagnostics[0].name == "unknown-parameter":
                    raise
                if error.diagnostics[0].name == "no-conversion":  # nor do others help codes of another kind
                    break


def gemms_of(pair: Pair, specs: Sequence[str] = (), given: Params = _NONE) -> Iterator[Any]:
    """Every kernel that products may launch on what plans of a pair make. LayoutError where no GEMM reads that."""
    from layoutdsl.gemm import needed

    if next(plans(pair, specs, given), None) is None:
        return
    source, target = pair
    values = {name: _values(side, name) for side in pair for name in OF_GEMMS if name in side.params}
    if any("group" in side.params for side in pair):
        values["group"] = GROUPS
    for chosen, (module, sizes) in product(_each(values, given), MODULES.items()):
        try:
            plan = compile_plan(source, target, module, sizes, params=chosen, specs=specs)
        except LayoutError:  # as above
            continue
        yield from needed.kernels(plan, tuple(specs))


def _values(spec: Format, name: str) -> tuple[ParamValue, ...]:
    return spec.params[name].values or (False, True)


def _each(values: Mapping[str, Sequence[ParamValue]], given: Params) -> Iterator[dict[str, ParamValue]]:
    """Each value with each other, but of parameters that are given."""
    stated = {name.rpartition(".")[2] for name in given}
    free = {name: each for name, each in values.items() if name.rpartition(".")[2] not in stated}
    for chosen in product(*free.values()):
        yield {**dict(zip(free, chosen)), **given}


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


def compile_all(jobs: Collection[tuple[Kernel, str]]) -> list[Cubin]:
    """Kernels, each for its arch, on all cores: NVRTC works beside itself in threads."""
    from layoutdsl.backends.cuda import compile as cuda_compile

    cuda_compile.check_cache()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(cuda_compile.compiled, *zip(*jobs)))
    if lost := sum(not cubin.kept for cubin in done):
        raise LayoutError(
            f"{lost} of {len(done)} compiled kernels could not be kept in {cuda_compile.folder()}",
            code="LP331",
            name="cache-not-writable",
            help="make room on its disk, or let XDG_CACHE_HOME name a folder on another one",
        )
    return done


def _multiplies(arch: str, kernel: Any, named: bool) -> bool:
    """Whether GPUs of that arch do; LayoutError where its format was named and they do not."""
    from layoutdsl.gemm import needed

    try:
        needed.check_arch(kernel, arch)
    except LayoutError:
        if named:
            raise
        return False
    return True


def _archs(named: Sequence[str] | None) -> tuple[str, ...]:
    from layoutdsl.backends.cuda import toolkit

    archs = tuple(dict.fromkeys(named or _here()))
    for arch in archs:
        toolkit.check_arch(arch)
    return archs


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


def _asked(names: Sequence[str], specs: tuple[str, ...], given: Params) -> list[tuple[Pair, Params]]:
    """The pairs that are named, each of which has to have a plan with these parameters; or all shipped checkpoint
    formats and kernels, with those of the parameters that a pair has."""
    if len(names) % 2:
        raise LayoutError(
            f"`{names[-1]}` has no target: formats are given two and two",
            code="LP333",
            name="half-a-pair",
            help="layoutdsl warmup gptq marlin_int4_a16",
        )
    if not names:
        known = {kind: [cast(Format, load_spec(str(path))) for path in files() if path.parent.name == kind]
                 for kind in ("checkpoint", "kernel")}
        pairs = product(known["checkpoint"], known["kernel"])
        return [(pair, {name: given[name] for name in given if any(name in side.params for side in pair)})
                for pair in pairs]
    found = [cast(Format, load_spec(name, specs=specs, kind="checkpoint|kernel")) for name in names]
    pairs = list(zip(found[::2], found[1::2]))
    for source, target in pairs:
        if next(plans((source, target), specs, given), None) is None:
            raise LayoutError(
                f"`{source.name}` is not converted to `{target.name}` at any of its sizes to try",
                code="LP334",
                name="no-plan",
                help=f"layoutdsl plan {source.name} {target.name} --module linear ... says why",
            )
    return [(pair, given) for pair in pairs]
