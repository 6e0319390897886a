// Words of packed codes on their way through a tile: what the generated repacks share that move whole rows
// (layoutdsl/backends/cuda_tiles.py).
#pragma once
#include "device.cuh"

namespace ld {

// An expert's tensor: at equal steps, or where a table of addresses says (a step below 0).
LD_DEVICE Global expert_of(Global experts, i64 step, u32 expert) {
    if (step < 0) return {experts.load<u64>(expert * 8ll)};
    return experts + step * expert;
}

// The codes of `a` that are not under `mask`, shifted, change places with those of `b` that are.
LD_DEVICE void exchange(u32& a, u32& b, u32 shift, u32 mask) {
    const u32 differs = (a >> shift ^ b) & mask;
    b ^= differs;
    a ^= differs << shift;
}

// Inside one word: the codes under `mask` change places with those `shift` bits above.
LD_DEVICE void exchange(u32& word, u32 shift, u32 mask) {
    const u32 differs = (word >> shift ^ word) & mask;
    word ^= differs ^ differs << shift;
}

// Whether the bits under `mask` are those of `value` in any code of a word; `ones` has a 1 at the end of each code.
LD_DEVICE bool has_code(u32 word, u32 mask, u32 value, u32 ones) {
    const u32 differs = (word & mask) ^ value;
    return (differs - ones) & ~differs & ones << (ones == 1 ? 31 : ones & 0x100 ? 7 : 15);
}

// Nibbles around the zero point 8: below it, 15 minus the code is all bits but the topmost turned around.
LD_DEVICE u32 fp8_nibbles(u32 word) { return word ^ 0x88888888 ^ (~word >> 3 & 0x11111111) * 7; }
LD_DEVICE u32 plain_nibbles(u32 word) { return word ^ 0x88888888 ^ (word >> 3 & 0x11111111) * 7; }

LD_DEVICE void refuse(Global status) { atomic_min(status, 0, 0ull); }

}  // namespace ld
