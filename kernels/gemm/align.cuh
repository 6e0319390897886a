// Tokens aligned by expert. A token and one of the experts that it chose are a pair; pair p is of token p / top_k. Pairs
// are sorted by expert, in their own order within each, and each expert's are filled up to whole tiles of rows, so that
// a tile of the product has the weights of one expert. An expert that no pair chose has no tile.
//
// One launch and no workspace: every block counts all pairs, and places those of its own slice.
#pragma once
#include "device.cuh"

namespace ld {

// Which expert of this rank each pair goes to.
struct Choices {
    Global ids;      // [pairs] of id_bytes each, signed
    i64 id_bytes;    // 4 or 8
    i64 pairs;
    Global map;      // [ids_end] int32: the expert of this rank that an id stands for, or -1; at 0 where it is the id
    i64 ids_end;     // no id reaches it
    u32 experts;     // of this rank

    // `experts` where the pair goes to none of them: one of another rank, an id that stands for nothing, or no pair.
    LD_DEVICE u32 operator[](i64 pair) const {
        if (pair >= pairs) return experts;
        const u64 id = id_bytes == 8 ? ids.load<u64>(pair * 8) : ids.load<u32>(pair * 4);
        if (id >= static_cast<u64>(ids_end)) return experts;
        const u32 local = map.at ? map.load<u32>(static_cast<i64>(id) * 4) : static_cast<u32>(id);
        return local < experts ? local : experts;
    }
};

// A warp that looks at a pair in each lane: the lanes whose pairs go to the same expert as this lane's.
struct Peers {
    u32 lanes;
    LD_DEVICE Peers(u32 expert, u32 experts) : lanes(~0u) {
#pragma unroll 1
        for (u32 bit = 1; bit <= experts; bit += bit) {
            const bool has = expert & bit;
            const u32 with = ballot(has);
            lanes &= has ? with : ~with;
        }
    }
    LD_DEVICE u32 before() const { return count_ones(lanes & ((1u << lane()) - 1)); }
    LD_DEVICE u32 count() const { return count_ones(lanes); }
};

// A block's shared memory: a number for each warp and expert, then two for each expert, then one for each warp.
struct Counts {
    Shared memory;
    u32 experts;

    LD_DEVICE Shared of_warp(u32 warp) const { return memory + warp * experts * 4; }
    LD_DEVICE Shared first_tiles() const { return of_warp(threads() / 32); }
    LD_DEVICE Shared totals() const { return first_tiles() + experts * 4; }
    LD_DEVICE Shared sums() const { return totals() + experts * 4; }

    LD_DEVICE void clear() const {
#pragma unroll 1
        for (u32 at = thread(); at < threads() / 32 * experts; at += threads()) memory.store<u32>(at * 4, 0);
        sync_block();
    }

    // Counts the pairs that lanes look at, in this warp's row.
    LD_DEVICE void add(u32 expert) const {
        const Peers peers(expert, experts);
        const Shared row = of_warp(warp());
        if (expert < experts && peers.before() == 0)
            row.store<u32>(expert * 4, row.load<u32>(expert * 4) + peers.count());
        sync_warp();
    }

    // All warps' counts of an expert, 0 beyond the last one.
    LD_DEVICE u32 sum(u32 expert) const {
        u32 found = 0;
        if (expert < experts)
#pragma unroll 4
            for (u32 warp = 0; warp < threads() / 32; ++warp) found += of_warp(warp).load<u32>(expert * 4);
        return found;
    }

    // Each warp's count of an expert becomes the sum of `first` and those of earlier warps.
    LD_DEVICE void start(u32 expert, u32 first) const {
        if (expert >= experts) return;
#pragma unroll 4
        for (u32 warp = 0; warp < threads() / 32; ++warp) {
            const u32 count = of_warp(warp).load<u32>(expert * 4);
            of_warp(warp).store<u32>(expert * 4, first);
            first += count;
        }
    }
};

// How many pairs of a stretch go to the expert of this thread's number.
LD_DEVICE u32 counted(const Choices& choices, const Counts& counts, i64 first, i64 end) {
    if (first >= end) return 0;
    counts.clear();
    constexpr u32 STRIPS = 4;  // under way at once
    for (i64 at = first + warp() * STRIPS * 32; at < end; at += threads() * STRIPS) {
        u32 experts[STRIPS];
        for (u32 strip = 0; strip < STRIPS; ++strip) {
            const i64 pair = at + strip * 32 + lane();
            experts[strip] = pair < end ? choices[pair] : choices.experts;
        }
        for (u32 strip = 0; strip < STRIPS; ++strip) counts.add(experts[strip]);
    }
    sync_block();
    const u32 found = counts.sum(thread());
    sync_block();
    return found;
}

// The sum of the numbers of all threads before this one.
LD_DEVICE u32 sum_before(u32 number, Shared sums) {
    u32 sum = number;
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 other = shfl(sum, static_cast<int>((lane() - step) % 32));
        if (lane() >= step) sum += other;
    }
    if (lane() == 31) sums.store<u32>(warp() * 4, sum);
    sync_block();
    u32 before = 0;
#pragma unroll 4
    for (u32 earlier = 0; earlier < warp(); ++earlier) before += sums.load<u32>(earlier * 4);
    return before + sum - number;
}

struct Alignment {
    Global tokens;   // [count] pairs, and the number of all pairs where a tile is filled up
    Global experts;  // [count / tile] the expert of each tile
    Global count;    // [1] how many rows the tiles have
    Global local;    // [pairs] the expert of each pair, or -1: all int32
    u32 tile;        // rows of a tile
};

// `slice`: pairs of a warp, a multiple of 32. No more experts than threads.
LD_DEVICE void align(const Choices& choices, const Alignment& to, i64 slice) {
    const Counts counts{shared_memory(), choices.experts};
    const i64 block_slice = slice * (threads() / 32), first = block() * block_slice;
    const i64 end = first + block_slice < choices.pairs ? first + block_slice : choices.pairs;
    u32 before = 0, total = 0;  // of the expert of this thread's number
#pragma unroll 1                // twice the same instructions
    for (u32 turn = 0; turn < 2; ++turn) {
        before = total;
        total += counted(choices, counts, turn ? end : 0, turn ? choices.pairs : first);
    }

    counts.clear();
    const i64 own = first + warp() * slice;
#pragma unroll 1
    for (i64 at = own; at < own + slice; at += 32) counts.add(choices[at + lane()]);
    sync_block();

    const u32 expert = thread();
    total += counts.sum(expert);
    const u32 tiles = (total + to.tile - 1) / to.tile, first_tile = sum_before(tiles, counts.sums());
    counts.start(expert, first_tile * to.tile + before);
    if (expert < choices.experts) {
        counts.first_tiles().store<u32>(expert * 4, first_tile);
        counts.totals().store<u32>(expert * 4, total);
    }
    if (block() == 0 && thread() == threads() - 1) to.count.store<u32>(0, (first_tile + tiles) * to.tile);
    sync_block();

    const Shared next = counts.of_warp(warp());
#pragma unroll 1
    for (i64 at = own; at < own + slice; at += 32) {
        const i64 pair = at + lane();
        const u32 chosen = choices[pair];
        const bool goes = chosen < choices.experts;
        const Peers peers(chosen, choices.experts);
        const u32 place = goes ? next.load<u32>(chosen * 4) : 0;
        sync_warp();
        if (goes && peers.before() == 0) next.store<u32>(chosen * 4, place + peers.count());
        sync_warp();
        if (goes) to.tokens.store<u32>((place + peers.before()) * 4ll, static_cast<u32>(pair));
        if (pair < choices.pairs) to.local.store<u32>(pair * 4, goes ? chosen : ~0u);
    }

    const u32 warps = threads() / 32;
    for (u32 one = block() * warps + warp(); one < choices.experts; one += blocks() * warps) {
        const u32 from = counts.first_tiles().load<u32>(one * 4), pairs = counts.totals().load<u32>(one * 4);
        const u32 needed = (pairs + to.tile - 1) / to.tile;
#pragma unroll 1
        for (u32 tile = lane(); tile < needed; tile += 32) to.experts.store<u32>((from + tile) * 4ll, one);
#pragma unroll 1
        for (u32 row = pairs + lane(); row < needed * to.tile; row += 32)
            to.tokens.store<u32>((i64{from} * to.tile + row) * 4, static_cast<u32>(choices.pairs));
    }
}

}  // namespace ld
