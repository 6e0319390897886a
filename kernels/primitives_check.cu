// One kernel for each primitive, so that its two bodies can be held against each other. Each takes blocks of 64 threads
// with 4096 bytes of shared memory; a block reads 4096 bytes of `in` and writes 4096 bytes of `out`, which begin as
// zeros: a row of 64 bytes for each thread. All bytes are the same on a GPU and on the host, but for check_mma_f16,
// _bf16 and _e4m3, where sums that are not exact are rounded in other ways, and for functions of floats, which are
// near their value on both.
#include "device.cuh"

namespace ld {

// A thread's row of the block's part.
LD_DEVICE Global row(Global of) { return of + (i64{block()} * 4096 + thread() * 64); }

LD_KERNEL(check_global, 64)(Global in, Global out) {
    const Global from = row(in), to = row(out);
    to.store<u8>(0, from.load<u8>(1));
    to.store<u16>(2, from.load<u16>(6));
    to.store<u32>(4, from.load<u32>(12));
    to.store<u64>(8, from.load<u64>(24));
    to.store<Quad>(16, from.load<Quad>(48));
    to.store<float>(32, from.load<float>(4));
}

LD_KERNEL(check_shared, 64)(Global in, Global out) {
    const Global from = row(in), to = row(out);
    const Shared mine = shared_memory() + thread() * 64, next = shared_memory() + (thread() + 1) % 64 * 64;
    mine.store<u8>(0, from.load<u8>(1));
    mine.store<u16>(2, from.load<u16>(6));
    mine.store<u32>(4, from.load<u32>(12));
    mine.store<u64>(8, from.load<u64>(24));
    mine.store<Quad>(16, from.load<Quad>(48));
    sync_block();
    to.store<u8>(0, next.load<u8>(0));
    to.store<u16>(2, next.load<u16>(2));
    to.store<u32>(4, next.load<u32>(4));
    to.store<u64>(8, next.load<u64>(8));
    to.store<Quad>(16, next.load<Quad>(16));
}

LD_KERNEL(check_indices, 64)(Global, Global out) {
    const Global to = row(out);
    to.store<Quad>(0, Quad{thread(), threads(), block(), blocks()});
    to.store<u32>(16, lane());
    to.store<u32>(20, warp());
}

LD_KERNEL(check_sync_warp, 64)(Global in, Global out) {
    const Shared mine = shared_memory() + thread() * 4, other = shared_memory() + (thread() ^ 5) * 4;
    mine.store<u32>(0, row(in).load<u32>(0));
    sync_warp();
    row(out).store<u32>(0, other.load<u32>(0));
}

LD_KERNEL(check_shfl, 64)(Global in, Global out) {
    const Global from = row(in), to = row(out);
    const u32 value = from.load<u32>(0);
    to.store<u32>(0, shfl(value, static_cast<int>(from.load<u32>(4))));
    to.store<u32>(4, shfl(value, 7));
    to.store<u32>(8, shfl_xor(value, 1));
    to.store<u32>(12, shfl_xor(value, 22));
}

LD_KERNEL(check_ballot, 64)(Global in, Global out) {
    row(out).store<u32>(0, ballot(row(in).load<u32>(0) % 3 == 0));
    row(out).store<u32>(4, ballot(row(in).load<u8>(0) > 200));
}

// The order in which threads come to an atomic operation is open: only what they leave behind is compared.
LD_KERNEL(check_atomics, 64)(Global in, Global out) {
    const Global from = row(in), to = row(out), common = out + (i64{block()} * 4096 + 32);
    if (thread() == 0) common.store<u64>(8, ~0ull);
    sync_block();
    atomic_add(common, 0, from.load<u32>(0));
    atomic_add(common, 4, static_cast<float>(from.load<u8>(4)));
    atomic_min(common, 8, from.load<u64>(8));
    to.store<u32>(0, from.load<u32>(16) % 2);
    to.store<u32>(4, atomic_swap_if(to, 0, 1, from.load<u32>(20)));
    to.store<u32>(8, atomic_add(to, 0, from.load<u32>(24)));
}

// Of a block's threads each finds another number before its own; the sum stands in the middle of the block's part.
LD_KERNEL(check_atomic_add_ordered, 64)(Global in, Global out) {
    const Global common = out + i64{block()} * 4096;
    const u32 before = atomic_add_ordered(common, 32, 1);
    common.store<u32>((before % 64) * 64, 1);
    atomic_add_ordered(common, 36, row(in).load<u32>(0));
}

// The first warp hands each of its words to the second one.
LD_KERNEL(check_release, 64)(Global in, Global out) {
    const Global message = out + (i64{block()} * 4096 + lane() * 64);
    if (warp() == 0) {
        message.store<u32>(0, row(in).load<u32>(0));
        store_release(message, 4, 1);
    } else {
        while (load_acquire(message, 4) == 0) pause();
        row(out).store<u32>(0, message.load<u32>(0));
    }
}

LD_KERNEL(check_copy_async, 64)(Global in, Global out) {
    const Shared mine = shared_memory() + thread() * 64;
    mine.store<u32>(28, 0);
    copy_async<16>(mine, 0, row(in), 16);
    copy_async<8>(mine, 16, row(in), 40);
    copy_commit();
    copy_async<4>(mine, 24, row(in), 4);
    copy_commit();
    copy_async<16>(mine, 32, row(in), 0, row(in).load<u8>(0) % 17);
    copy_async<8>(mine, 48, row(in), 8, row(in).load<u8>(1) % 9);
    copy_async<4>(mine, 56, row(in), 16, row(in).load<u8>(2) % 5);
    copy_async<4>(mine, 60, row(in), 16, 0);
    copy_commit();
    copy_wait<1>();
    row(out).store<Quad>(0, mine.load<Quad>(0));
    row(out).store<Quad>(16, mine.load<Quad>(16));
    copy_wait<0>();
    row(out).store<Quad>(32, mine.load<Quad>(32));
    row(out).store<Quad>(48, mine.load<Quad>(48));
}

LD_KERNEL(check_permute_bytes, 64)(Global in, Global out) {
    const Quad words = row(in).load<Quad>(0);
    row(out).store<u32>(0, permute_bytes(words.x, words.y, words.z));
    row(out).store<u32>(4, permute_bytes(words.x, words.y, 0x5140));
}

LD_KERNEL(check_lop3, 64)(Global in, Global out) {
    const Quad words = row(in).load<Quad>(0);
    row(out).store<u32>(0, lop3<0xEA>(words.x, words.y, words.z));
    row(out).store<u32>(4, lop3<0x6A>(words.x, words.y, words.z));
    row(out).store<u32>(8, lop3<0x01>(words.x, words.y, words.z));
    row(out).store<u32>(12, lop3<0xB2>(words.x, words.y, words.z));
}

LD_KERNEL(check_count_ones, 64)(Global in, Global out) {
    for (int i = 0; i < 64; i += 4) row(out).store<u32>(i, count_ones(row(in).load<u32>(i)));
}

LD_KERNEL(check_float_to_half, 64)(Global in, Global out) {
    for (int i = 0; i < 16; ++i) row(out).store<u16>(2 * i, float_to_half(row(in).load<float>(4 * i)));
}

LD_KERNEL(check_half_to_float, 64)(Global in, Global out) {
    for (int i = 0; i < 16; ++i) row(out).store<float>(4 * i, half_to_float(row(in).load<u16>(4 * i)));
}

LD_KERNEL(check_float_to_bfloat16, 64)(Global in, Global out) {
    for (int i = 0; i < 16; ++i) row(out).store<u16>(2 * i, float_to_bfloat16(row(in).load<float>(4 * i)));
}

LD_KERNEL(check_bfloat16_to_float, 64)(Global in, Global out) {
    for (int i = 0; i < 16; ++i) row(out).store<float>(4 * i, bfloat16_to_float(row(in).load<u16>(4 * i)));
}

// NaNs are made one and the same.
template <class Function> LD_DEVICE void put_floats(Global in, Global out, Function function) {
    for (int i = 0; i < 64; i += 4) {
        const float made = function(row(in).load<float>(i));
        row(out).store<float>(i, made == made ? made : -1.0f);
    }
}

LD_KERNEL(check_fast_exp2, 64)(Global in, Global out) {
    put_floats(in, out, [](float value) { return fast_exp2(value); });
}

LD_KERNEL(check_fast_reciprocal, 64)(Global in, Global out) {
    put_floats(in, out, [](float value) { return fast_reciprocal(value); });
}

LD_KERNEL(check_normal_cdf, 64)(Global in, Global out) {
    put_floats(in, out, [](float value) { return normal_cdf(value); });
}

// Five times three words.
template <u32 (*add)(u32, u32), u32 (*mul)(u32, u32), u32 (*fma)(u32, u32, u32)>
LD_DEVICE void put_pairs(Global from, Global to) {
    for (int i = 0; i < 60; i += 12) {
        const u32 a = from.load<u32>(i), b = from.load<u32>(i + 4), c = from.load<u32>(i + 8);
        to.store<u32>(i, add(a, b));
        to.store<u32>(i + 4, mul(a, b));
        to.store<u32>(i + 8, fma(a, b, c));
    }
}

LD_KERNEL(check_f16x2, 64)(Global in, Global out) { put_pairs<add_f16x2, mul_f16x2, fma_f16x2>(row(in), row(out)); }

LD_KERNEL(check_bf16x2, 64)(Global in, Global out) { put_pairs<add_bf16x2, mul_bf16x2, fma_bf16x2>(row(in), row(out)); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
LD_KERNEL(check_floats_to_e4m3, 64)(Global in, Global out) {
    for (int i = 0; i < 8; ++i)
        row(out).store<u16>(2 * i, floats_to_e4m3(row(in).load<float>(8 * i), row(in).load<float>(8 * i + 4)));
}
#endif

// Warp w loads matrices from the 2048 bytes of its own rows, in an order that is not that of the addresses.
LD_DEVICE Shared matrices_of(Global in) {
    const Shared mine = shared_memory() + thread() * 64;
    for (int i = 0; i < 64; i += 16) mine.store<Quad>(i, row(in).load<Quad>(i));
    sync_warp();
    return shared_memory() + (warp() * 2048 + (lane() * 5 % 32 + 32 * (lane() % 3)) * 16);
}

template <int count> LD_DEVICE void put(Global out, i64 offset, Fragment<u32, count> words) {
    for (int i = 0; i < count; ++i) row(out).store<u32>(offset + 4 * i, words[i]);
}

LD_KERNEL(check_ldmatrix, 64)(Global in, Global out) {
    const Shared from = matrices_of(in);
    put(out, 0, ldmatrix<1>(from, 0));
    put(out, 4, ldmatrix<2>(from, 0));
    put(out, 16, ldmatrix<4>(from, 0));
}

LD_KERNEL(check_ldmatrix_transposed, 64)(Global in, Global out) {
    const Shared from = matrices_of(in);
    put(out, 0, ldmatrix_transposed<1>(from, 0));
    put(out, 4, ldmatrix_transposed<2>(from, 0));
    put(out, 16, ldmatrix_transposed<4>(from, 0));
}

// Words 0 to 3 of a row are A, 4 and 5 are B, 8 to 11 are C.
template <class T> struct Operands {
    Fragment<u32, 4> a;
    Fragment<u32, 2> b;
    Fragment<T, 4> c;
};

template <class T> LD_DEVICE Operands<T> operands(Global in) {
    Operands<T> found;
    for (int i = 0; i < 4; ++i) found.a[i] = row(in).load<u32>(4 * i);
    for (int i = 0; i < 2; ++i) found.b[i] = row(in).load<u32>(16 + 4 * i);
    for (int i = 0; i < 4; ++i) found.c[i] = row(in).load<T>(32 + 4 * i);
    return found;
}

template <class T> LD_DEVICE void put_sums(Global out, Fragment<T, 4> sums) {
    for (int i = 0; i < 4; ++i) row(out).store<T>(4 * i, sums[i]);
}

LD_KERNEL(check_mma_f16, 64)(Global in, Global out) {
    const Operands<float> of = operands<float>(in);
    put_sums(out, mma_f16(of.a, of.b, of.c));
}

LD_KERNEL(check_mma_bf16, 64)(Global in, Global out) {
    const Operands<float> of = operands<float>(in);
    put_sums(out, mma_bf16(of.a, of.b, of.c));
}

LD_KERNEL(check_mma_s8, 64)(Global in, Global out) {
    const Operands<i32> of = operands<i32>(in);
    put_sums(out, mma_s8(of.a, of.b, of.c));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
LD_KERNEL(check_mma_e4m3, 64)(Global in, Global out) {
    const Operands<float> of = operands<float>(in);
    put_sums(out, mma_e4m3(of.a, of.b, of.c));
}
#endif

}  // namespace ld
