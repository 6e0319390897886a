"""Checkpoints that outside code wrote, and converted ones put together again from the tensors of all their ranks.

The kernels' tensors are read by tests/decoders/marlin.py; nothing here knows layoutdsl. The sizes of a matrix as stored
come from the shapes of its tensors, those of a model from its config.json.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoints import bits, nearest
from decoders import marlin
from decoders.numbers import FLOAT
from safetensors import safe_open
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
NAMES = sorted(
    path.name.removesuffix("_decompressed.json")
    for path in FIXTURES.glob("*_decompressed.json")
    if path.name.startswith(("llama_", "qwen3_moe_"))
)
"""Checkpoints of whole models."""

Tensors = dict[str, torch.Tensor]
Change = Callable[[dict[str, Any]], object]


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def source_of(folder: Path) -> Tensors:
    """Every tensor of a checkpoint."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def library(name: str) -> dict[str, Any]:
    """The digest of each quantized weight as the library that made it decompresses it."""
    return json.loads((FIXTURES / f"{name}_decompressed.json").read_text())


def splits(name: str) -> list[tuple[int, int]]:
    """(tensor-parallel, expert-parallel) ranks that share a fixture. Three divide neither heads nor inner features,
    eight are more than the key-value heads."""
    return [(1, 1), (2, 1), (3, 1), (8, 1)] + ([(2, 2), (3, 2)] if "moe" in name else [])


SPLITS = [(name, tp, ep) for name in NAMES for tp, ep in splits(name)]


def copied(name: str, folder: Path, change: Change = lambda config: None) -> Path:
    """A copy of a fixture in one file, with its config.json changed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    written(folder, source_of(FIXTURES / name))
    config = config_of(FIXTURES / name)
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def written(folder: Path, tensors: Tensors) -> None:
    """All tensors of a checkpoint anew."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def unit(tensors: Mapping[str, torch.Tensor], name: str) -> Tensors:
    """The tensors below a name, by the rest of theirs."""
    return {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}


def packed(codes: torch.Tensor, size: int) -> torch.Tensor:
    """Codes along the last axis, low bits first, into int32 words."""
    per = 32 // size
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per)).unflatten(-1, (-1, per))
    shifts = (np.arange(per) * size).astype(np.uint32)
    return torch.from_numpy(np.bitwise_or.reduce(padded.numpy().astype(np.uint32) << shifts, axis=-1).view(np.int32))


def drawn(
    folder: Path, *, bits: int, symmetric: bool, dtype: str, tied: bool = False, bias: bool = False,
    hidden: int = 320, inner: int = 448, heads: int = 10, head: int = 32,
) -> Path:  # fmt: skip
    """A checkpoint of random codes, zero points and scales in groups of 32; two kv heads."""
    made = torch.Generator().manual_seed(bits + symmetric)
    float16, group, q, kv = getattr(torch, dtype), 32, heads * head, 2 * head
    rows = {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q),
            "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}  # fmt: skip
    layer = "model.layers.0"
    vectors = ("model.norm", f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    tables = ("model.embed_tokens", *(() if tied else ("lm_head",)))
    tensors = {f"{name}.weight": torch.randn(hidden, generator=made).to(float16) for name in vectors}
    tensors |= {f"{name}.weight": torch.randn(32, hidden, generator=made).to(float16) for name in tables}
    for part, (n, k) in rows.items():
        prefix = f"{layer}.{'self_attn' if part in 'qkvo' else 'mlp'}.{part}_proj"
        tensors[f"{prefix}.weight_packed"] = packed(torch.randint(1 << bits, (n, k), generator=made), bits)
        tensors[f"{prefix}.weight_scale"] = torch.randn(n, k // group, generator=made).to(float16)
        tensors[f"{prefix}.weight_shape"] = torch.tensor([n, k])
        if not symmetric:
            zeros = torch.randint(1 << bits, (k // group, n), generator=made)
            tensors[f"{prefix}.weight_zero_point"] = packed(zeros, bits).T
        if bias and part in "qkv":
            tensors[f"{prefix}.bias"] = torch.randn(n, generator=made).to(float16)
    weights = {"num_bits": bits, "group_size": group, "strategy": "group", "symmetric": symmetric, "type": "int"}
    config = {
        "architectures": ["Qwen2ForCausalLM" if bias else "LlamaForCausalLM"], "dtype": dtype, "head_dim": head,
        "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads, "num_hidden_layers": 1,
        "num_key_value_heads": 2, "tie_word_embeddings": tied,
        "quantization_config": {
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "format": "pack-quantized", "ignore": ["lm_head"], "quant_method": "compressed-tensors",
        },
    }  # fmt: skip
    folder.mkdir()
    written(folder, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# --- values -----------------------------------------------------------------------------------------------------------


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as the decoders take it: floats below 32 bits as their bits."""
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.view(torch.uint16 if tensor.element_size() == 2 else torch.uint8)
    return tensor.numpy()


def value_of(tensor: torch.Tensor) -> np.ndarray:
    """What floats are worth."""
    return FLOAT[str(tensor.dtype).removeprefix("torch.")](bits_of(tensor))


def digest(value: np.ndarray, dtype: str) -> dict[str, Any]:
    """As the fixtures record a weight: rounded once to its dtype, little-endian bytes."""
    data = bits(nearest(value, dtype), dtype).tobytes()
    return {"dtype": dtype, "shape": list(value.shape), "sha256": hashlib.sha256(data).hexdigest()}


def code_of(config: Mapping[str, Any]) -> str:
    """What a kernel makes of a checkpoint's codes, as decoders.marlin calls it."""
    stated = config["quantization_config"]
    if "config_groups" not in stated:
        return {4: "u4b8", 8: "u8b128"}[stated["bits"]]
    weights = stated["config_groups"]["group_0"]["weights"]
    codes = {("int", 4): "u4b8", ("int", 8): "u8b128", ("float", 4): "e2m1", ("float", 8): "e4m3"}
    return codes[weights["type"], weights["num_bits"]]


def decoded(tensors: Tensors, code: str, dtype: str) -> np.ndarray:
    """[n, k] as a kernel reads one matrix, padding included; inputs in the order that they are stored in."""
    if tensors["weight"].dtype != torch.int32:
        return value_of(tensors["weight"])
    rows, columns = tensors["weight"].shape
    code = code.partition("b")[0] if "zero_point" in tensors else code
    arrays = {name: bits_of(tensor) for name, tensor in tensors.items()}
    n = columns * 2 // marlin.BITS[code]
    return marlin.decode(arrays, n=n, k=rows * 16, code=code, activation=dtype, dtype=dtype)


def dealt(count: int, ranks: int, rank: int) -> range:
    """What a rank gets of things dealt out evenly, the first ranks one more."""
    each, more = divmod(count, ranks)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))


def heads_of(queries: int, keys: int, tp: int, rank: int) -> tuple[range, range]:
    """(query heads, key-value heads) of a rank: whole key-value heads with all queries that they serve; where there are
    fewer than ranks, as many ranks share one, and deal its queries out, as all heads have. Others hold none."""
    each = queries // keys
    if keys >= tp:
        own = dealt(keys, tp, rank)
        return range(own.start * each, own.stop * each), own
    sharing = min(tp // keys, each)
    key, place = divmod(rank, sharing)
    if key >= keys:
        return range(queries, queries), range(keys, keys)
    own = dealt(each, sharing, place)
    return range(key * each + own.start, key * each + own.stop), range(key, key + 1)


class Converted:
    """A model from the tensors of all its ranks, tensor-parallel neighbours first.

    codes: part of a unit's name -> its code, where they differ. plans: of each rank, unit -> its plan as JSON, where
    alone it is said how ranks cut inner features. experts: which expert each place holds.
    """

    def __init__(
        self,
        src: Path,
        ranks: Sequence[Tensors],
        tp: int,
        ep: int = 1,
        codes: Mapping[str, str] | None = None,
        *,
        plans: Sequence[Mapping[str, Any]],
        experts: Sequence[int] = (),
    ):
        self.src, self.config, self.ranks, self.tp, self.ep = src, config_of(src), list(ranks), tp, ep
        assert len(self.ranks) == tp * ep
        self.dtype = self.config["dtype"]
        self.codes = codes or {"": code_of(self.config)}
        self.plans = plans
        self.places = experts or range(self.config.get("num_experts", self.config.get("num_local_experts", 0)))

    @staticmethod
    def of(src: Path, dst: Path, tp: int, ep: int = 1, **options: Any) -> Converted:
        """As `convert` wrote it."""
        homes = [f"rank-{rank}" for rank in range(tp * ep)]
        assert sorted(path.name for path in dst.iterdir()) == sorted(homes)
        ranks = [load_file(dst / home / "model.safetensors") for home in homes]
        return Converted(src, ranks, tp, ep, plans=[plans_of(dst / home) for home in homes], **options)

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key-value heads, and features of one."""
        queries, keys = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        return queries, keys, self.config.get("head_dim", self.config["hidden_size"] // queries)

    @property
    def hidden(self) -> int:
        return self.config["hidden_size"]

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Each linear layer's weight under its name in the checkpoint."""
        for at in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{at}"
            yield from self.qkv(f"{layer}.self_attn")
            yield from self.o(f"{layer}.self_attn")
            if f"{layer}.mlp.experts.w13.weight" in self.ranks[0]:
                yield from self.whole(f"{layer}.mlp.gate")
                yield from self.experts(f"{layer}.mlp.experts")
            else:
                yield from self.mlp(f"{layer}.mlp")

    # attention --------------------------------------------------------------------------------------------------------

    def qkv(self, layer: str) -> Iterator[tuple[str, np.ndarray]]:
        """Parts of which ranks hold whole heads, each part as wide as the widest rank's; all expert-parallel ranks hold
        the same."""
        name, (queries, keys, head) = f"{layer}.qkv_proj", self.heads
        for ranks in self.copies(name):
            found = {part: Whole((count * head, self.hidden)) for part, count in zip("qkv", (queries, keys, keys))}
            for at, rank in enumerate(ranks):
                own, begin = self.inputs_in_order(rank, name), 0
                widest = 0 if rank[f"{name}.weight"].dtype == torch.int32 else at  # without a kernel nothing is padded
                holds, most = (heads_of(queries, keys, self.tp, one) for one in (at, widest))
                for part, heads, wide in zip("qkv", (*holds, holds[1]), (*most, most[1])):
                    rows = own[begin : (begin := begin + len(wide) * head)]
                    found[part].put(rows, range(heads.start * head, heads.stop * head), range(self.hidden))
                assert not own[begin:].any(), "padding is not zero"
        for part, whole in found.items():
            yield f"{layer}.{part}_proj.weight", whole.value

    def o(self, layer: str) -> Iterator[tuple[str, np.ndarray]]:
        """The heads of a rank's queries are its inputs, behind those that the caller pads it with in front."""
        name, (queries, keys, head) = f"{layer}.o_proj", self.heads
        for ranks in self.copies(name):
            whole = Whole((self.hidden, queries * head))
            for at, rank in enumerate(ranks):
                heads, own = heads_of(queries, keys, self.tp, at)[0], unit(rank, name)
                k = np.arange(heads.start * head, heads.stop * head)
                value, (_, length, front) = self.decoded(own, name), self.extent(at, name, "o", "k")
                assert length == len(k) and not value[:, :front].any(), "padding in front is not zero"
                order = own["k_perm"].numpy() if "k_perm" in own else k
                whole.put(value[:, front:], range(self.hidden), order)
        yield f"{name}.weight", whole.value

    # layers of an inner axis ------------------------------------------------------------------------------------------

    def mlp(self, layer: str) -> Iterator[tuple[str, np.ndarray]]:
        """Rows of gate and up, columns of down, in the order of down where its inputs are sorted by group."""
        inner, names = self.config["intermediate_size"], (f"{layer}.gate_up_proj", f"{layer}.down_proj")
        order = self.order(f"{layer}.down_proj", inner)
        copies = [list(self.copies(name)) for name in names]
        for pairs in zip(*copies):
            found = {part: Whole((inner, self.hidden)) for part in ("gate", "up")}
            found["down"] = Whole((self.hidden, inner))
            for at, rank in enumerate(pairs[0]):
                alone = rank.get(f"{names[1]}.k_perm")  # where down's inputs are seen outside, its caller sorts them
                orders = (order, order) if alone is None else (np.arange(inner), alone.numpy())
                both = self.inputs_in_order(rank, names[0]), self.decoded(unit(rank, names[1]), names[1])
                self.put(found, both, at, names, ("gate_up", "down"), orders)
        for part, whole in found.items():
            yield f"{layer}.{part}_proj.weight", whole.value

    def experts(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """Expert-parallel ranks hold experts, some of them several times; tensor-parallel ones rows of gate and up and
        columns of down."""
        inner, names = self.config["moe_intermediate_size"], (f"{name}.w13", f"{name}.w2")
        known: dict[str, np.ndarray] = {}
        orders = np.arange(inner), np.arange(inner)
        for place, expert in enumerate(self.places):
            found = {part: Whole((inner, self.hidden)) for part in ("gate", "up")}
            found["down"] = Whole((self.hidden, inner))
            held = [dealt(len(self.places), self.ep, ep_rank) for ep_rank in range(self.ep)]
            ep_rank = next(at for at, own in enumerate(held) if place in own)
            for at in range(self.tp):
                rank = self.ranks[ep_rank * self.tp + at]
                both = (self.decoded(self.expert(rank, one, held[ep_rank].index(place), len(held[ep_rank])), one)
                        for one in names)  # fmt: skip
                w13, w2 = both
                assert not w13[:, self.hidden :].any(), "padding is not zero"
                self.put(found, (w13[:, : self.hidden], w2), at, names, ("w13", "w2"), orders)
            for part, whole in found.items():
                key = f"{name}.{expert}.{part}_proj.weight"
                assert np.array_equal(known.setdefault(key, whole.value), whole.value), "a copy of an expert differs"
        yield from known.items()

    def put(
        self,
        found: Mapping[str, Whole],
        both: tuple[np.ndarray, np.ndarray],
        at: int,
        names: tuple[str, str],
        matrices: tuple[str, str],
        orders: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """One rank's rows of gate and up, which are padded alike, and its columns of down."""
        start, length, _ = self.extent(at, names[0], matrices[0], "n")
        for part, rows in zip(("gate", "up"), np.split(both[0], 2)):
            found[part].put(rows, orders[0][start : start + length], range(self.hidden))
        start, length, front = self.extent(at, names[1], matrices[1], "k")
        assert not both[1][:, :front].any(), "padding in front is not zero"
        columns = orders[1] if len(orders[1]) == length else orders[1][start : start + length]  # k_perm is the rank's
        found["down"].put(both[1][:, front:], range(self.hidden), columns)

    def order(self, layer: str, inputs: int) -> np.ndarray:
        """The inputs of a layer of the checkpoint sorted by group, if they are not in order."""
        stated = self.config["quantization_config"]
        if not stated.get("desc_act"):
            return np.arange(inputs)
        return source_of(self.src)[f"{layer}.g_idx"].sort(stable=True).indices.numpy()

    # all else ---------------------------------------------------------------------------------------------------------

    def whole(self, name: str) -> Iterator[tuple[str, np.ndarray]]:
        """One matrix that every rank holds."""
        values = [self.decoded(unit(rank, name), name) for rank in self.ranks]
        assert all(np.array_equal(value, values[0]) for value in values)
        yield f"{name}.weight", values[0]

    def extent(self, rank: int, name: str, matrix: str, role: str) -> tuple[int, int, int]:
        """(start, length, padding in front) of the axis that ranks share, of the first part."""
        plan = self.plans[rank].get(name) or self.plans[rank][name.rpartition(".")[0]]
        extent = next(one for one in plan["extents"] if (one["matrix"], one["role"]) == (matrix, role))
        return extent["start"], extent["length"], extent["front"]

    def inputs_in_order(self, rank: Tensors, name: str) -> np.ndarray:
        """[n, hidden] of one rank that holds all inputs."""
        own = unit(rank, name)
        value, order = self.decoded(own, name), own.get("k_perm")
        assert not value[:, self.hidden :].any(), "padding is not zero"
        value = value[:, : self.hidden]
        return value if order is None else value[:, np.argsort(order.numpy()[: self.hidden])]

    def expert(self, rank: Tensors, name: str, at: int, count: int) -> Tensors:
        own = unit(rank, name)
        assert all(len(tensor) == count for tensor in own.values()), "an expert-parallel rank holds its own experts"
        return {key: tensor[at] for key, tensor in own.items()}

    def copies(self, name: str) -> Iterator[list[Tensors]]:
        """The tensor-parallel ranks of each expert-parallel one, which hold the same of `name`."""
        for ep_rank in range(self.ep):
            ranks = self.ranks[ep_rank * self.tp : (ep_rank + 1) * self.tp]
            for first, other in zip(self.ranks, ranks):
                a, b = unit(first, name), unit(other, name)
                assert a.keys() == b.keys() and all(torch.equal(bytes_of(a[key]), bytes_of(b[key])) for key in a)
            yield ranks

    def decoded(self, tensors: Tensors, name: str) -> np.ndarray:
        return decoded(tensors, next(code for part, code in self.codes.items() if part in name), self.dtype)


class Whole:
    """A matrix put together from the ranks' pieces; each element is there, and the same wherever it is."""

    def __init__(self, shape: tuple[int, int]):
        self._value = np.full(shape, np.nan)

    def put(self, stored: np.ndarray, n: Sequence[int], k: Sequence[int]) -> None:
        """What a rank stores begins with the rows `n` and columns `k` of the whole; the rest is padding."""
        rest = stored.copy()
        rest[: len(n), : len(k)] = 0
        assert not rest.any(), "padding is not zero"
        place, piece = np.ix_(n, k), stored[: len(n), : len(k)]
        assert piece.shape == (len(n), len(k)), "a rank holds less than its share"
        known = self._value[place]
        assert np.array_equal(np.where(np.isnan(known), piece, known), piece), "ranks differ in what they share"
        self._value[place] = piece

    @property
    def value(self) -> np.ndarray:
        assert not np.isnan(self._value).any(), "ranks do not hold all of it"
        return self._value


def plans_of(home: Path) -> dict[str, Any]:
    """Unit -> its plan, as JSON."""
    with safe_open(home / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    units = json.loads(metadata["layoutdsl.units"])
    return {name: json.loads(metadata[f"layoutdsl.plan.{digest}"]) for name, digest in units.items()}


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Names, dtypes, shapes and bytes are equal."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(bytes_of(found[name]), bytes_of(tensor)), name
