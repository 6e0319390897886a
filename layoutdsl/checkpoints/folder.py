"""A Hugging Face folder as its headers show it: config.json, the index, and where each tensor's bytes stand.

    folder = read_folder(Path("model"))
    folder.entries["model.norm.weight"]      # Entry(dtype="bfloat16", shape=(256,), ...)
    read_tensor(folder.entries["model.norm.weight"])

Everything is held against everything else before a weight is read: the header against the size of its file, shapes
against byte counts, the index against the headers.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from layoutdsl import files
from layoutdsl.checkpoints import json_text
from layoutdsl.checkpoints.json_text import AGAIN
from layoutdsl.errors import Diagnostic, LayoutError, did_you_mean

if TYPE_CHECKING:
    import torch

DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
}
"""A dtype as safetensors spells it -> as torch names it, and its width in bytes."""

MAX_NAME = 1_000
"""Longest name of a tensor, in characters."""

MAX_RANK = 16
"""Most dimensions of a tensor."""

ROOM = 1 << 20
"""Bytes from which on a buffer is worth pages of its own."""

INDEX = "model.safetensors.index.json"
QUANTIZATION = "hf_quant_config.json"
"""Where ModelOpt says how it quantized, unless config.json does."""


State = tuple[int, ...]
"""What a file looks like: its size, and when it and its entry were last changed, in nanoseconds."""


def state_of(status: os.stat_result) -> State:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def fail_changed(path: Path) -> NoReturn:
    """The file is not the one that was looked at first."""
    _fail(
        "LP213",
        "bad-safetensors" if path.suffix == ".safetensors" else "bad-config",
        f"`{path}` was changed while it was read",
        "begin again, when nothing writes into the checkpoint any more",
    )


@dataclass(frozen=True)
class Entry:
    """One tensor: what its header says, and where its bytes stand. state: what the file looked like then; nothing
    where no file is read."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int
    state: State = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Folder:
    """A checkpoint: the folder, its config.json and every tensor by name."""

    path: Path
    config: dict[str, Any]
    entries: dict[str, Entry]


def read_folder(path: Path) -> Folder:
    """Read and check everything but the weights. LayoutError names the file, what was expected and what was found."""
    config = read_config(path)
    return Folder(path, config, _indexed(path) if (path / INDEX).exists() else _alone(path))


def read_config(path: Path) -> dict[str, Any]:
    """The folder's config.json, with the quantization that it or a file beside it states."""
    if not path.is_dir():
        raise LayoutError(
            f"`{path}` is no folder",
            code="LP210",
            name="bad-checkpoint",
            help="give the folder that holds config.json and the safetensors files",
        )
    help = "a checkpoint's folder has one beside its safetensors files"
    return _whole(path, json_text.read(path / "config.json", blobs(path), help=help))


def blobs(path: Path) -> Path:
    """Where the cache of the Hugging Face hub keeps the files to which those of a checkpoint's folder are links."""
    return path.resolve().parent.parent / "blobs"


def _whole(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """config.json, with the quantization that a file of its own states."""
    config = quantization_stated(config)
    beside = path / QUANTIZATION
    if config.get("quantization_config") is not None or not beside.is_file():
        return config
    stated = json_text.read(beside, blobs(path)).get("quantization")
    if not isinstance(stated, dict):
        _fail("LP210", "bad-checkpoint", f"`{beside}` has no mapping `quantization`", AGAIN)
    return {**config, "quantization_config": {"quant_method": "modelopt", **stated}}


def quantization_stated(config: dict[str, Any]) -> dict[str, Any]:
    """config.json with `quantization_config`, by which older versions of compressed-tensors have another name."""
    if config.get("quantization_config") is None and isinstance(config.get("compression_config"), dict):
        return {**config, "quantization_config": config["compression_config"]}
    return config


def _alone(path: Path) -> dict[str, Entry]:
    found = sorted(path.glob("*.safetensors"))
    if path / "model.safetensors" in found:
        found = [path / "model.safetensors"]
    if len(found) != 1:
        has = (
            f"{len(found)} safetensors files ({', '.join(file.name for file in found[:8])})"
            if found
            else "no safetensors file"
        )
        raise LayoutError(
            f"`{path}` has {has} and no {INDEX}",
            code="LP212",
            name="index",
            help="the index says which tensor stands in which file; a single file needs none",
        )
    return read_header(found[0], blobs(path))[0]


def _indexed(path: Path) -> dict[str, Entry]:
    names = json_text.read(path / INDEX, blobs(path)).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        _fail("LP212", "index", f"`{path / INDEX}` has no `weight_map` of tensors to files", AGAIN)
    entries: dict[str, Entry] = {}
    found: list[tuple[str, str | None]] = []
    for name in sorted(set(names.values())):
        file = path / name
        if Path(name).name != name or not name.endswith(".safetensors") or not name.isprintable() or len(name) > 255:
            _fail("LP212", "index", f"`{INDEX}` names `{name}`, which is no safetensors file of this folder", AGAIN)
        if not file.is_file():
            _fail("LP212", "index", f"`{INDEX}` names `{name}`, which is not in `{path}`", AGAIN)
        for key, entry in read_header(file, blobs(path))[0].items():
            if key in entries:
                found.append(
                    (f"tensor `{key}` stands in `{entries[key].file.name}` and in `{name}`", "keep one of them")
                )
            elif names.get(key) != name:
                known = f"in `{names[key]}`" if key in names else "nowhere"
                found.append(
                    (
                        f"tensor `{key}` stands in `{name}`, {INDEX} has it {known}",
                        "the index and the files belong to two checkpoints",
                    )
                )
            entries[key] = entry
    for key, name in names.items():
        if key not in entries:
            found.append(
                (
                    f"{INDEX} has tensor `{key}` in `{name}`, whose header does not name it",
                    (len(found) < MOST_SHOWN and did_you_mean(key, entries)) or AGAIN,
                )
            )
    if found:
        raise refusal("LP212", "index", found)
    return entries


MOST_SHOWN = 8
"""Findings of one kind that are shown; the others are counted."""


def refusal(code: str, name: str, found: Iterable[tuple[str, str | None]]) -> LayoutError:
    """One error for many findings (sentence, help)."""
    every = list(found)
    shown = [Diagnostic(code, name, message, help=help) for message, help in every[:MOST_SHOWN]]
    if len(every) > MOST_SHOWN:
        shown.append(Diagnostic(code, name, f"and {len(every) - MOST_SHOWN} more of this kind"))
    return LayoutError.of(shown)



def read_header(path: Path, *folders: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors and the metadata of a safetensors file, held against its size; `folders`: where it may lead if it is
    a link."""
    try:
        with files.opened(path, *folders) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            length = int.from_bytes(file.read(8), "little")
            text = file.read(min(length, json_text.MAX_BYTES)) if size >= 8 else b""
    except OSError as error:
        help = "`layoutdsl inspect` takes a checkpoint's folder" if path.is_dir() else None
        _fail("LP213", "bad-safetensors", f"`{path}` cannot be read: {files.reason(error)}", help)
    if size < 8 or length > size - 8 or length > json_text.MAX_BYTES:
        _fail(
            "LP213",
            "bad-safetensors",
            f"`{path}` is truncated or no safetensors file: it has {size} bytes, too few for its header",
            AGAIN,
        )
    header = json_text.parse(text, f"the header of `{path}`")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        _fail("LP213", "bad-safetensors", f"`{path}`: its metadata are no texts by name", None)
    state = state_of(status)
    entries = {name: replace(_entry(path, name, value, 8 + length), state=state) for name, value in header.items()}
    at = 8 + length
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.size)):
        if entry.start != at:
            _fail(
                "LP213",
                "bad-safetensors",
                f"`{path}`: the bytes of tensor `{entry.name}` begin at {entry.start}, expected {at}",
                AGAIN,
            )
        at += entry.size
    if at != size:
        word = "truncated" if at > size else "too long"
        _fail(
            "LP213",
            "bad-safetensors",
            f"`{path}` is {word}: its header describes {at} bytes, the file has {size}",
            AGAIN,
        )
    return entries, metadata


def _entry(path: Path, name: str, value: Any, base: int) -> Entry:
    if not name.isprintable() or len(name) > MAX_NAME:
        what = "has control characters" if len(name) <= MAX_NAME else f"has more than {MAX_NAME} characters"
        _fail("LP213", "bad-safetensors", f"`{path}`: the name of tensor {name[:80]!r} {what}", None)
    try:
        dtype, shape, (start, end) = value["dtype"], tuple(value["shape"][: MAX_RANK + 1]), value["data_offsets"]
        good = all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, start, end)) and start <= end
    except (KeyError, TypeError, ValueError):
        good, dtype, shape, start, end = False, "", (), 0, 0
    if not good or not isinstance(dtype, str):
        _fail("LP213", "bad-safetensors", f"`{path}`: tensor `{name}` lacks a dtype, a shape or its place", AGAIN)
    if len(shape) > MAX_RANK:
        _fail("LP213", "bad-safetensors", f"`{path}`: tensor `{name}` has more than {MAX_RANK} dimensions", None)
    if dtype not in DTYPES:
        _fail(
            "LP213",
            "bad-safetensors",
            f"`{path}`: tensor `{name}` has the unknown dtype `{dtype[:40]}`",
            f"known: {', '.join(DTYPES)}",
        )
    kind, width = DTYPES[dtype]
    if end - start != math.prod(shape) * width:
        _fail(
            "LP213",
            "bad-safetensors",
            f"`{path}`: tensor `{name}` is {kind} {list(shape)} in {end - start} bytes, "
            f"expected {math.prod(shape) * width}",
            AGAIN,
        )
    return Entry(name, path, kind, shape, base + start, end - start)


def read_tensor(entry: Entry) -> torch.Tensor:
    """The tensor that an entry names."""
    data = memoryview(room(entry.size))
    read_into(entry, 0, data)
    return tensor_of(entry, data)


def tensor_of(entry: Entry, data: memoryview) -> torch.Tensor:
    """The tensor that an entry names, over its bytes in memory."""
    import torch

    dtype = getattr(torch, entry.dtype)
    if not data:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(entry.shape)


def room(size: int) -> bytearray | mmap.mmap:
    """A buffer that goes back to the system as soon as nothing holds it; malloc keeps what is freed."""
    return mmap.mmap(-1, size) if size >= ROOM else bytearray(size)


def read_into(entry: Entry, at: int, into: memoryview) -> None:
    """Fill a buffer with the bytes of a tensor from `at` on. LayoutError where the file does not give them."""
    with opened(entry) as file:
        read_at(file, entry, at, into)


@contextmanager
def opened(entry: Entry) -> Iterator[FileIO]:
    """The file of a tensor, to be read without a buffer. LayoutError for whatever the system says meanwhile."""
    try:
        with entry.file.open("rb", buffering=0) as file:
            if entry.state and state_of(os.fstat(file.fileno())) != entry.state:
                fail_changed(entry.file)
            yield file
    except OSError as error:
        _fail(
            "LP213",
            "bad-safetensors",
            f"`{entry.file}`: tensor `{entry.name}` cannot be read: {files.reason(error)}",
            None,
        )


def read_at(file: FileIO, entry: Entry, at: int, into: memoryview) -> None:
    """The same of a file that is open."""
    done = 0
    file.seek(entry.start + at)
    while done < len(into) and (count := file.readinto(into[done:])):
        done += count
    if done < len(into):
        _fail(
            "LP213",
            "bad-safetensors",
            f"`{entry.file}` became shorter while it was read, at tensor `{entry.name}`",
            AGAIN,
        )


def _fail(code: str, name: str, message: str, help: str | None) -> NoReturn:
    raise LayoutError(message, code=code, name=name, help=help)
