// A: rows of the caller's tensor, by asynchronous copies into shared memory, and out of it as fragments.
//
// In shared memory the 16-byte chunks of a row change places by the row's number, so that the eight rows of a matrix
// lie in different banks.
#pragma once
#include "gemm/shape.cuh"

namespace ld {

template <class S> class Rows {
  public:
    // `row_of(r)` is the caller's row for row r of the block, or -1: then all of it is zeros. Of the k columns the
    // tensor has `valid`, after `front` columns of zeros; its rows are `stride` elements apart.
    template <class RowOf>
    LD_DEVICE Rows(Global a, i64 stride, i64 front, i64 valid, const RowOf& row_of)
        : a_(a), stride_(stride * S::element), front_(static_cast<i32>(front) * S::element),
          valid_(static_cast<i32>(valid) * S::element) {
        LD_UNROLL
        for (int i = 0; i < COPIES; ++i) row_[i] = is_mine(i) ? row_of(row(i)) : -1;
    }

    // Starts to copy the inputs from `k` on.
    LD_DEVICE void copy(Shared stage, i32 k) const {
        const int chunk = thread() % CHUNKS;
        const i32 column = k * S::element + chunk * 16 - front_;
        const i32 left = column < 0 ? 0 : valid_ - column;
        const u32 there = left < 0 ? 0 : left < 16 ? static_cast<u32>(left) : 16;
        LD_UNROLL
        for (int i = 0; i < COPIES; ++i)
            if (is_mine(i))
                copy_async<16>(stage, place(row(i), chunk), a_, row_[i] * stride_ + column, row_[i] < 0 ? 0 : there);
    }

    // The fragment of 16 rows from `strip` on, in one step.
    LD_DEVICE static Fragment<u32, 4> fragment(Shared stage, int strip, int step) {
        const int within = lane();
        return ldmatrix<4>(stage, place(strip * S::strip + within % 16, step * 2 + within / 16));
    }

  private:
    static constexpr int CHUNKS = S::k * S::element / 16, AT_ONCE = S::threads / CHUNKS;
    static constexpr int COPIES = (S::m + AT_ONCE - 1) / AT_ONCE;
    static_assert(S::threads % CHUNKS == 0, "a thread copies the same chunk of several rows");

    LD_DEVICE static int row(int i) { return thread() / CHUNKS + i * AT_ONCE; }
    LD_DEVICE static bool is_mine(int i) { return S::m % AT_ONCE == 0 || row(i) < S::m; }

    LD_DEVICE static int place(int row, int chunk) {
        constexpr int turning = CHUNKS < 8 ? CHUNKS : 8, rows_per_line = 8 / turning;
        return (row * CHUNKS + (chunk ^ row / rows_per_line % turning)) * 16;
    }

    Global a_;
    i64 stride_;  // bytes, as the next two
    i32 front_, valid_;
    i32 row_[COPIES];
};

}  // namespace ld
