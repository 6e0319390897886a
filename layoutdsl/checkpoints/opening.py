"""A checkpoint folder with all that can be known before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layoutdsl.checkpoints.binding import Work, bound
from layoutdsl.checkpoints.folder import Folder, read_folder
from layoutdsl.checkpoints.names import for_architecture
from layoutdsl.checkpoints.quantization import Declared, declared
from layoutdsl.errors import LayoutError


@dataclass(frozen=True)
class Opened:
    """What is in the folder, what config.json says of it, and what belongs together."""

    folder: Folder
    architecture: str
    declared: Declared
    work: Work

    @property
    def dtype(self) -> str | None:
        """The 16-bit dtype that config.json gives the model, hence its activations; None where it names none."""
        return dtype_of(self.folder.config)

    def __str__(self) -> str:
        return f"{self.architecture}, {self.declared if self.declared.groups else 'not quantized'}"


def opened(path: str | Path | Folder, specs: tuple[str, ...]) -> Opened:
    """Read and check everything but the weights. LayoutError names file and tensor, what was expected and found."""
    folder = path if isinstance(path, Folder) else read_folder(Path(path))
    quantized = folder.config.get("quantization_config") is not None
    formats = declared(folder.config, specs) if quantized else Declared((), (), ())
    architecture = architecture_of(folder.config)
    work = bound(
        folder, formats, for_architecture(architecture, specs), architecture, specs, dtype=dtype_of(folder.config)
    )
    return Opened(folder, architecture, formats, work)


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """The 16-bit dtype that config.json gives the model; None where it names none."""
    stated = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return stated if stated in ("float16", "bfloat16") else None


def architecture_of(config: Mapping[str, Any]) -> str:
    """The one architecture that config.json states; LayoutError where it does not."""
    stated = config.get("architectures")
    if not isinstance(stated, list) or len(stated) != 1 or not isinstance(stated[0], str):
        raise LayoutError(
            "config.json states no single architecture",
            code="LP215",
            name="bad-config",
            help='it needs an entry such as "architectures": ["LlamaForCausalLM"]',
        )
    return stated[0]
