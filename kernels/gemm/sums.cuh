// Sums: of the warps of a block that share its inputs, of the blocks that share a tile's, and out to the caller's rows.
// Always in the same order, so the same call gives the same bits.
#pragma once
#include "gemm/scales.cuh"
#include "gemm/shape.cuh"

namespace ld {

// What a lane holds of its warp's m x 64 results: of part p the columns 2 (lane % 4) and the next, in rows lane / 4
// (the first two) and lane / 4 + 8 of each strip.
template <class S, class Sum = float> struct Sums {
    Fragment<Sum, 4> at[S::strips][S::parts];
};

// The same 16 bytes as one access.
struct alignas(16) Four {
    Fragment<float, 4> sums;
};

struct alignas(8) Two {
    float first, second;
};

template <class S, class Do> LD_DEVICE void each_part(const Do& work) {
    LD_UNROLL
    for (int strip = 0; strip < S::strips; ++strip)
        LD_UNROLL
        for (int part = 0; part < S::parts; ++part) work(strip, part);
}

template <class S, class Sum> LD_DEVICE void set_zero(Sums<S, Sum>& sums) {
    each_part<S>([&](int strip, int part) { sums.at[strip][part] = {}; });
}

// Sums of integers, each rounded once, as floats.
template <class S> LD_DEVICE Sums<S> floats(const Sums<S, i32>& sums) {
    Sums<S> made;
    each_part<S>([&](int strip, int part) {
        LD_UNROLL
        for (int i = 0; i < 4; ++i) made.at[strip][part][i] = static_cast<float>(sums.at[strip][part][i]);
    });
    return made;
}

template <class S> LD_DEVICE const Sums<S>& floats(const Sums<S>& sums) { return sums; }

// `Memory` is Shared or Global: a warp's sums stand there lane by lane.
template <class S, class Memory> LD_DEVICE void put(const Memory& to, const Sums<S>& sums) {
    each_part<S>([&](int strip, int part) {
        to.store((strip * S::parts + part) * 512 + lane() * 16, Four{sums.at[strip][part]});
    });
}

template <class S, class Memory> LD_DEVICE void add(const Memory& from, Sums<S>& sums) {
    each_part<S>([&](int strip, int part) {
        const Four more = from.template load<Four>((strip * S::parts + part) * 512 + lane() * 16);
        LD_UNROLL
        for (int i = 0; i < 4; ++i) sums.at[strip][part][i] += more.sums[i];
    });
}

template <class S> constexpr int warp_sums = S::strips * S::parts * 512;  // bytes

// Adds up the sums of the warps of each column, by halves: the first of them holds them afterwards.
template <class S> LD_DEVICE void add_warps(Shared shared, Sums<S>& sums) {
    const int row = warp() / S::across, column = warp() % S::across;
    LD_UNROLL
    for (int half = S::depth / 2; half > 0; half /= 2) {
        const Shared given = shared + (row % half * S::across + column) * warp_sums<S>;
        if (row >= half && row < 2 * half) put<S>(given, sums);
        sync_block();
        if (row < half) add<S>(given, sums);
        sync_block();
    }
}

// Adds up what the blocks of a tile have: the one that comes last holds it afterwards, and is told so. The counter is 0
// before and afterwards. Nobody waits for anybody.
template <class S>
LD_DEVICE bool add_blocks(Shared shared, Sums<S>& sums, Global partials, Global arrivals, i64 tile, u32 split,
                          u32 splits) {
    const bool holds = warp() < S::across;
    const auto part = [&](u32 of) { return partials + ((tile * splits + of) * S::across + warp()) * warp_sums<S>; };
    if (holds) put<S>(part(split), sums);
    sync_block();
    if (thread() == 0) {
        const u32 before = atomic_add_ordered(arrivals, tile * 4, 1);
        if (before + 1 == splits) arrivals.store<u32>(tile * 4, 0);
        shared.store<u32>(0, before);
    }
    sync_block();
    if (shared.load<u32>(0) + 1 != splits) return false;
    if (holds) {
        set_zero<S>(sums);
        LD_NO_UNROLL
        for (u32 of = 0; of < splits; ++of) add<S>(part(of), sums);
    }
    sync_block();
    return true;
}

// Where results go. `row_of(r)` is the caller's row for row r of the block, or -1 for none; `columns` says the same for
// each column of the matrix, as int32.
struct Results {
    Global to, columns;
    i64 stride;  // elements from row to row
};

// Eight results of a row to the caller's columns: at once where they lie together there.
LD_DEVICE void store_eight(const Results& results, i64 row, i64 column, const Quad& eight) {
    const Quad low = results.columns.load<Quad>(column * 4), high = results.columns.load<Quad>(column * 4 + 16);
    const u32 places[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const u32 words[4] = {eight.x, eight.y, eight.z, eight.w};
    bool together = static_cast<i32>(places[0]) >= 0;
    LD_UNROLL
    for (u32 i = 1; i < 8; ++i) together = together && places[i] == places[0] + i;
    const i64 first = (row * results.stride + places[0]) * 2;
    if (together && (results.to.at + first) % 16 == 0) return results.to.store(first, eight);
    LD_UNROLL
    for (int i = 0; i < 8; ++i)
        if (static_cast<i32>(places[i]) >= 0)
            results.to.store((row * results.stride + places[i]) * 2, static_cast<u16>(words[i / 2] >> 16 * (i % 2)));
}

// Where sums stand in rows in shared memory, in float32: rows are 32 bytes longer than that, for the banks.
template <class S> LD_DEVICE void put_rows(Shared shared, const Sums<S>& sums) {
    each_part<S>([&](int strip, int part) {
        LD_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = strip * S::strip + lane() / 4 + 8 * half;
            const int column = warp() * S::columns + part * 8 + lane() % 4 * 2;
            const Fragment<float, 4>& four = sums.at[strip][part];
            shared.store(row * S::result_row + column * 4, Two{four[2 * half], four[2 * half + 1]});
        }
    });
}

// Eight of a row. Of eight lanes that read 256 bytes in two turns, half begin with their second 16.
template <class S> LD_DEVICE Fragment<float, 8> eight_of_row(Shared shared, int row, int eight) {
    const int second = eight / 4 % 2;
    const Shared from = shared + (row * S::result_row + eight * 32);
    const Four one = from.load<Four>(second * 16), other = from.load<Four>(16 - second * 16);
    Fragment<float, 8> made;
    LD_UNROLL
    for (int i = 0; i < 4; ++i) {
        made[i] = second ? other.sums[i] : one.sums[i];
        made[i + 4] = second ? one.sums[i] : other.sums[i];
    }
    return made;
}

template <Operand type> LD_DEVICE u32 rounded_pair(float first, float second) {
    return from_float<type>(first) | from_float<type>(second) << 16;
}

// The block's results from the warps that hold the sums to the caller's rows. scale(row) multiplies a row's sums,
// `finish` makes results of them, which are multiplied with factor(the caller's row) at last; `column` is the block's
// first one.
template <class S, class RowOf, class Scale, class Factor>
LD_DEVICE void store_results(Shared shared, const Results& results, i64 column, const Sums<S>& sums,
                             const Finish<S>& finish, const RowOf& row_of, const Scale& scale, const Factor& factor) {
    constexpr int in_row = S::n / 8;
    if (warp() < S::across) put_rows<S>(shared, sums);
    sync_block();
    LD_NO_UNROLL
    for (int chunk = thread(); chunk < S::m * in_row; chunk += S::threads) {
        const int row = chunk / in_row, eight = chunk % in_row;
        const i32 to = row_of(row);
        if (to < 0) continue;
        const i64 first = column + eight * 8;
        const Fragment<float, 8> made = finish(eight_of_row<S>(shared, row, eight), first, scale(row), factor(to));
        store_eight(results, to, first,
                    Quad{rounded_pair<S::result>(made[0], made[1]), rounded_pair<S::result>(made[2], made[3]),
                         rounded_pair<S::result>(made[4], made[5]), rounded_pair<S::result>(made[6], made[7])});
    }
}

}  // namespace ld
