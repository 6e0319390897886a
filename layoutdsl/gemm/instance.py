"""Kernels of `kernels/gemm`: each is one template, instantiated for the facts that it is compiled for.

    >>> Instance("u4b8", "f16", "group", 128, m=16, n=128, k=64).name
    'gemm_u4b8_f16_group128_m16n128k64d4s4'
"""

from __future__ import annotations

from dataclasses import dataclass

from layoutdsl.errors import LayoutError

_BITS = {"u4b8": 4, "u4": 4, "u8b128": 8, "u8": 8, "e4m3": 8, "e2m1": 4}
_ELEMENT = {"f16": 2, "bf16": 2, "s8": 1, "e4m3": 1}
_SCALE_BYTES = {"channel": 0, "group": 2, "e8m0": 1, "s0e5m3": 1}


@dataclass(frozen=True)
class Instance:
    """One kernel, as launchers take it.

    code         of the stored weights: u4b8, u4, u8b128, u8, e4m3, e2m1
    kind         what the tensor cores multiply: f16, bf16, s8, e4m3
    scale        channel; several groups of `group` inputs, as 16-bit floats (group) or bytes (e8m0, s0e5m3)
    m, n, k      what a block makes of C, and how many inputs it takes at a time
    depth        warps that share these inputs
    stages       so many times k inputs stand in shared memory
    rows         `dense`, or `experts`: rows sorted by expert
    result       type of C, and of 16-bit scales: f16 or bf16, by default the kind
    """

    code: str
    kind: str
    scale: str
    group: int = 0
    m: int = 16
    n: int = 128
    k: int = 64
    depth: int = 4
    stages: int = 4
    rows: str = "dense"
    result: str = ""

    def __post_init__(self) -> None:
        known = {"code": _BITS, "kind": _ELEMENT, "scale": _SCALE_BYTES, "rows": ("dense", "experts")}
        for field, names in known.items():
            if getattr(self, field) not in names:
                raise _no_kernel(f"`{field}` {getattr(self, field)!r}", f"it is one of {', '.join(names)}")
        least = 0 if self.scale == "channel" else 1
        if self.group < least:
            raise _no_kernel(f"groups of {self.group} inputs", "a scale of several inputs says of how many")
        if min(self.m, self.n, self.k, self.depth, self.stages) < 1:
            raise _no_kernel(f"a tile of {self.m} x {self.n} x {self.k}", "data/gemm.yaml has those that are used")

    @property
    def name(self) -> str:
        scale = f"{self.scale}{self.group}" if self.scale == "group" else self.scale
        tail = "" if self.rows == "dense" else f"_{self.rows}"
        kind = f"{self.kind}_{self.result}" if self.result else self.kind
        tile = f"m{self.m}n{self.n}k{self.k}d{self.depth}s{self.stages}"
        return f"gemm_{self.code}_{kind}_{scale}_{tile}{tail}"

    @property
    def threads(self) -> int:
        return self.n // 64 * self.depth * 32

    @property
    def shared(self) -> int:
        """Bytes of a block's shared memory: its stages, then in the same place sums of warps, then results."""
        groups = 0 if self.scale == "channel" else max(self.k // self.group, 1)
        zeros = self.n * _BITS[self.code] // 8 if self.code in ("u4", "u8") else 0
        stage = self.m * self.k * _ELEMENT[self.kind] + self.k * self.n * _BITS[self.code] // 8
        stage += groups * (self.n * _SCALE_BYTES[self.scale] + zeros)
        sums = self.depth // 2 * self.n * self.m * 4
        return max(self.stages * stage, sums, self.m * (self.n * 4 + 32))

    @property
    def source(self) -> str:
        facts = (
            f"Code::{self.code}, Operand::{self.kind}, Scale::{self.scale}, {self.group}, "
            f"{self.m}, {self.n}, {self.k}, {self.depth}, {self.stages}, Operand::{self.result or self.kind}"
        )
        more, rows = "", "Dense{rows}"
        if self.rows == "experts":
            more, rows = ", LD_EXPERT_PARAMETERS", "LD_EXPERT_ARGUMENTS"
        return (
            '#include "gemm/gemm.cuh"\n'
            "namespace ld {\n"
            f"using S = Shape<{facts}>;\n"
            f"static_assert(S::threads == {self.threads} && S::shared == {self.shared});\n"
            f"LD_KERNEL({self.name}, {self.threads}, 1)(LD_GEMM_PARAMETERS{more}) {{\n"
            f"    gemm<S>(LD_GEMM_ARGUMENTS, {rows});\n"
            "}\n"
            "}  // namespace ld\n"
        )


def _no_kernel(what: str, help: str) -> LayoutError:
    return LayoutError(f"there is no kernel with {what}", code="LP344", name="no-kernel", help=help)
