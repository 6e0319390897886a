// Grids of codes: every pair of an entry along n and an entry along k, whose addresses add up. What the generated repacks
// share that go code by code (layoutdsl/backends/repack/grid_kernels.py).
#pragma once
#include "recodes.cuh"

namespace ld {

// The entries along one axis: columns of 8-byte numbers, one after the other.
struct Axis {
    Global columns;
    i64 count;
    Global sources;  // the column of source addresses: of this table, or a gathered one of `experts` times `count`
    i64 per_expert;  // how many entries apart the experts' are: 0 where they share it

    LD_DEVICE i64 target(u32 entry) const { return column(0, entry); }
    LD_DEVICE i64 source(u32 expert, u32 entry) const { return sources.load<i64>((expert * per_expert + entry) * 8); }
    LD_DEVICE i64 part(u32 entry) const { return column(2, entry); }
    LD_DEVICE i64 kind(u32 entry) const { return column(3, entry); }
    LD_DEVICE i64 coordinate(u32 entry) const { return column(5, entry); }
    LD_DEVICE i64 column(i64 which, u32 entry) const { return columns.load<i64>((which * count + entry) * 8); }
};

// Where the tensors of the parts lie: a row of addresses for each, one per expert.
struct Rows {
    Global addresses;
    i64 experts;

    LD_DEVICE Global at(i64 row, u32 expert) const {
        return {addresses.load<u64>((row * experts + expert) * 8)};
    }
};

// A thread's expert, and its piece of an expert's grid.
struct Turn {
    u32 expert, piece;
};

LD_DEVICE Turn turn_of(i64 blocks_per_expert) {
    const u32 expert = block() / static_cast<u32>(blocks_per_expert);
    return {expert, (block() - expert * static_cast<u32>(blocks_per_expert)) * threads() + thread()};
}

struct Pair {
    u32 n, k;
};

// Piece number -> entries, of n_count times k_count pieces. The lowest `bits` bits of the number belong to n where `mask`
// has a 1, else to k: the order in which a target stores them. Beyond these, `k_first` says which axis goes faster.
LD_DEVICE Pair pair_of(u32 piece, u32 mask, u32 bits, u32 n_count, u32 k_count, bool k_first) {
    Pair low{0, 0};
    u32 n_bits = 0, k_bits = 0;
    for (u32 bit = 0; bit < bits; ++bit) {
        if (mask >> bit & 1)
            low.n |= (piece >> bit & 1) << n_bits++;
        else
            low.k |= (piece >> bit & 1) << k_bits++;
    }
    const u32 rest = piece >> bits, fast = k_first ? k_count >> k_bits : n_count >> n_bits;
    const u32 slow = rest / fast, within = rest - slow * fast;
    return {(k_first ? slow : within) << n_bits | low.n, (k_first ? within : slow) << k_bits | low.k};
}

// What becomes of a pair of kinds: a pad's code, or one of these (axes.py).
constexpr i64 KEPT = -1, DATA = -2;

// Writes a piece of `codes` codes at a code's address, but for the bits in `kept`, which stay.
template <int bits, int codes> LD_DEVICE void store_codes(Global to, i64 address, u32 word, u32 kept) {
    const i64 at = address * bits / 8;
    if constexpr (bits * codes == 32) to.store<u32>(at, kept ? word | (to.load<u32>(at) & kept) : word);
    if constexpr (bits * codes == 16) to.store<u16>(at, kept ? word | (to.load<u16>(at) & kept) : word);
    if constexpr (bits * codes == 8) to.store<u8>(at, kept ? word | (to.load<u8>(at) & kept) : word);
}

// The largest value of all lanes, kept in a slot. All lanes of the warp come here.
LD_DEVICE void keep_largest(Global keys, i64 slot, u64 key) {
    for (int mask = 16; mask; mask /= 2) {
        const u64 low = shfl_xor(static_cast<u32>(key), mask), high = shfl_xor(static_cast<u32>(key >> 32), mask);
        const u64 other = high << 32 | low;
        if (other < key) key = other;
    }
    if (lane() == 0 && key != NOTHING) atomic_min(keys, slot * 8, key);
}

// NVFP4: the global scales of the parts, float32 codes in rows of their own.
template <class Scale> struct GlobalScales {
    Rows rows;
    i64 first_row, parts;
    bool reciprocal;

    LD_DEVICE u32 code(i64 part, u32 expert) const { return rows.at(first_row + part, expert).load<u32>(0); }
    // The power of two of a part's scale over the first part's.
    LD_DEVICE i64 ratio(i64 part, u32 expert, bool& bad) const {
        const u32 own = code(part, expert);
        const double first = decode<Scale>(code(0, expert)), value = decode<Scale>(own);
        bad |= !(value > 0.0) || !is_finite<Scale>(own) || mantissa_of(first) != mantissa_of(value);
        return (exponent_of(value) - exponent_of(first)) * (reciprocal ? -1 : 1);
    }
    LD_DEVICE double factor(u32 expert) const {
        const double first = decode<Scale>(code(0, expert));
        return reciprocal ? 1.0 / first : first;
    }
    // The power of two moved from the global scale into the block scales, of which `top` is the largest. `within`: the
    // target reads every code of these, so that nothing moves but what would overflow.
    LD_DEVICE i64 shift(double top, i64 power, bool within, u32 expert, bool& bad) const {
        bool folded = false;
#pragma unroll 1
        for (i64 part = 0; part < parts; ++part) folded |= ratio(part, expert, bad) != 0;
        if (top == 0.0) return 0;
        const double limit = 448.0 * 128.0, scaled = top * power_of_two(power);
        const i64 room = exponent_of(limit) - exponent_of(scaled) - (mantissa_of(limit) < mantissa_of(scaled));
        if (within) return folded && room < 0 ? room : 0;
        return folded || room > 0 ? room : 0;
    }
};

}  // namespace ld
