"""Which kernel a checkpoint's weights go to, where nobody names one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from layoutdsl import library, recodes
from layoutdsl.errors import LayoutError
from layoutdsl.model import Format, Kernel, ParamValue
from layoutdsl.resolve import Matrix, Side, bind, cheapest, groups_of, stored_group, tensors


def kernel_for(
    source: Format,
    params: Mapping[str, ParamValue],
    matrices: Sequence[Matrix],
    *,
    asked: Sequence[str] = (),
    stated: Mapping[str, ParamValue] | None = None,
    specs: tuple[str, ...] = (),
) -> str:
    """The first kernel, of those asked for or else of the shipped ones by name, that holds the source's kind of codes
    and scales and takes its groups; failing the latter, the first that holds its codes.

    A build of another kernel (`base`) is never taken unasked: nothing tells that it is the one installed.
    matrices: those of the module, whole. stated: parameters of the kernels. Raises LayoutError where no kernel holds
    the codes.
    """
    if len(asked) == 1:
        return asked[0]
    side, near = Side(source, dict(params), "whole"), ""
    for name, kernel in _kernels(asked, specs):
        try:
            _holds(kernel, side, matrices[0], stated or {})
        except LayoutError:
            continue
        near = near or name
        try:
            for matrix in matrices:
                groups_of(kernel, side, matrix, stored_group(side, matrix) or None)
        except LayoutError:
            continue
        return name
    if near:
        return near
    raise LayoutError(
        f"{'none of these kernels' if asked else 'no shipped kernel'} takes the codes of `{source.name}`",
        code="LP130",
        name="no-conversion",
        help="name a kernel of your own with --to and its folder with --specs",
    )


def _kernels(asked: Sequence[str], specs: tuple[str, ...]) -> Iterator[tuple[str, Kernel]]:
    for name in asked:
        kernel = library.load_spec(name, specs=specs, kind="kernel")
        assert isinstance(kernel, Kernel)
        yield name, kernel
    for path in () if asked else library.files():
        kernel = library.read_spec(path)
        if isinstance(kernel, Kernel) and kernel.base is None:
            yield kernel.name, kernel


def _holds(kernel: Kernel, side: Side, matrix: Matrix, stated: Mapping[str, ParamValue]) -> None:
    """LayoutError where the kernel's codes or scales are of another kind. Shapes are the planner's business."""
    params = bind(kernel, _accepted(kernel, {**side.params, **stated}))
    padded = cheapest(kernel, params, [matrix], [0], [0], False)[0].matrix
    source = {tensor.role: tensor for tensor in tensors(side, matrix)}
    target = {tensor.role: tensor for tensor in tensors(Side(kernel, params, "padded"), padded, 0)}
    recodes.for_codes(matrix.name, source["codes"], target["codes"], "zero_point" in source, False)
    if "scale" in source and "scale" in target:
        scale = recodes.for_scale(
            matrix.name, source["scale"], target["scale"], source.get("global_scale"), target.get("global_scale")
        )
        if "global_scale" in target:
            recodes.for_global(matrix.name, source.get("global_scale"), target["global_scale"], scale)
    elif "scale" in source or "scale" in target:
        raise LayoutError("one side has scales, the other has none")


def _accepted(kernel: Kernel, params: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
    """Those of the source's parameters that the kernel has and takes."""
    found: dict[str, ParamValue] = {}
    for name, value in params.items():
        if name in kernel.params:
            try:
                bind(kernel, {name: value})
                found[name] = value
            except LayoutError:
                continue
    return found
