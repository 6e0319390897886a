// Rows of 16-bit activations as 8-bit ones, with a float32 scale for each row: an element is its code times the scale.
//
//     largest   the row's largest magnitude, or 2^-100 where that is more: a row of zeros has codes 0 and a scale above 0
//     scale     largest / TOP, and a code is the element times (TOP / largest), rounded to nearest even; all in float32
//
// A row with an element that is infinite or NaN has codes 0 and the scale NaN, so that all of its results are NaN. Each
// row is read once, 16 bytes per lane, and kept in registers until its largest element is known.
#pragma once
#include "gemm/floats.cuh"

namespace ld {

// ---- what is read: `infinity` is the first code of what is not finite

struct Half {
    static constexpr u32 infinity = 0x7C00;
    LD_DEVICE static float value(u32 code) { return half_to_float(static_cast<u16>(code)); }
};

struct Bfloat16 {
    static constexpr u32 infinity = 0x7F80;
    LD_DEVICE static float value(u32 code) { return bfloat16_to_float(static_cast<u16>(code)); }
};

// ---- what is made: `top` is the largest value, `pair` makes two codes of numbers that are not beyond it

struct Int8 {
    static constexpr float top = 127.0f;
    LD_DEVICE static u32 pair(float first, float second) {
        const float whole = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction, and its low byte is the code
        return permute_bytes(bits_of(first + whole), bits_of(second + whole), 0x40) & 0xFFFF;
    }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
struct E4m3 {
    static constexpr float top = 448.0f;
    LD_DEVICE static u32 pair(float first, float second) { return floats_to_e4m3(first, second); }
};
#endif

// Four codes of four elements that stand in two words.
template <class Float, class Code> LD_DEVICE u32 four(u32 low, u32 high, float factor) {
    const u32 first = Code::pair(Float::value(low & 0xFFFF) * factor, Float::value(low >> 16) * factor);
    const u32 second = Code::pair(Float::value(high & 0xFFFF) * factor, Float::value(high >> 16) * factor);
    return first | second << 16;
}

LD_DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// The larger magnitude of the two elements of a word, in the upper half; below it may stand anything.
LD_DEVICE u32 magnitude(u32 word) { return larger(word & 0x7FFFFFFF, word << 16 & 0x7FFFFFFF); }

// The largest value that a thread of the block has; everyone gets it.
LD_DEVICE u32 largest_of_block(u32 value) {
    for (int mask = 16; mask; mask /= 2) value = larger(value, shfl_xor(value, mask));
    const Shared of_warps = shared_memory();
    if (lane() == 0) of_warps.store<u32>(4 * warp(), value);
    sync_block();
    value = lane() < threads() / 32 ? of_warps.load<u32>(4 * lane()) : 0;
    for (int mask = 16; mask; mask /= 2) value = larger(value, shfl_xor(value, mask));
    return value;
}

// A block makes one row: `columns` codes, of which those before column `front` and those from front + valid on are 0.
// Rows of `valid` elements are read, `stride` bytes apart. All of these are multiples of 8, and columns is at most
// 8 * per_thread * threads(). The block has 4 bytes of shared memory for each of its warps.
template <class Float, class Code, int per_thread>
LD_DEVICE void quantize(Global codes, Global scales, Global rows, i64 stride, i64 front, i64 valid, i64 columns) {
    const Global row = rows + block() * stride, made = codes + block() * columns;
    Quad held[per_thread];
    u32 largest = 0;
    for (int i = 0; i < per_thread; ++i) {
        const i64 column = 8 * (i64{thread()} + i * threads()) - front;
        held[i] = column >= 0 && column < valid ? row.load<Quad>(2 * column) : Quad{0, 0, 0, 0};
        largest = larger(largest, larger(larger(magnitude(held[i].x), magnitude(held[i].y)),
                                         larger(magnitude(held[i].z), magnitude(held[i].w))));
    }
    largest = largest_of_block(largest) >> 16;
    const bool finite = largest < Float::infinity;
    const float least = 7.888609052210118e-31f;  // 2^-100
    const float top = finite && Float::value(largest) > least ? Float::value(largest) : least;
    if (thread() == 0) scales.store<float>(4 * i64{block()}, finite ? top / Code::top : float_of(0x7FFFFFFF));
    const float factor = Code::top / top;
    for (int i = 0; i < per_thread; ++i) {
        const i64 column = 8 * (i64{thread()} + i * threads());
        if (column >= columns) continue;
        const Quad of = finite ? held[i] : Quad{0, 0, 0, 0};
        const u64 low = four<Float, Code>(of.x, of.y, factor), high = four<Float, Code>(of.z, of.w, factor);
        made.store<u64>(column, high << 32 | low);
    }
}

}  // namespace ld
