"""`layoutdsl.load`: a rank's tensors are those that `convert` writes, and only the bytes that it needs are read."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from converted import FIXTURES, SPLITS, config_of, copied, drawn, same, source_of, written
from safetensors.torch import load_file

from layoutdsl import LayoutError, convert, load
from layoutdsl.checkpoints import folder, gather, reading
from layoutdsl.checkpoints.load import planned

Stretch = tuple[str, int, int]
"""File, and [begin, end) in it."""


@pytest.mark.parametrize(("name", "tp", "ep"), SPLITS)
def test_every_rank_is_what_convert_writes(name: str, tp: int, ep: int, tmp_path: Path) -> None:
    convert(FIXTURES / name, tmp_path / "out", tp=tp, ep=ep)
    for rank in range(tp * ep):
        stored = load_file(tmp_path / "out" / f"rank-{rank}" / "model.safetensors")
        tensors = list(load(FIXTURES / name, tp=tp, ep=ep, rank=rank))
        same(dict(tensors), stored)
        assert len(tensors) == len(stored)


def test_the_reference_makes_the_same(tmp_path: Path) -> None:
    src = drawn(tmp_path / "src", bits=4, symmetric=False, dtype="bfloat16", hidden=64, inner=64, heads=2, head=32)
    for rank in range(2):
        same(*(dict(load(src, tp=2, rank=rank, backend=backend)) for backend in ("reference", "torch")))


def test_the_kernel_can_be_named(tmp_path: Path) -> None:
    src, target = FIXTURES / "llama_w4a16_asym", ("marlin_int8_a16", "marlin_int4_a8fp8")
    convert(src, tmp_path / "out", tp=2, rank=1, to=target)
    same(dict(load(src, tp=2, rank=1, target=target)), load_file(tmp_path / "out" / "rank-1" / "model.safetensors"))
    same(dict(load(src, target=target)), dict(load(src, target="marlin_int4_a8fp8")))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rank": 1}, "rank 1 of 1 ranks does not exist"),
        ({"tp": 2, "ep": 2, "rank": 4}, "rank 4 of 4 ranks does not exist"),
        ({"tp": 2, "rank": -1}, "rank -1 of 2 ranks does not exist"),
        ({"ep": 5, "rank": 0}, "axis `e` has 4 experts, too few for 5 expert-parallel ranks"),
        ({"target": "marlin_int8_a16"}, "weights are never requantized"),
        ({"target": "marlin"}, "there is no spec `marlin`"),
        ({"backend": "cuda2"}, "cuda2"),
        ({"specs": ["nowhere"]}, "nowhere"),
    ],
)
def test_all_is_checked_before_the_first_tensor(options: dict[str, Any], match: str) -> None:
    with pytest.raises(LayoutError, match=match):
        load(FIXTURES / "qwen3_moe_w4a16", **options)


# ---------------------------------------------------------------- what is read


class _File(io.FileIO):
    """A file that notes what is read of it without a buffer."""

    def __init__(self, path: Path, noted: list[Stretch]):
        super().__init__(path)
        self.path, self.noted = path, noted

    def readinto(self, buffer: Any, /) -> int:
        at, count = self.tell(), super().readinto(buffer)
        self.noted.append((self.path.name, at, at + count))
        return count


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[Stretch]:
    """What is read of safetensors files, whoever opens them by their Path, and what is mapped of them."""
    found: list[Stretch] = []
    open_, mapped = Path.open, gather.mapped

    def window(file: Any, begin: int, size: int) -> memoryview | None:
        found.append((file.path.name, begin, begin + size))
        return mapped(file, begin, size)

    monkeypatch.setattr(gather, "mapped", window)

    def opened(self: Path, mode: str = "r", buffering: int = -1, **options: Any) -> Any:
        if self.suffix != ".safetensors":
            return open_(self, mode, buffering, **options)
        assert mode == "rb"
        file = _File(self, found)
        return io.BufferedReader(file) if buffering else file

    monkeypatch.setattr(Path, "open", opened)
    return found


def joined(stretches: Iterator[Stretch] | list[Stretch]) -> list[Stretch]:
    """In order, those that touch or overlap as one."""
    found: list[Stretch] = []
    for file, begin, end in sorted(stretches):
        if found and found[-1][0] == file and begin <= found[-1][2]:
            found[-1] = file, found[-1][1], max(found[-1][2], end)
        else:
            found.append((file, begin, end))
    return found


def said(src: Path, **options: Any) -> list[Stretch]:
    return [(path.name, begin, end) for path, _, begin, end in planned(src, **options).reads()]


def size(stretches: list[Stretch]) -> int:
    return sum(end - begin for _, begin, end in stretches)


@pytest.mark.parametrize(("name", "tp", "ep"), [split for split in SPLITS if split[1:] in ((1, 1), (2, 1), (2, 2))])
def test_what_is_read_is_what_was_said(
    name: str, tp: int, ep: int, noted: list[Stretch], monkeypatch: pytest.MonkeyPatch
) -> None:
    src, options = FIXTURES / name, {"tp": tp, "ep": ep, "rank": tp * ep - 1}
    expected = joined(said(src, **options))

    def read() -> dict[str, torch.Tensor]:
        tensors = load(src, **options)
        noted.clear()  # headers were read, and of weights nothing, as another test shows
        return dict(tensors)

    found = read()
    left = list(expected)
    for file, begin, end in joined(noted):
        inside = [stretch for stretch in left if stretch[0] == file and begin <= stretch[1] and stretch[2] <= end]
        assert (inside[0][1], inside[-1][2]) == (begin, end), "more is read than was said"
        assert all(after[1] - before[2] <= gather.GAP for before, after in zip(inside, inside[1:]))
        left = [stretch for stretch in left if stretch not in inside]
    assert not left, "less is read than was said"

    monkeypatch.setattr(gather, "GAP", 0)  # stretches that are close are no longer read as one
    same(read(), found)
    assert size(noted) == size(expected) and joined(noted) == expected, "not every byte is read, and once"


@pytest.mark.parametrize("name", ["llama_nvfp4a16", "llama_gptq_desc_act", "qwen3_moe_w4a16"])
def test_no_weight_is_read_before_the_first_tensor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that give their headers alone until load() was called."""
    opened = []
    for module, function in ((reading, "opened"), (gather, "opened")):
        own = getattr(module, function)
        monkeypatch.setattr(module, function, lambda entry, *rest, own=own: opened.append(entry) or own(entry, *rest))
    tensors = load(FIXTURES / name, tp=2, rank=1)
    assert not opened
    found = dict(tensors)
    assert {entry.name for entry in opened} <= folder.read_folder(FIXTURES / name).entries.keys() and len(opened) > 9
    monkeypatch.undo()
    same(found, dict(load(FIXTURES / name, tp=2, rank=1)))


def replicated(config: dict[str, Any]) -> str:
    """A pattern for the tensors that more ranks than one need, each all of it."""
    whole = [
        r"norm\.weight",
        "embed_tokens",
        "lm_head",
        r"mlp\.gate\.",
        "weight_shape",
        "g_idx",
        "(global|input)_scale",
    ]
    quantization = config["quantization_config"]
    if quantization.get("desc_act"):
        # The order of their inputs is that of all of them, and so is that of the outputs that become these inputs.
        whole += ["o_proj", "down_proj", "gate_proj", "up_proj"]
    groups = quantization.get("config_groups", {}).values()
    if any(group["weights"]["strategy"] in ("tensor", "channel") for group in groups):
        whole.append("weight_scale")
    return "|".join(whole)


@pytest.mark.parametrize(("name", "tp", "ep"), [split for split in SPLITS if split[1:] not in ((1, 1), (2, 2))])
def test_ranks_share_out_what_is_read(name: str, tp: int, ep: int) -> None:
    src, count, config = FIXTURES / name, tp * ep, config_of(FIXTURES / name)
    queries, keys = config["num_attention_heads"], config["num_key_value_heads"]
    shared = {"k_proj": min(max(tp // keys, 1), queries // keys)}  # so many ranks hold each key-value head
    shared["v_proj"] = shared["k_proj"]
    stretches = [stretch for rank in range(count) for stretch in said(src, tp=tp, ep=ep, rank=rank)]
    extra = 0
    for key, tensor in source_of(src).items():
        nbytes = tensor.numel() * tensor.element_size()
        if re.search(replicated(config), key):
            extra += (count - 1) * nbytes
        elif ".experts." not in key:
            extra += (ep * shared.get(key.split(".")[-2], 1) - 1) * nbytes
    total = sum(tensor.numel() * tensor.element_size() for tensor in source_of(src).values())
    assert size(stretches) <= 1.05 * total + extra
    assert size(joined(stretches)) >= 0.99 * total, "but for stored orders and the like, all is read by someone"


def test_a_rank_reads_its_own_head(tmp_path: Path) -> None:
    """Eight ranks share four key-value heads: each reads a fourth of keys, and of queries no more; of four heads three
    ranks read two at most."""
    for name, tp, most in (("llama_w4a16", 8, 1 / 4), ("qwen3_moe_fp8", 8, 1 / 4), ("llama_fp8_block", 3, 1 / 2)):
        src = FIXTURES / name
        for rank in range(tp):
            read: dict[str, int] = {}
            for _, tensor, begin, end in planned(src, tp=tp, rank=rank).reads():
                read[tensor] = read.get(tensor, 0) + end - begin
            for key, tensor in source_of(src).items():
                if re.search(r"[kv]_proj\.weight(_packed)?$", key):
                    assert 0 < read[key] <= most * tensor.numel() * tensor.element_size(), key
                if re.search(r"[qo]_proj\.weight(_packed)?$", key):
                    assert 0 < read[key] <= most * tensor.numel() * tensor.element_size(), key


def test_bytes_beside_a_cut_group_are_not_read(tmp_path: Path) -> None:
    """A rank whose inputs begin inside a block has no slice of its own in that format, and reads no more for it."""

    def half(config: dict[str, Any]) -> None:
        double = {key: 2 * config[key] for key in ("num_attention_heads", "num_key_value_heads")}
        config.update(double, head_dim=config["head_dim"] // 2)

    src, name = copied("llama_fp8_block", tmp_path / "src", half), "model.layers.0.self_attn.o_proj.weight"
    shares = []
    for rank in range(3):
        conversion = planned(src, tp=3, rank=rank)
        shares.append(sum(end - begin for _, tensor, begin, end in conversion.reads() if tensor == name))
        convert(src, tmp_path / f"{rank}", tp=3, rank=rank)
        same(dict(load(src, tp=3, rank=rank)), load_file(tmp_path / f"{rank}" / f"rank-{rank}" / "model.safetensors"))
    heads = config_of(src)["num_key_value_heads"]
    whole = source_of(src)[name].numel()
    assert heads == 8 and shares == [3 * whole // 8, 3 * whole // 8, 2 * whole // 8]


def test_places_for_experts(tmp_path: Path) -> None:
    """Six places for four experts on three ranks: a rank reads an expert twice, and no other."""
    src, places = FIXTURES / "qwen3_moe_w4a16_asym", (0, 1, 2, 3, 3, 0)
    convert(src, tmp_path / "out", ep=3, experts=places)
    for rank in range(3):
        found = dict(load(src, ep=3, rank=rank, experts=places))
        same(found, load_file(tmp_path / "out" / f"rank-{rank}" / "model.safetensors"))
        own = dict(load(src))
        for key in ("w13.weight", "w13.weight_scale", "w2.weight", "w2.zero_point"):
            key = f"model.layers.0.mlp.experts.{key}"
            assert torch.equal(found[key], own[key][list(places[2 * rank : 2 * rank + 2])])
        conversion = planned(src, ep=3, rank=rank, experts=places)
        read = {tensor for _, tensor, _, _ in conversion.reads() if ".experts." in tensor}
        own_experts = {int(tensor.split(".experts.")[1].split(".")[0]) for tensor in read}
        assert own_experts == {*places[2 * rank : 2 * rank + 2]}


def test_long_rows_are_read_in_parts(
    tmp_path: Path, noted: list[Stretch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that are far apart a rank reads its own columns alone; what it says and what it reads are the same."""
    monkeypatch.setattr(gather, "GAP", 1 << 12)
    src = copied("llama_fp8_dynamic", tmp_path / "src", lambda config: config.update(intermediate_size=1 << 15))
    tensors = source_of(src)
    for part in ("gate", "up", "down"):
        rows, columns = (128, 1 << 15) if part == "down" else (1 << 15, 128)
        layer = f"model.layers.0.mlp.{part}_proj"
        tensors[f"{layer}.weight"] = torch.arange(rows * columns).remainder(120).to(torch.uint8).reshape(rows, columns)
        tensors[f"{layer}.weight"] = tensors[f"{layer}.weight"].view(torch.float8_e4m3fn)
        tensors[f"{layer}.weight_scale"] = torch.ones(rows, 1, dtype=torch.bfloat16)
    written(src, tensors)
    loaded = load(src, tp=2, rank=1)
    noted.clear()
    for _ in loaded:
        pass
    expected = said(src, tp=2, rank=1)
    assert size(expected) <= size(joined(noted)) < 0.53 * sum(t.numel() * t.element_size() for t in tensors.values())
