// What the experts of a token gave, summed: row t of the output is the sum of rows t * top_k and following, in their
// order and in fp32. Rows of other ranks' experts are left out; a token that has none on this rank is zeros.
#pragma once
#include "gemm/halves.cuh"

namespace ld {

struct Sum {
    Global from;  // [tokens * top_k] rows, `stride` elements apart, a multiple of 8, at multiples of 16 bytes
    i64 stride;
    Global local;  // [tokens * top_k] int32: a row with a negative number is left out
    i64 top_k;
    Global to;  // [tokens, columns]
    i64 columns;
    i64 tokens;
};

// Eight columns of a token for each thread.
template <Operand type> LD_DEVICE void combine(const Sum& of) {
    const u32 chunks = static_cast<u32>((of.columns + 7) / 8), piece = block() * threads() + thread();
    const u32 token = piece / chunks;
    if (token >= of.tokens) return;
    const i64 column = i64{piece - token * chunks} * 8, first = token * of.top_k;
    float sums[8] = {};
#pragma unroll 4
    for (i64 row = first; row < first + of.top_k; ++row) {
        if (of.local.load<i32>(row * 4) < 0) continue;
        const auto found = of.from.load<Chunk<8>>((row * of.stride + column) * 2);
        for (int i = 0; i < 8; ++i) sums[i] += to_float<type>(found.at[i]);
    }
    Chunk<8> made;
    for (int i = 0; i < 8; ++i) made.at[i] = from_float<type>(sums[i]);
    const Global to = of.to + (token * of.columns + column) * 2;
    if (column + 8 <= of.columns && to.at % 16 == 0) return to.store(0, made);
    for (int i = 0; i < 8; ++i)
        if (column + i < of.columns) to.store<u16>(2 * i, made.at[i]);
}

}  // namespace ld
