// Each function puts what some device primitives make of the bytes in `of` into `to`, which holds zeros before. A block
// has 64 threads, two warps. Nothing here depends on which thread comes first, and all sums are exact, so that a GPU and
// the host must leave the same bytes. One kernel calls them all: a host compiler takes a second for each kernel.
#include "device.cuh"

namespace ld {

template <class T> LD_DEVICE void copy_each(Global to, Global of) {
    to.store<T>(thread() * sizeof(T), of.load<T>(thread() * sizeof(T)));
}

LD_DEVICE void memory(Global to, Global of) {
    copy_each<u8>(to, of);
    copy_each<u16>(to + 1024, of + 1024);
    copy_each<u32>(to + 2048, of + 2048);
    copy_each<u64>(to + 3072, of + 3072);
    copy_each<Quad>(to + 4096, of + 4096);
}

LD_DEVICE void shared(Global to, Global of) {
    Shared memory = shared_memory();
    memory.store(16 * thread(), of.load<Quad>(16 * thread()));
    sync_block();
    const u32 other = 63 - thread();
    to.store(16 * thread(), memory.load<Quad>(16 * other));
    to.store(1024 + 8 * thread(), memory.load<u64>(8 * other));
    to.store(2048 + 4 * thread(), (memory + 4).load<u32>(4 * other));
    to.store(3072 + 2 * thread(), memory.load<u16>(2 * other));
    to.store(4096 + thread(), memory.load<u8>(other));
    sync_block();
    memory.store(thread(), static_cast<u8>(thread()));
    memory.store(64 + 2 * thread(), static_cast<u16>(of.load<u16>(2 * thread())));
    memory.store(256 + 4 * thread(), of.load<u32>(4 * thread()));
    memory.store(512 + 8 * thread(), of.load<u64>(8 * thread()));
    sync_block();
    to.store(5120 + 16 * thread(), memory.load<Quad>(16 * other));
}

LD_DEVICE void atomics(Global to, Global of) {
    if (thread() == 0) to.store(8, ~u64{0});
    sync_block();
    atomic_add(to, 0, of.load<u32>(4 * thread()));
    atomic_add(to, 4, static_cast<float>(thread() % 7));
    atomic_min(to, 8, of.load<u64>(8 * thread()));
    to.store(1024 + 4 * thread(), atomic_add(to, 256 + 4 * thread(), thread()));
    to.store(2048 + 4 * thread(), atomic_swap_if(to, 512 + 4 * thread(), thread() % 2, thread() + 5));
}

// Block 0 waits for what block 1 has written.
LD_DEVICE void release(Global to, Global of) {
    const i64 flag = 4096, mine = 4 * thread();
    if (block() == 1) {
        to.store(mine, of.load<u32>(mine));
        sync_block();
        if (thread() == 0) store_release(to, flag, 1);
        return;
    }
    if (thread() == 0)
        while (load_acquire(to, flag) != 1) pause();
    sync_block();
    to.store(1024 + mine, to.load<u32>(mine) + 1);
}

LD_DEVICE void copies(Global to, Global of) {
    Shared memory = shared_memory();
    copy_async<16>(memory, 16 * thread(), of, 16 * thread(), thread() % 17);
    copy_commit();
    copy_async<8>(memory, 1024 + 8 * thread(), of, 8 * thread(), thread() % 9);
    copy_async<4>(memory, 2048 + 4 * thread(), of, 4 * thread(), thread() % 5);
    copy_commit();
    copy_wait<1>();
    sync_block();
    to.store(16 * thread(), memory.load<Quad>(1008 - 16 * thread()));
    copy_wait<0>();
    sync_block();
    for (u32 at = thread(); at < 768; at += threads()) to.store(1024 + 4 * at, memory.load<u32>(4 * at));
}

LD_DEVICE void indices(Global to, Global) {
    Global mine = to + 32 * (block() * threads() + thread());
    mine.store(0, thread());
    mine.store(4, threads());
    mine.store(8, block());
    mine.store(12, blocks());
    mine.store(16, lane());
    mine.store(20, warp());
}

LD_DEVICE void collectives(Global to, Global of) {
    const u32 value = of.load<u32>(4 * thread());
    Global mine = to + 64 * thread();
    mine.store(0, shfl(value, (thread() * 7 + 3) % 32));
    mine.store(4, shfl(value, 5));
    mine.store(8, shfl_xor(value, 1));
    mine.store(12, shfl_xor(value, 16));
    mine.store(16, shfl_xor(value, 21));
    mine.store(20, ballot(value & 1));
    Shared memory = shared_memory();
    memory.store(4 * thread(), value);
    sync_warp();
    mine.store(24, memory.load<u32>(4 * (thread() ^ 31)));
}

LD_DEVICE void words(Global to, Global of) {
    for (u32 at = thread(); at < 4096; at += threads()) {
        const u32 a = of.load<u32>(12 * at), b = of.load<u32>(12 * at + 4), c = of.load<u32>(12 * at + 8);
        Global made = to + 24 * at;
        made.store(0, permute_bytes(a, b, c));
        made.store(4, lop3<0xEA>(a, b, c));
        made.store(8, lop3<0x6A>(a, b, c));
        made.store(12, lop3<0x96>(a, b, c));
        made.store(16, lop3<0xCA>(a, b, c));
        made.store(20, lop3<0x1B>(a, b, c));
    }
}

// Every 16-bit code there, and 65536 floats back.
LD_DEVICE void conversions(Global to, Global of) {
    for (u32 code = thread(); code < 65536; code += threads()) {
        to.store(4 * code, half_to_float(static_cast<u16>(code)));
        to.store(262144 + 4 * code, bfloat16_to_float(static_cast<u16>(code)));
        const float value = of.load<float>(4 * code);
        to.store(524288 + 2 * code, float_to_half(value));
        to.store(655360 + 2 * code, float_to_bfloat16(value));
    }
}

template <int count> LD_DEVICE void put(Global to, Fragment<u32, count> found) {
    for (int index = 0; index < count; ++index) to.store(16 * thread() + 4 * index, found[index]);
}

LD_DEVICE void matrices(Global to, Global of) {
    Shared memory = shared_memory();
    memory.store(16 * thread(), of.load<Quad>(16 * thread()));
    sync_block();
    const i64 row = 16 * ((thread() * 5) % 64);
    put(to, ldmatrix<1>(memory, row));
    put(to + 1024, ldmatrix<2>(memory, row));
    put(to + 2048, ldmatrix<4>(memory, row));
    put(to + 3072, ldmatrix_transposed<1>(memory, row));
    put(to + 4096, ldmatrix_transposed<2>(memory, row));
    put(to + 5120, ldmatrix_transposed<4>(memory, row));
}

// A lane's operands: four words of a, two of b, two that fill, and four sums.
template <class T> struct Operands {
    Fragment<u32, 4> a;
    Fragment<u32, 2> b;
    Fragment<T, 4> c;
};

template <class T> LD_DEVICE Operands<T> operands(Global of) {
    Operands<T> found;
    for (int index = 0; index < 4; ++index) found.a[index] = of.load<u32>(48 * thread() + 4 * index);
    for (int index = 0; index < 2; ++index) found.b[index] = of.load<u32>(48 * thread() + 16 + 4 * index);
    for (int index = 0; index < 4; ++index) found.c[index] = of.load<T>(48 * thread() + 32 + 4 * index);
    return found;
}

template <class T> LD_DEVICE void put(Global to, Fragment<T, 4> found) {
    for (int index = 0; index < 4; ++index) to.store(16 * thread() + 4 * index, found[index]);
}

LD_DEVICE void products_f16(Global to, Global of) {
    const auto [a, b, c] = operands<float>(of);
    put(to, mma_f16(a, b, c));
}

LD_DEVICE void products_bf16(Global to, Global of) {
    const auto [a, b, c] = operands<float>(of);
    put(to, mma_bf16(a, b, c));
}

LD_DEVICE void products_s8(Global to, Global of) {
    const auto [a, b, c] = operands<i32>(of);
    put(to, mma_s8(a, b, c));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
LD_DEVICE void products_e4m3(Global to, Global of) {
    const auto [a, b, c] = operands<float>(of);
    put(to, mma_e4m3(a, b, c));
}
#endif

LD_KERNEL(primitives, 64)(Global to, Global of, i64 which) {
    switch (which) {
        case 0: return memory(to, of);
        case 1: return shared(to, of);
        case 2: return atomics(to, of);
        case 3: return release(to, of);
        case 4: return copies(to, of);
        case 5: return indices(to, of);
        case 6: return collectives(to, of);
        case 7: return words(to, of);
        case 8: return conversions(to, of);
        case 9: return matrices(to, of);
        case 10: return products_f16(to, of);
        case 11: return products_bf16(to, of);
        case 12: return products_s8(to, of);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
        case 13: return products_e4m3(to, of);
#endif
    }
}

}  // namespace ld
