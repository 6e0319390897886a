// Device primitives: one interface, two bodies. ptx/ is the GPU's; host/ runs the same kernels on a CPU, where every
// access is checked and counted. Kernels use nothing else of CUDA; they stand in namespace ld, for some names of CUDA's
// own (ballot) would be ambiguous beside `using namespace ld`.
//
// Memory is reached through Global and Shared alone, by byte offsets; neither converts to a pointer. An access is
// aligned to its size. Grids and blocks are one-dimensional, a block is whole warps, and all 32 lanes of a warp come to
// each warp primitive together.
#pragma once

#include "types.cuh"

#if defined(__CUDACC__)
#define LD_DEVICE __device__ __forceinline__
#define LD_SITE
#define LD_ONLY_SITE
// Before a loop of constant length: each turn becomes code of its own, so that arrays it indexes stay in registers.
#define LD_UNROLL _Pragma("unroll")
// Before a loop that stays one: it runs once in a while, or its turns side by side would take too many registers.
#define LD_NO_UNROLL _Pragma("unroll 1")
#else
#include "host/site.h"
#define LD_DEVICE inline
// Where a primitive is called, for the messages and the counters of the host.
#define LD_ONLY_SITE ::ld::Site site = {__builtin_FILE(), __builtin_LINE()}
#define LD_SITE , LD_ONLY_SITE
#define LD_UNROLL
#define LD_NO_UNROLL
#endif

namespace ld {

struct alignas(16) Quad {
    u32 x, y, z, w;
};

// What a lane holds of a matrix, or of its result.
template <class T, int count>
struct Fragment {
    T at[count];
    LD_DEVICE T& operator[](int index) { return at[index]; }
    LD_DEVICE const T& operator[](int index) const { return at[index]; }
};

// ---- memory: T has 1, 2, 4, 8 or 16 bytes

// A byte address in global memory.
struct Global {
    u64 at;
    template <class T> LD_DEVICE T load(i64 offset LD_SITE) const;
    template <class T> LD_DEVICE void store(i64 offset, T value LD_SITE) const;
    LD_DEVICE Global operator+(i64 bytes) const { return {at + static_cast<u64>(bytes)}; }
};

// A byte address in the block's dynamic shared memory, which holds NaNs when a block starts.
struct Shared {
    u32 at;
    template <class T> LD_DEVICE T load(i64 offset LD_SITE) const;
    template <class T> LD_DEVICE void store(i64 offset, T value LD_SITE) const;
    LD_DEVICE Shared operator+(i64 bytes) const { return {at + static_cast<u32>(bytes)}; }
};

LD_DEVICE Shared shared_memory();

// Atomic at device scope, unordered; each returns what was there before.
LD_DEVICE u32 atomic_add(Global to, i64 offset, u32 value LD_SITE);
LD_DEVICE float atomic_add(Global to, i64 offset, float value LD_SITE);
LD_DEVICE u64 atomic_min(Global to, i64 offset, u64 value LD_SITE);
LD_DEVICE u32 atomic_swap_if(Global to, i64 offset, u32 expected, u32 value LD_SITE);

// Locks between blocks, at device scope. A loop that waits calls load_acquire or pause in each turn.
LD_DEVICE u32 load_acquire(Global from, i64 offset LD_SITE);
LD_DEVICE void store_release(Global to, i64 offset, u32 value LD_SITE);
LD_DEVICE void pause(LD_ONLY_SITE);
// What this block wrote before a barrier is seen by the block that finds it counted here, after a barrier of its own.
LD_DEVICE u32 atomic_add_ordered(Global to, i64 offset, u32 value LD_SITE);

// ---- copies from global to shared memory that go on beside the thread: bytes is 4, 8 or 16

// Copies the first `valid` bytes and fills the rest with zeros.
template <int bytes>
LD_DEVICE void copy_async(Shared to, i64 to_offset, Global from, i64 from_offset, u32 valid = bytes LD_SITE);
// Makes a group of the copies since the last call.
LD_DEVICE void copy_commit(LD_ONLY_SITE);
// Waits until at most `pending` of this thread's groups are under way. Other threads see them after a barrier.
template <int pending> LD_DEVICE void copy_wait(LD_ONLY_SITE);

// ---- threads

LD_DEVICE u32 thread();
LD_DEVICE u32 threads();
LD_DEVICE u32 block();
LD_DEVICE u32 blocks();
LD_DEVICE u32 lane();
LD_DEVICE u32 warp();

LD_DEVICE void sync_block(LD_ONLY_SITE);
LD_DEVICE void sync_warp(LD_ONLY_SITE);
LD_DEVICE u32 shfl(u32 value, int from_lane LD_SITE);
LD_DEVICE u32 shfl_xor(u32 value, int mask LD_SITE);
LD_DEVICE u32 ballot(bool predicate LD_SITE);

// ---- words

// Four of the eight bytes of b:a, each named by a nibble of the selector (prmt; with bit 3 set, its sign repeated).
LD_DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector);
// Any function of three bits, bit by bit: `table` is that function of (0xF0, 0xCC, 0xAA).
template <int table> LD_DEVICE u32 lop3(u32 a, u32 b, u32 c);
LD_DEVICE u32 count_ones(u32 a);

// Rounded to nearest even; a NaN becomes 0x7FFF. Back is exact; a half NaN becomes 0x7FFFFFFF.
LD_DEVICE u16 float_to_half(float value);
LD_DEVICE float half_to_float(u16 value);
LD_DEVICE u16 float_to_bfloat16(float value);
LD_DEVICE float bfloat16_to_float(u16 value);

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
// Two e4m3, the first one in the low byte: rounded to nearest even; what is beyond 448, infinities too, becomes 448 with
// its sign, and a NaN 0x7F.
LD_DEVICE u16 floats_to_e4m3(float first, float second);
#endif

// Two 16-bit floats at once, the first in the low half. Each result is rounded once, subnormal ones too; NaN is 0x7FFF.
LD_DEVICE u32 add_f16x2(u32 a, u32 b);
LD_DEVICE u32 mul_f16x2(u32 a, u32 b);
LD_DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c);
LD_DEVICE u32 add_bf16x2(u32 a, u32 b);
LD_DEVICE u32 mul_bf16x2(u32 a, u32 b);
LD_DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c);

// ---- functions of floats, whose last bits differ between GPU and host; subnormal operands and results may count as 0

LD_DEVICE float fast_exp2(float value);        // 2^value within 2^-22 of it
LD_DEVICE float fast_reciprocal(float value);  // 1 / value within 2^-23 of it
LD_DEVICE float normal_cdf(float value);       // (1 + erf(value / sqrt(2))) / 2 within 2^-20 of it, also where that is tiny

// ---- tensor cores

// `count` (1, 2 or 4) matrices of 8 x 8 elements of 16 bits; lane l says where row l % 8 of matrix l / 8 stands.
template <int count> LD_DEVICE Fragment<u32, count> ldmatrix(Shared from, i64 offset LD_SITE);
template <int count> LD_DEVICE Fragment<u32, count> ldmatrix_transposed(Shared from, i64 offset LD_SITE);

// a * b + c, with the fragments of mma.sync: m16n8k16 for 16-bit elements, m16n8k32 for 8-bit ones.
LD_DEVICE Fragment<float, 4> mma_f16(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<float, 4> c LD_SITE);
LD_DEVICE Fragment<float, 4> mma_bf16(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<float, 4> c LD_SITE);
LD_DEVICE Fragment<i32, 4> mma_s8(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<i32, 4> c LD_SITE);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
LD_DEVICE Fragment<float, 4> mma_e4m3(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<float, 4> c LD_SITE);
#endif

}  // namespace ld

// LD_KERNEL(name, max_threads)(Global a, i64 b, ...) { ... }      every parameter is a Global or an i64
// LD_KERNEL(name, max_threads, 1)(...) { ... }      registers are worth more than several blocks at once
#if defined(__CUDACC__)
#define LD_KERNEL(name, ...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__) name
#include "ptx/memory.cuh"
#include "ptx/copies.cuh"
#include "ptx/threads.cuh"
#include "ptx/words.cuh"
#include "ptx/matrices.cuh"
#else
#include "host/device.h"
#endif
