"""Recorded cases: inputs and outputs of another engine, and the tables of its rules, held against ours byte for byte.

A folder of cases has index.json (the cases, one line each with file and sha256), a safetensors file per case (in.*,
out.*) and policy.json. What is peculiar to a case's naming stands in data/conform.yaml, not here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from layoutdsl import peer, source
from layoutdsl.compile import compile_plan
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.library import load_spec
from layoutdsl.plan import Plan


@dataclass(frozen=True)
class Outcome:
    """One case, or one row of a policy table: its name, and what is wrong with it (None: nothing)."""

    name: str
    wrong: str | None


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return source.read_file(Path(__file__).resolve().parent / "data" / "conform.yaml").data


def index(folder: Path) -> dict[str, Any]:
    """The index of a folder of cases; LayoutError where it is missing or no index."""
    return _json(folder / "index.json", dict)


def _json(path: Path, kind: type) -> Any:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise LayoutError(
            f"`{path}` cannot be read",
            code="LP180",
            name="no-cases",
            help="give a folder with index.json, policy.json and the cases' files",
        ) from None
    except ValueError as error:
        raise LayoutError(f"`{path}` is no JSON: {error}", code="LP180", name="no-cases") from None
    if not isinstance(data, kind):
        raise LayoutError(f"`{path}` holds no {kind.__name__}", code="LP180", name="no-cases")
    return data


def cases(folder: Path, *, backend: str = "torch", specs: Sequence[str] = ()) -> Iterator[Outcome]:
    """Run every case of the folder's index. LayoutError where the backend does not work on this machine."""
    from layoutdsl import backends

    backends.device(backend)
    found = index(folder).get("cases")
    if not isinstance(found, list):
        raise LayoutError(f"`{folder / 'index.json'}` lists no cases", code="LP180", name="no-cases")
    for at, case in enumerate(found):
        name = str(case.get("id", f"case {at}")) if isinstance(case, dict) else f"case {at}"
        try:
            yield Outcome(name, _wrong(folder, _valid(case), backend, specs))
        except LayoutError as error:
            yield Outcome(name, error.message)


class Case(BaseModel):
    """What a case must state; what else it says is left alone."""

    model_config = ConfigDict(extra="allow", strict=True)
    kind: str
    format: str
    target: str
    param_dtype: str
    file: str
    sha256: str
    group: int = -1
    padded: dict[str, int]
    tensors: dict[str, Any]
    shards: int | list[int] | None = None
    block: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    N: int | None = None
    K: int | None = None
    E: int | None = None
    I: int | None = None  # noqa: E741 - the cases' own names
    H: int | None = None
    K_full: int | None = None
    ranks: int = 1


def _valid(case: Any) -> dict[str, Any]:
    try:
        return Case.model_validate(case).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the case"
        raise LayoutError(f"`{place}` of the case: {first['msg'].lower()}", code="LP181", name="bad-case") from None


def _wrong(folder: Path, case: Mapping[str, Any], backend: str, specs: Sequence[str]) -> str | None:
    import torch

    from layoutdsl import backends

    tensors, device = read(folder, case), backends.device(backend)
    plan = compiled(case, tensors, specs)
    names = _names(case, tensors)
    given = {names[key]: value.to(device) for key, value in tensors.items() if key.startswith("in.")}
    made = plan.run(given, backend=backend)
    expected = {names[key]: value for key, value in tensors.items() if key.startswith("out.")}
    if sorted(made) != sorted(expected):
        return f"makes {', '.join(sorted(made))}; recorded are {', '.join(sorted(expected))}"
    for name, want in expected.items():
        got = made[name].cpu()
        if got.dtype != want.dtype or (got.shape != want.shape and got.numel() * want.numel() != 1):
            return f"`{name}` is {got.dtype} {list(got.shape)}, recorded is {want.dtype} {list(want.shape)}"
        a, b = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (got, want))
        if not torch.equal(a, b):
            return (
                f"`{name}` differs in {int((a != b).sum())} of {a.numel()} bytes, first at {int((a != b).nonzero()[0])}"
            )
    return None


def read(folder: Path, case: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of one case, after checking the file's sha256 against the index."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = _checked(folder, str(case["file"]), str(case["sha256"]))
    try:
        return load_file(path)
    except SafetensorError as error:
        raise LayoutError(f"`{case['file']}` is no safetensors file: {error}", code="LP181", name="bad-case") from None


def _checked(folder: Path, file: str, sha256: str) -> Path:
    """The path of a file of the folder whose content has that digest."""
    path = folder / file
    if path.resolve().parent != folder.resolve():
        raise LayoutError(f"`{file}` is no file of this folder", code="LP181", name="bad-case")
    try:
        raw = path.read_bytes()
    except OSError:
        raise LayoutError(f"`{file}` cannot be read", code="LP181", name="bad-case") from None
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise LayoutError(
            f"`{file}` does not have the sha256 of the index",
            code="LP181",
            name="bad-case",
            help="copy the folder anew",
        )
    return path


def compiled(case: Mapping[str, Any], tensors: Mapping[str, Any], specs: Sequence[str] = ()) -> Plan:
    """The plan of one case, with the recorded padding and the engine's habits imposed."""
    table = _table()
    fmt = _entry(table["formats"], str(case["format"]), "format")
    kernel = _entry(_entry(table["targets"], str(case["target"]), "target"), str(case["format"]), "format")
    kind = _entry(table["kinds"], str(case["kind"]), "kind")
    module, params, sizes = _module(case, kind)
    checkpoint = load_spec(fmt["checkpoint"], specs=tuple(specs))
    params.update({f"source.{name}": value for name, value in fmt.get("params", {}).items()})
    params["dtype"] = case["param_dtype"]
    if any(key.startswith("in.") and key.endswith("bias") for key in tensors):
        params["bias"] = True
    if "group" in checkpoint.params and checkpoint.params["group"].type == "group":
        params["source.group"] = case["group"]
    if "block" in case and "block_n" in checkpoint.params:
        params["source.block_n"], params["source.group"] = case["block"]
    if load_spec(kernel, specs=tuple(specs)).params["group"].type == "group":
        rows = {
            value.shape[-2] for key, value in tensors.items() if key.startswith("out.") and key.endswith("weight_scale")
        }
        params["target.group"] = -1 if rows == {1} else case["group"]
    ranks = int(case.get("ranks", 1))
    if "K_full" in case:
        params["module.split"], sizes["k"] = "k", case["K_full"]
    padded = {axis: case["padded"][name] for axis, name in kind["sizes"].items() if name in case["padded"]}
    return compile_plan(
        fmt["checkpoint"],
        kernel,
        module,
        sizes,
        params=params,
        tp=ranks,
        sharded=ranks > 1,
        padded=padded,
        habits=peer.habits(),
        specs=specs,
    )


def _module(case: Mapping[str, Any], kind: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    missing = [name for name in kind["sizes"].values() if name not in case]
    if missing:
        raise LayoutError(f"a {case['kind']} case states {', '.join(missing)}", code="LP181", name="bad-case")
    sizes = {axis: case[name] for axis, name in kind["sizes"].items()}
    params: dict[str, Any] = {}
    if case["kind"] == "moe":
        order = "alternating" if case.get("w13_order") == "interleaved" else "stacked"
        params.update({"source.parts": order, "target.parts": order})
        return "moe_gated" if case.get("shards", 2) == 2 else "moe_plain", params, sizes
    widths = case.get("shards")
    if not isinstance(widths, list) or len(widths) < 2:
        return "linear", params, sizes
    sizes["n"] = tuple(widths)
    params.update({"module.names": ",".join(f"p{at}" for at in range(len(widths))), "source.parts": "stacked"})
    return "linear_fused", params, sizes


def _names(case: Mapping[str, Any], tensors: Iterable[str]) -> dict[str, str]:
    """Recorded tensor name -> the plan's name."""
    table = _table()
    renamed = table["formats"][case["format"]].get("tensors", {})
    matrices = table["kinds"][case["kind"]]["matrices"]
    found: dict[str, str] = {}
    for key in tensors:
        side, _, rest = key.partition(".")
        matrix = next((matrix for matrix, prefix in matrices.items() if rest.startswith(prefix)), None)
        if side not in ("in", "out") or matrix is None:
            raise LayoutError(f"`{key}` is no tensor of a {case['kind']} case", code="LP181", name="bad-case")
        name = rest.removeprefix(matrices[matrix])
        found[key] = f"{matrix}.{renamed.get(name, name) if side == 'in' else name}"
    return found


def _entry(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise LayoutError(
            f"no spec is known for the {what} `{name}`",
            code="LP182",
            name="unknown-case",
            help=did_you_mean(name, table) or f"known: {', '.join(table)}",
        )
    return table[name]


def policy(folder: Path) -> Iterator[Outcome]:
    """Every row of the folder's policy tables against the rules of data/peer.yaml; one outcome per row."""
    stated = index(folder).get("policy")
    if stated is None:
        return
    try:
        path = _checked(folder, str(stated["file"]), str(stated["sha256"]))
        for name, table in _json(path, dict).items():
            if isinstance(table, dict) and "rows" in table:
                yield from _table_rows(name, table)
    except LayoutError as error:
        yield Outcome("policy", error.message)
    except (TypeError, KeyError, ValueError) as error:
        yield Outcome("policy", f"the tables are malformed: {error}")


def _table_rows(name: str, table: Mapping[str, Any]) -> Iterator[Outcome]:
    if name not in peer.tables():
        yield Outcome(f"policy {name}", "no rule is known for this table")
        return
    for row in table["rows"]:
        given = dict(zip(table["columns"], row))
        made = peer.policy(name, given)
        wrong = {column: value for column, value in made.items() if int(given[column]) != value}
        yield Outcome(f"policy {name} {row}", f"the rule says {wrong}" if wrong else None)
