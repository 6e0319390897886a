// Stored words to fragments of B, for 16-bit activations.
//
// A lane holds column c = lane / 4 of eight n8 fragments, numbered part = 2 j + b. Codes are put where the mantissa or
// the exponent of a 16-bit float is, which leaves out a power of two:
//   integers       under the bits of 1024 (float16) or 128 (bfloat16), which is subtracted with the zero point, exactly
//   e4m3, e2m1     shifted into place: times 2^-8, 2^-14 (float16), 2^-120, 2^-126 (bfloat16)
// What scales carry of that, and what is multiplied here, is said in scales.cuh.
#pragma once
#include "gemm/shape.cuh"
#include "gemm/weights.cuh"

namespace ld {

template <Operand operand> LD_DEVICE u32 mul(u32 a, u32 b) {
    return operand == Operand::f16 ? mul_f16x2(a, b) : mul_bf16x2(a, b);
}

template <Operand operand> LD_DEVICE u32 add(u32 a, u32 b) {
    return operand == Operand::f16 ? add_f16x2(a, b) : add_bf16x2(a, b);
}

LD_DEVICE u32 low_twice(u32 pair) { return permute_bytes(pair, pair, 0x1010); }
LD_DEVICE u32 high_twice(u32 pair) { return permute_bytes(pair, pair, 0x3232); }
LD_DEVICE u32 half_twice(u32 pair, int half) { return half ? high_twice(pair) : low_twice(pair); }

// (word & mask) | bits
LD_DEVICE u32 masked_or(u32 word, u32 mask, u32 bits) { return lop3<0xEA>(word, mask, bits); }

// Codes under `mask` as integers added to 1024 or 128, both halves.
template <Operand operand> LD_DEVICE u32 above(u32 word, u32 mask) {
    return masked_or(word, mask, operand == Operand::f16 ? 0x64006400 : 0x43004300);
}

// The zero points of parts 2 j and 2 j + 1, as -(1024 + z) or -(128 + z); a word has {j0 j2 j1} of one column.
template <Operand operand> LD_DEVICE u32 zero_pair(u32 zeros, int j) {
    return masked_or(zeros >> 4 * j, 0x000F000F, operand == Operand::f16 ? 0xE400E400 : 0xC300C300);
}

// The fragment of a part out of a lane's words. `zero` is for u4 alone: both halves the negative of its zero point.
template <class S> LD_DEVICE Fragment<u32, 2> decoded(const Stored<S>& words, int part, u32 zero) {
    const int j = part / 2, b = part % 2;
    constexpr bool f16 = S::operand == Operand::f16;
    Fragment<u32, 2> made;
    if constexpr (S::code == Code::u4b8 && f16) {
        const u32 word = b ? words[j] >> 8 : words[j];
        made[0] = add_f16x2(above<S::operand>(word, 0x000F000F), 0xE408E408);
        made[1] = fma_f16x2(above<S::operand>(word, 0x00F000F0), 0x2C002C00, 0xD480D480);  // (1024 + 16 q) / 16 - 72
    }
    if constexpr (S::code == Code::u4b8 && !f16) {
        made[0] = add_bf16x2(above<S::operand>(words[j] >> 8 * b, 0x000F000F), 0xC308C308);
        made[1] = add_bf16x2(above<S::operand>(words[j] >> (8 * b + 4), 0x000F000F), 0xC308C308);
    }
    if constexpr (S::code == Code::u4) {
        made[0] = add<S::operand>(above<S::operand>(words[j] >> 8 * b, 0x000F000F), zero);
        made[1] = add<S::operand>(above<S::operand>(words[j] >> (8 * b + 4), 0x000F000F), zero);
    }
    return made;
}

}  // namespace ld
