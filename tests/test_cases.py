"""Public reports of quantized weights that an engine laid out wrongly, as data: fixtures/cases.yaml.

Each case says what is right there, in numbers, and this file asks for it: of plans, of the values of a conversion (read
by decoders written apart, see conversions.py), and of whole checkpoints. The head of fixtures/cases.yaml explains its
keys. Nothing here knows a single case.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import checkpoints
import conversions
import numpy as np
import pytest
import torch
import yaml
from conversions import Job, check, compare, given, run
from converted import FIXTURES, ROOT, copied, source_of
from safetensors.torch import load_file, save_file

from layoutdsl import LayoutError, Plan, compile_plan, convert
from layoutdsl.checkpoints import binding, load, names, quantization
from layoutdsl.checkpoints.folder import INDEX, Folder, read_folder
from layoutdsl.explain import padding
from layoutdsl.prove import prove_ranks

CASES: list[dict[str, Any]] = yaml.safe_load((FIXTURES / "cases.yaml").read_text())
KINDS = ("plans", "values", "folders", "runs")
FORMATS = {made.spec: made for made in vars(checkpoints).values() if isinstance(made, type) and hasattr(made, "spec")}
FORMATS |= {"mxfp4": checkpoints.Mxfp4}
OPTIONS = ("sharded", "padded", "grains", "only", "experts")

Entry = dict[str, Any]


def every(kind: str) -> list[Any]:
    found = [(f"{case['id']}-{at}", entry) for case in CASES for at, entry in enumerate(case.get(kind, ()))]
    return [pytest.param(entry, id=name) for name, entry in found]


def test_every_case_is_asked_or_says_why_not() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 77
    for case in CASES:
        assert set(case) <= {"id", "ref", "about", "note", "out_of_scope", *KINDS}, case["id"]
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", case["ref"]) and case["about"], case["id"]
        assert any(case.get(kind) for kind in KINDS) != bool(case.get("out_of_scope")), case["id"]


def refused(error: LayoutError, wanted: Mapping[str, Any]) -> None:
    """With that code, in a sentence with these words, and with a way out."""
    assert error.diagnostics[0].code == wanted.get("code", error.diagnostics[0].code)
    assert error.help, f"no way out: {error}"
    missing = [text for text in wanted["says"] if text not in str(error)]
    assert not missing, f"lacks {missing}: {error}"


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", every("plans"))
def test_plans(entry: Entry, tmp_path: Path) -> None:
    if "refused" in entry:
        with pytest.raises(LayoutError) as caught:
            planned(entry, tmp_path)
        refused(caught.value, entry["refused"])
        return
    plans = planned(entry, tmp_path)
    if "ranks" not in entry:
        prove_ranks(plans, specs=(str(tmp_path),))
    for plan in plans:
        caller_can(plan)
    for fact, wanted in entry["expect"].items():
        assert FACTS[fact](plans, wanted) == wanted, fact


def planned(entry: Entry, tmp_path: Path, **other: Any) -> list[Plan]:
    """The plans of all ranks, tensor-parallel neighbours first, or of those that the entry names."""
    tp, ep = entry.get("tp", 1), entry.get("ep", 1)
    sizes = {axis: tuple(size) if isinstance(size, list) else size for axis, size in entry["sizes"].items()}
    options = {key: entry[key] for key in OPTIONS if key in entry} | other
    kernel, specs = entry["to"], ()
    if "accepts" in entry:
        kernel, specs = another_build(kernel, entry["accepts"], tmp_path), (str(tmp_path),)
    ranks = list(itertools.product(range(ep), range(tp)))
    return [
        compile_plan(
            entry["from"], kernel, entry["module"], sizes, params=entry.get("params", {}), tp=tp, rank=rank, ep=ep,
            ep_rank=ep_rank, specs=specs, **options,
        )
        for ep_rank, rank in (ranks[at] for at in entry.get("ranks", range(len(ranks))))
    ]  # fmt: skip


def another_build(kernel: str, accepts: Mapping[str, Any], folder: Path) -> str:
    """A copy of a shipped kernel spec that accepts something else."""
    spec = yaml.safe_load((ROOT / "specs" / "kernel" / f"{kernel}.yaml").read_text())
    spec |= {"kernel": f"{kernel}_other", "accepts": spec["accepts"] | accepts, "try": [{"n": 1024, "k": 1024}]}
    (folder / f"{kernel}_other.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return f"{kernel}_other"


def caller_can(plan: Plan) -> None:
    """What a plan asks of its caller along k and n follows from its extents."""
    asked = {(duty.kind, duty.matrix): duty for duty in plan.duties}
    for (kind, matrix), duty in asked.items():
        (k,) = (extent for extent in plan.extents if extent.matrix == matrix and extent.role == "k")
        n = [extent for extent in plan.extents if extent.matrix == matrix and extent.role == "n"]
        if kind == "pad_input":
            assert duty.front + k.length + duty.rest == k.padded
        if kind == "slice_output":
            assert duty.length == sum(extent.length for extent in n if extent.part != "*")


def bytes_of(plan: Plan) -> int:
    kinds = [(info.full_shape, getattr(torch, info.dtypes[0])) for info in plan.outputs]
    return sum(torch.empty(shape, dtype=kind, device="meta").nbytes for shape, kind in kinds)


def extents(plans: Sequence[Plan], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """`matrix.role` or `matrix.role.part` -> what is said of it: its padded extent, or that and more, per rank."""
    found: dict[str, Any] = {}
    for key, facts in wanted.items():
        matrix, role, part = (*key.split("."), None)[:3]
        fields = facts if isinstance(facts, dict) else {"padded": facts}
        rows = [
            {field: getattr(extent, field) for field in fields}
            for plan in plans
            for extent in plan.extents
            if (extent.matrix, extent.role) == (matrix, role)
            and (extent.part != "*" if part is None else extent.part == part)
        ]
        assert rows, key
        made = {
            field: same([row[field] for row in rows]) if not isinstance(value, list) else [row[field] for row in rows]
            for field, value in fields.items()
        }
        found[key] = made if isinstance(facts, dict) else made["padded"]
    return found


def same(values: Sequence[Any]) -> Any:
    """The one value of all ranks; if there are several, all of them."""
    return values[0] if all(value == values[0] for value in values) else list(values)


def each(ask: Any) -> Any:
    """A fact that all ranks have in common, of the names that are wanted."""
    return lambda plans, wanted: same([{name: ask(plan, name) for name in wanted} for plan in plans])


def lines(plan: Plan, name: str) -> tuple[list[int] | None, list[int] | None]:
    """First and last of the rows, and of the columns, that a rank reads of a stored matrix; None where none."""
    info = plan.input[name]
    item = getattr(torch, info.dtypes[0]).itemsize
    row = math.prod(info.shape[1:]) * item
    ranges = plan.reads()[name].ranges()
    if not ranges:
        return None, None
    rows, columns = set(), set()
    for begin, end in ranges:
        rows |= set(range(begin // row, (end - 1) // row + 1))
        columns |= {0, row // item - 1} if end - begin >= row else {begin % row // item, (end - 1) % row // item}
    assert len(rows) == max(rows) - min(rows) + 1, "rows that are not neighbours"
    return [min(rows), max(rows)], [min(columns), max(columns)]


def more(plans: Sequence[Plan], wanted: float) -> float:
    """What the ranks store beyond what one rank would, in percent of that."""
    first = plans[0]
    alone = compile_plan(
        first.source.spec, first.target.spec, first.module.spec, dict(first.sizes),
        params={f"target.{key}": value for key, value in first.target.params}
        | {f"source.{key}": value for key, value in first.source.params}
        | {f"module.{key}": value for key, value in first.module.params},
    )  # fmt: skip
    return round(100 * sum(map(bytes_of, plans)) / bytes_of(alone) - 100, 1)


FACTS = {
    "extents": extents,
    "groups": each(lambda plan, name: dict(plan.groups)[name]),
    "inputs": each(lambda plan, name: list(plan.input[name].full_shape)),
    "outputs": each(lambda plan, name: list(plan.output[name].full_shape)),
    "all_outputs": lambda plans, wanted: same([sorted(plan.output) for plan in plans]),
    "dtypes": each(lambda plan, name: plan.output[name].dtypes[0]),
    "duties": lambda plans, wanted: same([sorted({f"{d.kind} {d.matrix}" for d in plan.duties}) for plan in plans]),
    "tiles": each(lambda plan, name: next(list(tile[1:]) for tile in plan.tiles if tile[0] == name)),
    "slots": lambda plans, wanted: [list(plan.slots) for plan in plans],
    "explains": lambda plans, wanted: same([[text for text in wanted if text in plan.explain()] for plan in plans]),
    "passed": lambda plans, wanted: same([[output for _, output in plan.passed] for plan in plans]),
    "experts": lambda plans, wanted: [list(plan.experts[1:]) for plan in plans],
    "bytes": lambda plans, wanted: same([bytes_of(plan) for plan in plans]),
    "more": more,
    "rows": lambda plans, wanted: {name: [lines(plan, name)[0] for plan in plans] for name in wanted},
    "columns": lambda plans, wanted: {name: [lines(plan, name)[1] for plan in plans] for name in wanted},
    "pieces": lambda plans, wanted: {n: same([len(plan.reads()[n].ranges()) for plan in plans]) for n in wanted},
    "pads": each(lambda plan, name: sorted({why for output, _, why, *_ in padding(plan) if output == name})),
    "lossy": lambda plans, wanted: same([sorted(name for name, _ in plan.losses) for plan in plans]),
    "round_trip": lambda plans, wanted: all(Plan.from_json(plan.to_json()) == plan for plan in plans),
}


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", every("values"))
def test_values(entry: Entry) -> None:
    rng = np.random.default_rng(77)
    for ep_rank, rank in itertools.product(range(entry.get("ep", 1)), range(entry.get("tp", 1))):
        job = job_of(entry, rank=rank, ep_rank=ep_rank)
        if "refused" in entry and "put" not in entry:
            with pytest.raises(LayoutError) as caught:
                _ = job.plan
            refused(caught.value, entry["refused"])
            continue
        tensors = job.draw(rng)
        for name, at, value in entry.get("put", ()):
            put(tensors, name, at, value)
        if "refused" in entry:
            with pytest.raises(LayoutError) as caught:
                run(job, tensors)
            refused(caught.value, entry["refused"])
        elif "lost" in entry:
            loses(job, tensors, entry["lost"])
        else:
            holds(job, tensors)
            for how in entry.get("also", ()):
                ALSO[how](job, tensors, rng)


def holds(job: Job, tensors: dict[str, list]) -> None:
    """The target has the source's values, and zeros elsewhere; where a rank's inputs begin behind zeros, there."""
    plan = job.plan
    fronts = {extent.matrix: extent.front for extent in plan.extents if extent.role == "k"}
    if not any(fronts.values()):
        check(job, tensors=tensors)
        return
    made = run(job, tensors, plan=plan)
    for matrix, at in itertools.product(job.matrices, range(len(job.held))):
        expected = job.logical(tensors, matrix, job.held[at], conversions._rounded(job))
        found = conversions.stored(job, plan, made, matrix, at)
        front = fronts[matrix.name]
        for want, place in zip(expected, conversions.rows(job, plan, matrix, [len(part) for part in expected])):
            np.testing.assert_array_equal(found[place, front : front + want.shape[1]], want)
            found[place, front : front + want.shape[1]] = 0
        assert not found.any(), "padding holds a value"


class Heads(Job):
    """Attention: a rank has whole key-value heads with their queries, or shares one and has some of its queries."""

    @property
    def whole(self) -> list[conversions.Matrix]:
        q, kv, d, h = (self.sizes[axis] for axis in ("q", "kv", "d", "h"))
        dv = self.sizes.get("dv", d)
        return [
            conversions.Matrix("qkv", ("q", "k", "v"), (q * d, kv * d, kv * dv), h, "n", True),
            conversions.Matrix("o", ("",), (h,), q * dv, "k", False),
        ]

    def logical(self, tensors: dict, matrix: conversions.Matrix, expert: int, decode: Any) -> list[np.ndarray]:
        q, kv = self.sizes["q"], self.sizes["kv"]
        sharing = min(max(self.tp // kv, 1), q // kv)
        units = -(-kv * sharing // self.tp)  # of which a rank has so many: a key-value head and some of its queries
        first, last = (min(at * units, kv * sharing) for at in (self.rank, self.rank + 1))
        queries = slice(first * q // kv // sharing, last * q // kv // sharing)
        keys = slice(first // sharing, -(-last // sharing)) if last > first else slice(0, 0)

        def of(rows: np.ndarray, heads: slice, count: int, axis: int) -> np.ndarray:
            return np.concatenate(np.split(rows, count, axis)[heads] or [rows.take([], axis)], axis)

        values = self.values(tensors, matrix, expert, decode)
        if matrix.name == "o":
            return [of(values[0], queries, q, 1)]
        return [of(values[0], queries, q, 0), of(values[1], keys, kv, 0), of(values[2], keys, kv, 0)]


def job_of(entry: Entry, **ranks: int) -> Job:
    source = FORMATS[entry["from"]](entry.get("params", {}))
    sizes = {axis: tuple(size) if isinstance(size, list) else size for axis, size in entry["sizes"].items()}
    keys = ("split", "dtype", "padded", "sharded", "tp", "ep")
    options = {key: entry[key] for key in keys if key in entry}
    options |= {key: tuple(entry[key]) for key in ("stored", "names") if key in entry}
    options |= {"slots": tuple(entry["experts"])} if "experts" in entry else {}
    kind = Heads if entry["module"] == "attention" else Job
    return kind(source, entry["to"], entry["module"], sizes, params=entry.get("with", {}), **options, **ranks)


def put(tensors: dict[str, list], name: str, at: Sequence[int], value: Any) -> None:
    """Sets one element (expert first), or with no place all of them; a list goes in from there on, along the row."""
    for expert, array in enumerate(tensors[name]):
        array = np.array(array)
        if not at:
            array[...] = value
        elif expert == at[0] and isinstance(value, list):
            array[(*at[1:-1], slice(at[-1], at[-1] + len(value)))] = value
        elif expert == at[0]:
            array[tuple(at[1:])] = value
        tensors[name][expert] = array


def loses(job: Job, tensors: dict[str, list], wanted: Mapping[str, int]) -> None:
    """So many values of these outputs become 0, which is declared and counted; all others are exact."""
    report: list[Any] = []
    plan = job.plan
    made = run(job, tensors, plan=plan, report=report)
    counted: dict[str, int] = {}
    for lost in report:
        counted[lost.tensor] = counted.get(lost.tensor, 0) + lost.count
    assert counted == wanted and set(wanted) <= set(dict(plan.losses))
    for _, _, want, got in compare(job, plan, tensors, made):
        np.testing.assert_array_equal(got[got != 0], want[got != 0])


def into_the_same(job: Job, tensors: dict[str, list], rng: Any) -> None:
    """A second source goes through the same plan into the same storage."""
    plan = job.plan
    out = plan.run(given(plan, tensors))
    places = {name: tensor.data_ptr() for name, tensor in out.items()}
    other = given(plan, job.draw(rng))
    again = plan.run(other, out=out)
    assert {name: tensor.data_ptr() for name, tensor in again.items()} == places
    for name, tensor in plan.run(other).items():
        assert torch.equal(raw(out[name]), raw(tensor)), name


def there_and_back(job: Job, tensors: dict[str, list], rng: Any) -> None:
    """The inverse gives tensors in the source's format that hold the same values, and lead to the same bytes."""
    plan = job.plan
    first = plan.run(given(plan, tensors))
    back = plan.inverse().run(first)
    for name, tensor in plan.run({name: back[name] for name in plan.input if name in back}).items():
        assert torch.equal(raw(first[name]), raw(tensor)), name


def of_one_element(job: Job, tensors: dict[str, list], rng: Any) -> None:
    """A scale of one element may be stored as (), (1,) or (1, 1)."""
    plan = job.plan
    inputs = given(plan, tensors)
    single = [name for name, tensor in inputs.items() if isinstance(tensor, torch.Tensor) and tensor.numel() == 1]
    assert single
    first = plan.run(inputs)
    for shape in ((), (1,), (1, 1)):
        found = plan.run(inputs | {name: inputs[name].reshape(shape) for name in single})
        assert all(torch.equal(raw(found[name]), raw(tensor)) for name, tensor in first.items())
    with pytest.raises(LayoutError, match=r"has the shape \[2\]"):
        plan.run(inputs | {single[0]: inputs[single[0]].reshape(1).repeat(2)})


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def half_is_refused(job: Job, tensors: dict[str, list], rng: Any) -> None:
    """Half or twice as much along any axis is another shape, never another group size or another module."""
    plan = job.plan
    inputs = {name: torch.stack(one) if isinstance(one, list) else one for name, one in given(plan, tensors).items()}
    for name in plan.input:
        for axis, extent in enumerate(inputs[name].shape):
            half = [inputs[name].view(torch.uint8) if inputs[name].itemsize == 1 else inputs[name]]
            for wrong in (half[0].narrow(axis, 0, extent // 2), torch.cat(half * 2, axis)) if extent > 1 else ():
                with pytest.raises(LayoutError, match=f"`{re.escape(name)}` has the shape"):
                    plan.run(inputs | {name: wrong.contiguous().view(inputs[name].dtype)})


ALSO = {
    "into_the_same": into_the_same,
    "there_and_back": there_and_back,
    "of_one_element": of_one_element,
    "half_is_refused": half_is_refused,
}


# --- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", every("folders"))
def test_folders(entry: Entry, tmp_path: Path) -> None:
    src = changed(entry, tmp_path / "src")
    ranks = {"tp": entry.get("tp", 1), "ep": entry.get("ep", 1)}
    if "refused" in entry:
        with pytest.raises(LayoutError) as caught:
            convert(src, tmp_path / "out", **ranks)
        refused(caught.value, entry["refused"])
        assert not (tmp_path / "out").exists()
        return
    report = convert(src, tmp_path / "out", verify=True, **ranks)
    assert "equal the source's" in report.verified
    for unit, tensors in entry.get("written", {}).items():
        for home in sorted((tmp_path / "out").iterdir()):
            held = load_file(home / "model.safetensors")
            assert sorted(name.removeprefix(f"{unit}.") for name in held if name.startswith(f"{unit}.")) == tensors
    if "share" in entry:
        assert reads_of(src, entry["reading"], **ranks) == entry["share"]
    if "compiled" in entry:
        conversion = load.planned(src, **ranks)
        assert [len(conversion.work.jobs), len(conversion.planner.known)] == entry["compiled"]


def changed(entry: Entry, src: Path) -> Path:
    """A copy of a fixture with its tensors, its config.json and its files changed."""
    copied(entry["of"], src, lambda config: merge(config, entry.get("config", {})))
    tensors = source_of(src)
    for old, new in entry.get("rename", {}).items():
        for name in fnmatch.filter(list(tensors), old):
            tensors[name.replace(*new)] = tensors.pop(name)
    for pattern in entry.get("drop", ()):
        assert [tensors.pop(name) for name in fnmatch.filter(list(tensors), pattern)]
    for name, (shape, dtype) in entry.get("add", {}).items():
        tensors[name] = torch.ones(shape, dtype=getattr(torch, dtype))
    for pattern, shape in entry.get("reshape", {}).items():
        tensors |= {name: tensors[name].reshape(shape) for name in fnmatch.filter(list(tensors), pattern)}
    for pattern, value in entry.get("fill", {}).items():
        tensors |= {name: torch.full_like(tensors[name], value) for name in fnmatch.filter(list(tensors), pattern)}
    (src / "model.safetensors").unlink()
    split(src, tensors, entry)
    if "cut" in entry:
        file = next(src.glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[: -entry["cut"]])
    return src


def merge(config: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, dict):
            merge(config.setdefault(key, {}), value)
        else:
            config[key] = value


def split(src: Path, tensors: dict[str, torch.Tensor], entry: Entry) -> None:
    """One file, or two and their index, the second with the tensors that `apart` names."""
    there = set(fnmatch.filter(list(tensors), entry["apart"])) if "apart" in entry else set()
    parts = {"a.safetensors": tensors.keys() - there, "b.safetensors": there}
    for file, held in parts.items():
        if held:
            save_file({name: tensors[name].contiguous() for name in sorted(held)}, src / file)
    index = {name: file for file, held in parts.items() for name in held} | entry.get("index", {})
    if there or "index" in entry:
        (src / INDEX).write_text(json.dumps({"weight_map": index}))


def reads_of(src: Path, pattern: str, *, tp: int, ep: int) -> list[float]:
    """Which share of the bytes of some tensors each rank reads."""
    whole = sum(entry.size for name, entry in read_folder(src).entries.items() if fnmatch.fnmatch(name, pattern))
    found = []
    for rank in range(tp * ep):
        ranges = load.planned(src, tp=tp, ep=ep, rank=rank).reads()
        found.append(sum(end - begin for _, name, begin, end in ranges if fnmatch.fnmatch(name, pattern)) / whole)
    return found


# --- runs: what a conversion costs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", every("runs"))
def test_runs(entry: Entry, tmp_path: Path) -> None:
    RUNS[entry["measure"]](entry, tmp_path)


def names_are_looked_up(entry: Entry, tmp_path: Path) -> None:
    """Calls made to place all tensors of a checkpoint, per tensor: no more with eight times the experts."""
    counts = []
    for experts in entry["counts"]:
        folder = widened(FIXTURES / entry["of"], experts)
        declared = quantization.declared(folder.config)
        family = names.for_architecture(folder.config["architectures"][0])
        calls = 0

        def seen(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(seen)
        try:
            binding.bound(folder, declared, family, folder.config["architectures"][0])
        finally:
            sys.setprofile(None)
        counts.append(calls / len(folder.entries))
    assert counts[1] <= counts[0], counts


def widened(src: Path, experts: int) -> Folder:
    """The headers of a checkpoint whose layers have so many experts, all like the first."""
    folder = read_folder(src)
    config = folder.config | {"num_experts": experts, "num_local_experts": experts}
    entries = {name: entry for name, entry in folder.entries.items() if ".experts." not in name}
    for name, entry in folder.entries.items():
        if ".experts.0." in name:
            for expert in range(experts):
                other = name.replace(".experts.0.", f".experts.{expert}.")
                entries[other] = type(entry)(other, *list(vars(entry).values())[1:])
        if name.endswith("mlp.gate.weight"):
            shape = (experts, *entry.shape[1:])
            entries[name] = type(entry)(name, entry.file, entry.dtype, shape, entry.start, entry.size)
    return Folder(folder.path, config, entries)


def programs_do_not_count_experts(entry: Entry, tmp_path: Path) -> None:
    """One program serves all experts: it is the same for two and for any number of them."""
    few, many = (
        planned(entry | {"sizes": entry["sizes"] | {"e": experts}}, tmp_path)[0] for experts in entry["counts"]
    )
    assert few.programs == many.programs


PEAK = """
import json, sys, torch
torch.set_num_threads(1)
from layoutdsl import compile_plan

def kilobytes(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])

def full(info):
    dtype = getattr(torch, info.dtypes[0])
    return torch.full((*info.full_shape, dtype.itemsize), 100, dtype=torch.uint8).view(dtype)[..., 0]

source, kernel, module, sizes, params = json.loads(sys.argv[1])
for at in ({**sizes, "e": 1}, sizes):
    plan = compile_plan(source, kernel, module, at, params=params)
    inputs, out = ({info.name: full(info) for info in infos} for infos in (plan.inputs, plan.outputs))
    before = kilobytes("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    plan.run(inputs, out=out)
print((kilobytes("VmHWM") - before) * 1024 / sum(tensor.nbytes for tensor in out.values()))
"""


def memory_is_a_few_experts(entry: Entry, tmp_path: Path) -> None:
    """Bytes in use at once while a plan fills storage that is there, beyond that and the source, as a share of it."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("only Linux tells a high-water mark anew")
    given = [entry[key] for key in ("from", "to", "module", "sizes")] + [entry.get("params", {})]
    done = subprocess.run([sys.executable, "-c", PEAK, json.dumps(given)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= entry["most"]


RUNS = {
    "calls": names_are_looked_up,
    "programs": programs_do_not_count_experts,
    "memory": memory_is_a_few_experts,
}
