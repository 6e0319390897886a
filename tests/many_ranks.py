"""One process of many, started by torchrun: loads checkpoints under meshes and tells what came and what was read.

    python -m torch.distributed.run --nproc-per-node 4 tests/many_ranks.py CASES.json FOLDER

A case names a checkpoint and the sizes of a mesh by its dims, or of a group. FOLDER/RANK.json has for each case, by its
name, the rank that this process was, digests of its tensors, bytes that calls read, pages that were mapped, bytes that
the disk gave, and what was refused.
"""

import hashlib
import json
import mmap
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from layoutdsl import LayoutError, convert, load
from layoutdsl.checkpoints import gather
from layoutdsl.checkpoints.mesh import told

IO = Path("/proc/self/io")


def digests(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """dtype, shape and bytes of each, shortened."""
    found = {}
    for name, tensor in tensors:
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        found[name] = f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(raw).hexdigest()[:16]}"
    return found


def counted() -> dict[str, int]:
    """Bytes that this process has read so far: by calls, and those that a disk gave for it."""
    lines = (line.split(": ") for line in IO.read_text().splitlines())
    return {key: int(value) for key, value in lines}


def forget(folder: Path) -> None:
    """The system keeps no page of the files any longer."""
    for path in folder.glob("*.safetensors"):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def read(src: str, mesh: Any, pages: set[tuple[str, int]]) -> dict[str, Any]:
    pages.clear()
    given, refused = [], ""
    tensors = load(src, mesh=mesh)
    before = counted()
    try:
        given += tensors
    except LayoutError as error:
        refused = str(error)
    after = counted()
    return {
        "called": after["rchar"] - before["rchar"],
        "disk": after["read_bytes"] - before["read_bytes"],
        "pages": sorted(pages),
        "digests": digests(given),
        "refused": refused,
    }


def main(cases: Path, folder: Path) -> None:
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    pages: set[tuple[str, int]] = set()
    mapped = gather.mapped

    def window(file: Any, begin: int, size: int) -> Any:
        if (found := mapped(file, begin, size)) is not None:
            every = range(begin // mmap.PAGESIZE, (begin + size - 1) // mmap.PAGESIZE + 1)
            pages.update((Path(file.name).name, page) for page in every)
        return found

    gather.mapped = window
    told_of = {}
    for name, case in json.loads(cases.read_text()).items():
        dims = case["dims"]
        mesh: Any = distributed.group.WORLD
        if dims:
            mesh = init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))
        own = told(mesh)
        found: dict[str, Any] = {"rank": own.number, "tp": own.tp, "ep": own.ep}
        if "convert" in case:
            try:
                convert(case["src"], case["convert"], mesh=mesh)
            except LayoutError as error:
                found["refused"] = str(error)
        else:
            with suppress(LayoutError):  # modules that are imported late, and specs, are no part of a checkpoint
                list(load(case["src"], mesh=mesh))
            distributed.barrier()
            if case.get("cold"):
                forget(Path(case["src"]))
                distributed.barrier()
            found |= read(case["src"], mesh, pages)
        told_of[name] = found
    distributed.barrier()
    (folder / f"{distributed.get_rank()}.json").write_text(json.dumps(told_of))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
