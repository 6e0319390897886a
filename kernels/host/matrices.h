// ldmatrix and mma.sync on the host. A product is summed up in double precision and rounded once; tensor cores round in
// their own ways, which are held to a bound.
#pragma once

#include <cstring>

#include "collectives.h"
#include "reach.h"
#include "words.h"

namespace ld::host {

struct Rows {
    u64 row;
    u32 count;
    u32* result;
};

// Lane l holds elements 2 (l % 4) and the next of row l / 4 in each matrix.
inline void load_rows(Warp& warp) {
    SharedBytes& shared = warp.block->shared;
    for (u32 lane = 0; lane < WARP; ++lane) {
        Rows& rows = operand_of<Rows>(warp, lane);
        for (u32 matrix = 0; matrix < rows.count; ++matrix) {
            const u64 row = operand_of<Rows>(warp, 8 * matrix + lane / 4).row;
            std::memcpy(&rows.result[matrix], shared.at(row + lane % 4 * 4), 4);
        }
    }
    wake(warp);
}

inline void load_columns(Warp& warp) {
    SharedBytes& shared = warp.block->shared;
    for (u32 lane = 0; lane < WARP; ++lane) {
        Rows& rows = operand_of<Rows>(warp, lane);
        for (u32 matrix = 0; matrix < rows.count; ++matrix) {
            u16 pair[2];
            for (u32 half = 0; half < 2; ++half) {
                const u32 row = 8 * matrix + lane % 4 * 2 + half;
                std::memcpy(&pair[half], shared.at(operand_of<Rows>(warp, row).row + lane / 4 * 2), 2);
            }
            std::memcpy(&rows.result[matrix], pair, 4);
        }
    }
    wake(warp);
}

// Only the lanes that give an address read memory: all that they read is theirs, whoever gets it.
inline void load_matrices(const char* primitive, u32* result, u32 count, u32 at, i64 offset, Site site,
                          void (*complete)(Warp&)) {
    Rows operand{0, count, result};
    if (self->place.thread % WARP < 8 * count) {
        operand.row = reach_shared(primitive, at, offset, 16, site);
        const u32 tally = grid.tallies.index({site, Space::shared, Way::load, 16});
        SharedBytes& shared = self->warp->block->shared;
        check_race(shared.load(operand.row, 16, moment(*self, tally)), primitive, 16, operand.row, site);
        watch_read(shared.at(operand.row), 16);
        note_access(operand.row, 16, tally);
    }
    meet(primitive, site, &operand, complete);
}

void ldmatrix(u32* result, u32 count, u32 at, i64 offset, Site site) {
    load_matrices("ldmatrix", result, count, at, offset, site, load_rows);
}

void ldmatrix_transposed(u32* result, u32 count, u32 at, i64 offset, Site site) {
    load_matrices("ldmatrix_transposed", result, count, at, offset, site, load_columns);
}

struct Product {
    const u32 *a, *b;
    void* c;
};

template <class Code> Code code_of(const u32* words, u32 index) {
    Code code;
    std::memcpy(&code, reinterpret_cast<const char*>(words) + index * sizeof(Code), sizeof(Code));
    return code;
}

// All NaNs become the one that tensor cores give.
template <class Sum, class Value> Sum rounded_to(Value sum) {
    return sum == sum ? static_cast<Sum>(sum) : static_cast<Sum>(float_of(0x7FFFFFFF));
}

// C[16][8] += A[16][k] * B[k][8] with k = 32 bytes of codes. A lane holds, of A, four words: rows l / 4 and 8 more in
// turn, first and second half of k; of B two words of column l / 4; of C two pairs of columns 2 (l % 4), in rows l / 4
// and 8 more.
template <class Code, class Value, class Sum, Value (*value_of)(Code)> void multiply(Warp& warp) {
    constexpr u32 PER_WORD = 4 / sizeof(Code), HALF = 4 * PER_WORD, DEPTH = 2 * HALF;
    Value a[16][DEPTH], b[8][DEPTH];
    for (u32 lane = 0; lane < WARP; ++lane) {
        const Product& product = operand_of<Product>(warp, lane);
        for (u32 word = 0; word < 4; ++word)
            for (u32 i = 0; i < PER_WORD; ++i) {
                const u32 k = word / 2 * HALF + lane % 4 * PER_WORD + i;
                a[lane / 4 + word % 2 * 8][k] = value_of(code_of<Code>(product.a, word * PER_WORD + i));
            }
        for (u32 word = 0; word < 2; ++word)
            for (u32 i = 0; i < PER_WORD; ++i) {
                const u32 k = word * HALF + lane % 4 * PER_WORD + i;
                b[lane / 4][k] = value_of(code_of<Code>(product.b, word * PER_WORD + i));
            }
    }
    for (u32 lane = 0; lane < WARP; ++lane) {
        Sum* c = static_cast<Sum*>(operand_of<Product>(warp, lane).c);
        for (u32 i = 0; i < 4; ++i) {
            const u32 row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            Value sum = static_cast<Value>(c[i]);
            for (u32 k = 0; k < DEPTH; ++k) sum += a[row][k] * b[column][k];
            c[i] = rounded_to<Sum>(sum);
        }
    }
    wake(warp);
}

inline double half_value(u16 code) { return half_to_float(code); }
inline double bfloat16_value(u16 code) { return bfloat16_to_float(code); }
inline double e4m3_value(u8 code) { return e4m3_to_float(code); }
inline i64 integer_value(signed char code) { return code; }

template <class Code, class Value, class Sum, Value (*value_of)(Code)>
void mma(const char* primitive, const u32* a, const u32* b, Sum* c, Site site) {
    Product operand{a, b, c};
    meet(primitive, site, &operand, multiply<Code, Value, Sum, value_of>);
}

void mma_f16(const u32* a, const u32* b, float* c, Site site) {
    mma<u16, double, float, half_value>("mma_f16", a, b, c, site);
}

void mma_bf16(const u32* a, const u32* b, float* c, Site site) {
    mma<u16, double, float, bfloat16_value>("mma_bf16", a, b, c, site);
}

void mma_s8(const u32* a, const u32* b, i32* c, Site site) {
    mma<signed char, i64, i32, integer_value>("mma_s8", a, b, c, site);
}

void mma_e4m3(const u32* a, const u32* b, float* c, Site site) {
    mma<u8, double, float, e4m3_value>("mma_e4m3", a, b, c, site);
}

}  // namespace ld::host
