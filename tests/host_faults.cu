// Kernels that are right where `fault` is 0, and wrong in one way where it is the number of a fault.
#include "device.cuh"

namespace ld {

enum Fault : i64 {
    // multiply
    PAST_THE_ROWS = 1,
    WEAK_WAIT,
    NO_SYNC_AFTER_WAIT,
    NO_SYNC_BEFORE_REUSE,
    SYNC_IN_ONE_WARP,
    NO_SWIZZLE,
    ROW_NOT_ALIGNED,
    // reach
    LOAD_PAST_THE_END,
    LOAD_BEFORE_THE_START,
    LOAD_OF_NOTHING,
    STORE_TO_AN_INPUT,
    LOAD_NOT_ALIGNED,
    SHARED_LOAD_PAST_THE_END,
    SHARED_STORE_NOT_ALIGNED,
    ATOMIC_PAST_THE_END,
    COPY_OF_TOO_MUCH,
    // meet
    RETURN_BEFORE_SYNC,
    WARP_RETURNS_BEFORE_SYNC,
    SHFL_IN_A_BRANCH,
    TWO_COLLECTIVES,
    SYNC_WHILE_OTHERS_SHFL,
    NO_SYNC_WARP,
    // copy
    SOURCE_OVERWRITTEN,
    // chain
    NEVER_RELEASED,
    PLAIN_LOADS,
    // add_up
    LOST_UPDATE,
    // locals
    LOCAL_PAST_THE_END,
    SHIFT_TOO_FAR,
};

constexpr int TILE = 64, CHUNKS = TILE / 8, STAGE = 2 * 16 * TILE * 2;

// out[rows][16] float = a[rows][depth] half * b[16][depth] half, transposed; rows <= 16, depth in tiles of 64. Two
// warps, eight columns each; two stages of shared memory, 16-byte chunks swizzled by their row.
LD_KERNEL(multiply, 64)(Global a, Global b, Global out, i64 rows, i64 depth, i64 fault) {
    const Shared stages = shared_memory();
    const auto fetch = [&](i64 tile) {
        if (tile * TILE < depth) {
            const Shared stage = stages + tile % 2 * STAGE;
            for (i64 at = thread(); at < 2 * 16 * CHUNKS; at += threads()) {
                const i64 row = at / CHUNKS % 16, chunk = at % CHUNKS;
                const bool of_a = at < 16 * CHUNKS;
                const bool there = !of_a || row < rows || fault == PAST_THE_ROWS;
                const i64 from = (row * depth + tile * TILE + chunk * 8) * 2;
                const i64 to = (at / CHUNKS * CHUNKS + (chunk ^ row % 8)) * 16;
                copy_async<16>(stage, to, of_a ? a : b, from, there ? 16 : 0);
            }
        }
        copy_commit();
    };
    Fragment<float, 4> sums{};
    fetch(0);
    for (i64 tile = 0; tile * TILE < depth; ++tile) {
        fetch(tile + 1);
        if (fault == WEAK_WAIT)
            copy_wait<2>();
        else
            copy_wait<1>();
        if (fault != NO_SYNC_AFTER_WAIT) sync_block();
        const Shared stage = stages + tile % 2 * STAGE;
        for (u32 step = 0; step < TILE / 16; ++step) {
            const u32 a_row = lane() % 16, a_chunk = 2 * step + lane() / 16;
            const u32 b_row = warp() * 8 + lane() % 8, b_chunk = 2 * step + lane() / 8 % 2;
            const u32 a_turn = fault == NO_SWIZZLE ? 0 : a_row % 8, b_turn = b_row % 8;
            const u32 askew = fault == ROW_NOT_ALIGNED && lane() == 3 ? 8 : 0;
            const auto left = ldmatrix<4>(stage, (a_row * CHUNKS + (a_chunk ^ a_turn)) * 16 + askew);
            const auto right = ldmatrix<2>(stage, ((16 + b_row) * CHUNKS + (b_chunk ^ b_turn)) * 16);
            sums = mma_f16(left, right, sums);
        }
        if (fault == SYNC_IN_ONE_WARP && warp() == 1) sync_block();
        if (fault != NO_SYNC_BEFORE_REUSE) sync_block();
    }
    for (u32 i = 0; i < 4; ++i) {
        const u32 row = lane() / 4 + i / 2 * 8, column = warp() * 8 + lane() % 4 * 2 + i % 2;
        if (row < rows) out.store<float>((row * 16 + column) * 4, sums[i]);
    }
}

// One access, by thread 40 of block 1, of 64 bytes of `in` or `out` or of 256 bytes of shared memory.
LD_KERNEL(reach, 64)(Global in, Global out, i64 fault) {
    const Shared shared = shared_memory();
    if (block() != 1 || thread() != 40) return;
    out.store<u32>(60, in.load<u32>(60));
    shared.store<Quad>(240, (in + 64).load<Quad>(-16));
    (shared + -32).store<u64>(32, 0);
    switch (fault) {
        case LOAD_PAST_THE_END: in.load<u64>(60); break;
        case LOAD_BEFORE_THE_START: in.load<u8>(-1); break;
        case LOAD_OF_NOTHING: Global{4096}.load<u32>(8); break;
        case STORE_TO_AN_INPUT: in.store<u8>(3, 0); break;
        case LOAD_NOT_ALIGNED: in.load<Quad>(8); break;
        case SHARED_LOAD_PAST_THE_END: shared.load<u16>(256); break;
        case SHARED_STORE_NOT_ALIGNED: shared.store<u32>(18, 0); break;
        case ATOMIC_PAST_THE_END: atomic_add(out, 64, 1u); break;
        case COPY_OF_TOO_MUCH: copy_async<8>(shared, 0, in, 0, 9); break;
    }
}

// Each thread stores its word and loads that of another one, in its own warp and then in the block.
LD_KERNEL(meet, 64)(Global in, Global out, i64 fault) {
    const Shared words = shared_memory();
    words.store<u32>(4 * thread(), in.load<u32>(4 * thread()));
    if (fault != NO_SYNC_WARP) sync_warp();
    u32 sum = words.load<u32>(4 * (thread() ^ 31));
    if (fault == RETURN_BEFORE_SYNC && thread() == 0) return;
    if (fault == WARP_RETURNS_BEFORE_SYNC && warp() == 1) return;
    if (fault != SHFL_IN_A_BRANCH || lane() < 16) sum += shfl(sum, 3);
    if (fault == TWO_COLLECTIVES && lane() == 9) sum += ballot(true);
    sum += shfl_xor(sum, 1);
    if (fault == SYNC_WHILE_OTHERS_SHFL && lane() == 9) sync_block();
    sum += shfl_xor(sum, 2);
    sync_block();
    out.store<u32>(4 * thread(), sum + words.load<u32>(4 * (63 - thread())));
}

// Copies words to out, by way of shared memory, and counts them up.
LD_KERNEL(copy, 32)(Global words, Global out, i64 fault) {
    const Shared mine = shared_memory() + 4 * thread();
    const u32 word = words.load<u32>(4 * thread());
    copy_async<4>(mine, 0, words, 4 * thread());
    copy_commit();
    if (fault == SOURCE_OVERWRITTEN) words.store<u32>(4 * thread(), word + 1);
    copy_wait<0>();
    words.store<u32>(4 * thread(), word + 1);
    out.store<u32>(4 * thread(), mine.load<u32>(0));
}

// out[place] = numbers[0] + ... + numbers[place]: each block waits for the one before it.
LD_KERNEL(chain, 32)(Global numbers, Global out, Global turn, i64 backwards, i64 fault) {
    const u32 place = backwards ? blocks() - 1 - block() : block();
    if (thread() != 0) return;
    if (fault == PLAIN_LOADS)
        while (turn.load<u32>(0) != place + 1) continue;
    while (load_acquire(turn, 0) != place) pause();
    const u32 before = place == 0 ? 0 : out.load<u32>(4 * (place - 1));
    out.store<u32>(4 * place, before + numbers.load<u32>(4 * place));
    if (fault != NEVER_RELEASED) store_release(turn, 0, place + 1);
}

LD_KERNEL(add_up, 32)(Global numbers, Global out, i64 fault) {
    const u32 number = numbers.load<u32>(4 * (block() * threads() + thread()));
    if (fault == LOST_UPDATE)
        out.store<u32>(0, out.load<u32>(0) + number);
    else
        atomic_add(out, 0, number);
}

LD_KERNEL(locals, 32)(Global out, i64 fault) {
    u32 local[8];
    for (u32 i = 0; i < 8; ++i) local[i] = i << (fault == SHIFT_TOO_FAR ? 30 + i : i);
    out.store<u32>(4 * thread(), local[thread() % 8 + (fault == LOCAL_PAST_THE_END ? 8 : 0)]);
}

// Each thread does as it is told, step by step: a word for what (test_host.py), place and width.
LD_KERNEL(script, 64)(Global words, i64 steps) {
    const Shared shared = shared_memory();
    for (i64 step = 0; step < steps; ++step) {
        const u32 word = words.load<u32>(4 * (step * threads() + thread()));
        const u32 place = word >> 8 & 255, width = word >> 16;
        switch (word & 255) {
            case 1:
                if (width == 1) shared.load<u8>(place);
                if (width == 2) shared.load<u16>(place);
                if (width == 4) shared.load<u32>(place);
                break;
            case 2:
                if (width == 1) shared.store<u8>(place, 0);
                if (width == 2) shared.store<u16>(place, 0);
                if (width == 4) shared.store<u32>(place, 0);
                break;
            case 3: sync_warp(); break;
            case 4: sync_block(); break;
            case 5: ballot(true); break;
        }
    }
}

// One access of a warp: lane l loads `width` bytes at places[l] of `bytes`, which also are the block's shared memory.
// Lanes with a negative place do nothing.
template <class T, class Memory> LD_DEVICE u32 touched(Memory memory, i64 place) {
    memory.template load<T>(place);
    return 1;
}

template <class Memory> LD_DEVICE u32 touch_one(Memory memory, i64 place, i64 width) {
    if (place < 0) return 0;
    switch (width) {
        case 1: return touched<u8>(memory, place);
        case 2: return touched<u16>(memory, place);
        case 4: return touched<u32>(memory, place);
        case 8: return touched<u64>(memory, place);
        default: return touched<Quad>(memory, place);
    }
}

LD_KERNEL(touch, 32)(Global places, Global bytes, i64 of_shared, i64 width) {
    const i64 place = places.load<i64>(8 * thread());
    if (of_shared)
        touch_one(shared_memory(), place, width);
    else
        touch_one(bytes, place, width);
}

}  // namespace ld
