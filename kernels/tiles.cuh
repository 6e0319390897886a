// Words of packed codes on their way through a tile: what the generated repacks share that move whole rows
// (layoutdsl/backends/repack/tile_kernels.py).
#pragma once
#include "recodes.cuh"

namespace ld {

// An expert's tensor: at equal steps, or where a table of addresses says (a step below 0).
LD_DEVICE Global expert_of(Global experts, i64 step, u32 expert) {
    if (step < 0) return {experts.load<u64>(expert * 8ll)};
    return experts + step * expert;
}

// Where a byte of a tile stands in memory, from its first: in rows of 2^near bytes, of which those that a digit group
// numbers are a step apart.
LD_DEVICE i64 place_of(u32 byte, i64 near, i64 bits0, i64 row0, i64 bits1, i64 row1, i64 row2) {
    const u32 row = byte >> near, rest = row >> bits0;
    return (byte & ((1u << near) - 1)) + (row & ((1u << bits0) - 1)) * row0 + (rest & ((1u << bits1) - 1)) * row1 +
           (rest >> bits1) * row2;
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

// FP4 codes with the sign of their scale.
LD_DEVICE u32 fold_sign(u32 word, u32 scale) { return word ^ signed_by(0, scale) * 0x11111111; }

// The nibbles of a word around a zero point (recodes.cuh): each by itself, but for 8, where 15 minus a code is all its bits
// but the topmost turned around.
LD_DEVICE u32 fp8_nibbles(u32 word, u32 zero) {
    if (zero == 8) return word ^ 0x88888888 ^ (~word >> 3 & 0x11111111) * 7;
    u32 made = 0;
    for (u32 at = 0; at < 32; at += 4) made |= fp8_nibble(word >> at & 15, zero) << at;
    return made;
}

LD_DEVICE u32 plain_nibbles(u32 word, u32 zero) {
    if (zero == 8) return word ^ 0x88888888 ^ (word >> 3 & 0x11111111) * 7;
    u32 made = 0;
    for (u32 at = 0; at < 32; at += 4) made |= plain_nibble(word >> at & 15, zero) << at;
    return made;
}

}  // namespace ld
