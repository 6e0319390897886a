"""Write tests/fixtures/awq_gemv.safetensors: matrices packed as AutoAWQ's gemv version packs them, and what they hold.

Written from the format's public description with plain numpy; nothing of layoutdsl is imported here. For each group
size g of 128, 64 and 32 there are

    g128.qweight  int32 [n, k / 8]          code of input 8 w + i in bits 4 i of word w
    g128.qzeros   int32 [n, width]          zero point of group 8 w + i in bits 4 i of word w; the rest is 0
    g128.scales   float16 [n, 8 width]      scale of each group; the rest is 0
    g128.codes, g128.zeros, g128.groups     the codes [n, k], zero points and scales [n, k / g] themselves

where width is the number of words that k / g zero points take, raised to a multiple of 128 / g.

    python scripts/make_fixture_awq_gemv.py
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SIZES = {128: (40, 384), 64: (24, 192), 32: (72, 160)}
FILE = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "awq_gemv.safetensors"


def packed(nibbles: np.ndarray, width: int) -> np.ndarray:
    words = np.zeros((len(nibbles), width), np.uint32)
    for row in range(len(nibbles)):
        for at, nibble in enumerate(nibbles[row]):
            words[row, at // 8] |= np.uint32(int(nibble) << 4 * (at % 8))
    return words.view(np.int32)


def width_of(groups: int, size: int) -> int:
    words, multiple = -(-groups // 8), 128 // size
    return -(-words // multiple) * multiple


def main() -> None:
    dice = np.random.default_rng(2024)
    tensors: dict[str, np.ndarray] = {}
    for size, (n, k) in SIZES.items():
        groups = k // size
        width = width_of(groups, size)
        codes = dice.integers(0, 16, (n, k), dtype=np.uint8)
        zeros = dice.integers(0, 16, (n, groups), dtype=np.uint8)
        scale = dice.uniform(0.001, 0.1, (n, groups)).astype(np.float16)
        scales = np.zeros((n, 8 * width), np.float16)
        scales[:, :groups] = scale
        one = {
            "qweight": packed(codes, k // 8), "qzeros": packed(zeros, width), "scales": scales,
            "codes": codes, "zeros": zeros, "groups": scale,
        }  # fmt: skip
        tensors.update({f"g{size}.{name}": tensor for name, tensor in one.items()})
    save_file(tensors, FILE)


if __name__ == "__main__":
    main()
