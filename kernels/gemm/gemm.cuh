// C = A x B for weights as they are stored: dense, and by experts.
//
// A kernel is an instantiation, with one of two lists of parameters; each is a Global or an i64:
//
//   using S = Shape<...>;
//   LD_KERNEL(name, threads)(LD_GEMM_PARAMETERS) { gemm<S>(LD_GEMM_ARGUMENTS, Dense{rows}); }
//   LD_KERNEL(name, threads)(LD_GEMM_PARAMETERS, LD_EXPERT_PARAMETERS) { gemm<S>(LD_GEMM_ARGUMENTS, ByExpert{...}); }
//
//   a             the caller's activations: rows `stride_a` elements apart, `valid` columns. At multiples of 16 bytes,
//                 as are stride_a and front in bytes
//   row_scales    float32 [rows of a], what 8-bit activations are multiplied with; 16-bit ones have none
//   weight, scales, zeros, global_scale, bias
//                 as the layout has them, of n padded columns and k padded rows; zeros, global_scale (float32) and bias
//                 may be 0 where there are none. By experts: of all experts, one after the other
//   columns       int32 [n]: the column of `c` for each of the matrix's, or -1
//   c             16-bit floats, rows `stride_c` elements apart
//   partials      float32 [tiles of m, tiles of n, splits, m x n of a tile]; arrivals: uint32 [tiles of m, tiles of n],
//                 0 before and afterwards. Neither is reached with one split
//   rows          of a and c (dense)
//   n, k          multiples of the shape's n and k, below 2^24
//   front         padded columns of k before the caller's first one
//   splits        how many blocks share the inputs of a tile; at most k over the shape's k
//   tokens        int32 [tiles of m, m]: which row of c each row of a tile makes; none where it is `rows` or more
//   experts       int32 [tiles of m]: whose weights a tile takes; -1 for none
//   count         int32 [1]: rows of `tokens` in use
//   router        float32 [rows], what each row of c is multiplied with; 0 for nothing
//   rows, per_row (by experts) of c, and how many of them share a row of a: row r reads row r / per_row
//
// The grid is tiles of m x tiles of n x splits. Blocks of tiles without rows end at once.
#pragma once
#include "gemm/decode.cuh"
#include "gemm/products8.cuh"
#include "gemm/rows.cuh"
#include "gemm/scales.cuh"
#include "gemm/sums.cuh"
#include "gemm/weights.cuh"

#define LD_GEMM_PARAMETERS                                                                                            \
    Global a, Global row_scales, Global weight, Global scales, Global zeros, Global global_scale, Global bias,        \
        Global columns, Global c, Global partials, Global arrivals, i64 rows, i64 n, i64 k, i64 stride_a, i64 front,  \
        i64 valid, i64 stride_c, i64 splits
#define LD_GEMM_ARGUMENTS                                                                                             \
    Matrices{a, row_scales, weight, scales, zeros, global_scale, bias, columns, c, partials, arrivals, n, k,          \
             stride_a, front, valid, stride_c, splits}
#define LD_EXPERT_PARAMETERS Global tokens, Global experts, Global count, Global router, i64 per_row
#define LD_EXPERT_ARGUMENTS ByExpert{tokens, experts, count, router, rows, per_row}

namespace ld {

struct Matrices {
    Global a, row_scales, weight, scales, zeros, global_scale, bias, columns, c, partials, arrivals;
    i64 n, k, stride_a, front, valid, stride_c, splits;
};

// How rows of the tiles stand for rows of a and c, and which expert's weights a tile takes (-1: the tile is not in
// use). Here each row of c is made from the same row of a.
struct Dense {
    i64 rows;
    LD_DEVICE i32 expert(i64, int) const { return 0; }
    LD_DEVICE i32 row_of_c(i64 row) const { return row < rows ? static_cast<i32>(row) : -1; }
    LD_DEVICE i32 row_of_a(i64 row) const { return row_of_c(row); }
    LD_DEVICE float factor(i64) const { return 1.0f; }
};

// Rows are sorted by expert; each expert's begin a tile.
struct ByExpert {
    Global tokens, experts, count, router;
    i64 rows, per_row;
    LD_DEVICE i32 expert(i64 tile, int m) const {
        return tile * m < count.load<i32>(0) ? experts.load<i32>(tile * 4) : -1;
    }
    LD_DEVICE i32 row_of_c(i64 row) const {
        const i32 token = tokens.load<i32>(row * 4);
        return token < rows ? token : -1;
    }
    LD_DEVICE i32 row_of_a(i64 row) const {
        const i32 token = row_of_c(row);
        return token < 0 ? -1 : token / static_cast<i32>(per_row);
    }
    LD_DEVICE float factor(i64 row) const { return router.at ? router.load<float>(row * 4) : 1.0f; }
};

// One expert's tensors, and the scales that multiply its sums.
template <class S> struct Matrix {
    Global weight, scales, zeros, global_scale, bias;

    LD_DEVICE Matrix(const Matrices& of, i64 expert) {
        const i64 groups = S::grouped ? of.k / S::group : 1;
        weight = of.weight + expert * (of.n * of.k * S::bits / 8);
        scales = of.scales + expert * (groups * of.n * S::scale_bytes);
        zeros = of.zeros + expert * (groups * of.n * S::bits / 8);
        global_scale = of.global_scale + (S::operand == Operand::s8 ? 0 : expert * 4);  // int16 scales share one
        bias = {of.bias.at ? (of.bias + expert * (of.n * 2)).at : 0};
    }
};

template <class S> LD_DEVICE Fragment<float, 4> mma(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<float, 4> c) {
    return S::operand == Operand::f16 ? mma_f16(a, b, c) : mma_bf16(a, b, c);
}

// A warp's part of one stage, for 16-bit activations.
template <class S>
LD_DEVICE void multiply16(Shared stage, const Weights<S>& weights, const Scales<S>& scales, Sums<S>& sums) {
    LD_UNROLL
    for (int turn = 0; turn < S::turns; ++turn) {
        const int step = weights.first() + turn;
        const Stored<S> words = weights.stored(stage, turn);
        const StepScales<S> factors = scales.of_step(stage, step);
        Fragment<u32, 4> a[S::strips];
        LD_UNROLL
        for (int strip = 0; strip < S::strips; ++strip) a[strip] = Rows<S>::fragment(stage, strip, step);
        LD_UNROLL
        for (int part = 0; part < S::parts; ++part) {
            const Fragment<u32, 2> b = factors.scaled(decoded<S>(words, part, factors.zero(part)), part);
            LD_UNROLL
            for (int strip = 0; strip < S::strips; ++strip)
                sums.at[strip][part] = mma<S>(a[strip], b, sums.at[strip][part]);
        }
    }
}

// What multiplies a row's sums: what was left out of 8-bit activations, and of weights.
template <class S>
LD_DEVICE float scale_of_row(const Matrices& of, const Matrix<S>& matrix, i32 row_of_a) {
    if constexpr (S::element == 2) {
        return 1.0f;
    } else {
        const float scale = row_of_a < 0 ? 0.0f : of.row_scales.load<float>(i64{row_of_a} * 4) * unit8<S>;
        if constexpr (S::operand == Operand::s8 && S::grouped)
            return scale * matrix.global_scale.template load<float>(0);
        else
            return scale;
    }
}

template <class S, class By> LD_DEVICE void gemm(const Matrices& of, const By& by) {
    const u32 tiles_n = static_cast<u32>(of.n) / S::n, splits = static_cast<u32>(of.splits);
    const u32 tiles_m = blocks() / (tiles_n * splits);
    const u32 tile_m = block() % tiles_m, tile_n = block() / tiles_m % tiles_n, split = block() / tiles_m / tiles_n;
    const i32 expert = by.expert(tile_m, S::m);
    if (expert < 0) return;

    const u32 row = tile_m * S::m, column = tile_n * S::n;
    const Rows<S> rows(of.a, of.stride_a, of.front, of.valid, [&](int r) { return by.row_of_a(row + r); });
    const Matrix<S> matrix(of, expert);
    const Weights<S> weights(matrix.weight, of.n, column + warp() % S::across * S::columns);
    const Scales<S> scales(matrix.scales, matrix.zeros, of.n, column);
    const u32 all = static_cast<u32>(of.k) / S::k, first = all * split / splits, end = all * (split + 1) / splits;
    const Shared shared = shared_memory();
    const auto copy = [&](u32 index, int slot) {
        const Shared stage = shared + slot * S::stage;
        const i32 k = static_cast<i32>(index) * S::k;
        rows.copy(stage, k);
        weights.copy(stage, k);
        scales.copy(stage, k);
    };

    Sums<S, SumOf<S>> running;
    set_zero<S>(running);
    LD_NO_UNROLL
    for (int ahead = 0; ahead < S::stages - 1; ++ahead) {
        if (first + ahead < end) copy(first + ahead, ahead);
        copy_commit();
    }
    int slot = 0;
    LD_NO_UNROLL
    for (u32 index = first; index < end; ++index) {
        copy_wait<S::stages - 2>();
        sync_block();  // all have their copies of this stage, and are done with the one before, whose slot is free now
        const int free = slot == 0 ? S::stages - 1 : slot - 1;
        if (index + S::stages - 1 < end) copy(index + S::stages - 1, free);
        copy_commit();
        if constexpr (S::element == 1)
            multiply8<S>(shared + slot * S::stage, weights, scales, running);
        else
            multiply16<S>(shared + slot * S::stage, weights, scales, running);
        slot = slot + 1 == S::stages ? 0 : slot + 1;
    }
    copy_wait<0>();
    sync_block();

    Sums<S> sums = floats<S>(running);
    add_warps<S>(shared, sums);
    if (splits > 1 &&
        !add_blocks<S>(shared, sums, of.partials, of.arrivals, i64{tile_m} * tiles_n + tile_n, split, splits))
        return;
    const Matrix<S> again(of, expert);  // what was not kept in registers beside the sums
    const Finish<S> finish(again.scales, again.global_scale, again.bias);
    const auto row_of = [&](int r) { return by.row_of_c(row + r); };
    store_results<S>(shared, Results{of.c, of.columns, of.stride_c}, column, sums, finish, row_of,
                     [&](int r) { return scale_of_row<S>(of, again, by.row_of_a(row + r)); },
                     [&](i32 to) { return to < 0 ? 0.0f : by.factor(to); });
}

}  // namespace ld
