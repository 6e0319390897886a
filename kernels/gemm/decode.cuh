// Stored words to fragments of B, for 16-bit activations.
//
// A lane holds column c = lane / 4 of eight n8 fragments: part 2 j + b. A code is put where a 16-bit float has its
// mantissa or its exponent, which leaves out a power of two:
//   integers       under the bits of 1024 (float16) or 128 (bfloat16), subtracted with the zero point, exactly
//   e4m3, e2m1     shifted into place: times 2^-8, 2^-14 (float16), 2^-120, 2^-126 (bfloat16)
// Scales carry that power, but for the cases in which it is multiplied here (`restores`): bfloat16 sums of such small
// weights would be subnormal, and e8m0 scales stand as they are.
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

// Bytes 0 and 2 of a word less 128, as bfloat16: 128 and the low bits, less 256 or, under a top bit, 128.
LD_DEVICE u32 centred(u32 word) {
    return add_bf16x2(above<Operand::bf16>(word, 0x007F007F), lop3<0xAE>(word, 0x00800080, 0xC300C300));
}

// The zero points of a lane's column: {j0 j2 j1} in a word, or j2 {j0 j1} in two.
template <class S> using Zeros = Fragment<u32, S::bits / 4>;

// Those of parts 2 j and 2 j + 1, as what takes them off: -(1024 + z), -(128 + z), or -(z - 128) of bfloat16 bytes.
template <class S> LD_DEVICE u32 zero_pair(const Zeros<S>& zeros, int j) {
    constexpr bool f16 = S::operand == Operand::f16;
    if constexpr (S::bits == 4) {
        return masked_or(zeros[0] >> 4 * j, 0x000F000F, f16 ? 0xE400E400 : 0xC300C300);
    } else {
        const u32 word = zeros[j / 2] >> 8 * (j % 2);
        return f16 ? masked_or(word, 0x00FF00FF, 0xE400E400) : centred(word) ^ 0x80008000;
    }
}

// The power of two that shifted codes lack.
template <class S> LD_DEVICE constexpr int lacks() {
    constexpr bool f16 = S::operand == Operand::f16;
    return S::code == Code::e4m3 ? (f16 ? 8 : 120) : S::code == Code::e2m1 ? (f16 ? 14 : 126) : 0;
}

template <class S>
constexpr bool restores =
    S::operand == Operand::bf16 && lacks<S>() != 0 && (S::scale == Scale::channel || S::scale == Scale::e8m0);

// A power of two as a bfloat16, twice.
LD_DEVICE constexpr u32 bf16_power(int exponent) { return static_cast<u32>(exponent + 127) * 0x00800080; }

// Codes whose sign is the topmost bit of each half, and whose exponent and mantissa, under `mask`, are `shift` bits
// above where the float has them.
LD_DEVICE u32 shifted(u32 signs, u32 rest, u32 mask) { return masked_or(rest, mask, signs & 0x80008000); }

// The half of a fragment for which the position k3 is 0 or 1, as small integers, exponents and mantissas. `zero` is for
// u4 and u8 alone: both halves what takes off its zero point.
template <class S> LD_DEVICE u32 decoded_half(const Stored<S>& words, int part, int k3, u32 zero) {
    constexpr bool f16 = S::operand == Operand::f16;
    const int nibble = part % 2 * 2 + k3;
    if constexpr (S::code == Code::u4b8 && f16) {
        const u32 word = part % 2 ? words[part / 2] >> 8 : words[part / 2];
        return k3 ? fma_f16x2(above<S::operand>(word, 0x00F000F0), 0x2C002C00, 0xD480D480)  // (1024 + 16 q) / 16 - 72
                  : add_f16x2(above<S::operand>(word, 0x000F000F), 0xE408E408);
    }
    if constexpr (S::code == Code::u4b8 && !f16)
        return add_bf16x2(above<S::operand>(words[part / 2] >> 4 * nibble, 0x000F000F), 0xC308C308);
    if constexpr (S::code == Code::u4)
        return add<S::operand>(above<S::operand>(words[part / 2] >> 4 * nibble, 0x000F000F), zero);
    if constexpr ((S::code == Code::u8b128 || S::code == Code::u8) && f16)
        return add_f16x2(permute_bytes(words[part], 0x64646464, k3 ? 0x4341 : 0x4240),
                         S::code == Code::u8 ? zero : 0xE480E480);
    if constexpr ((S::code == Code::u8b128 || S::code == Code::u8) && !f16) {
        const u32 made = centred(k3 ? words[part] >> 8 : words[part]);
        return S::code == Code::u8 ? add_bf16x2(made, zero) : made;
    }
    if constexpr (S::code == Code::e4m3) {
        const u32 word = k3 ? words[part] : words[part] << 8;
        return f16 ? shifted(word, word >> 1, 0x3F803F80) : shifted(word, word >> 4, 0x07F007F0);
    }
    if constexpr (S::code == Code::e2m1) {
        const u32 word = words[part / 2] << (12 - 4 * nibble);
        return f16 ? shifted(word, word >> 3, 0x0E000E00) : shifted(word, word >> 6, 0x01C001C0);
    }
}

template <class S> LD_DEVICE Fragment<u32, 2> decoded(const Stored<S>& words, int part, u32 zero) {
    Fragment<u32, 2> made;
    LD_UNROLL
    for (int k3 = 0; k3 < 2; ++k3) {
        made[k3] = decoded_half<S>(words, part, k3, zero);
        if constexpr (restores<S>) made[k3] = mul_bf16x2(made[k3], bf16_power(lacks<S>()));
    }
    return made;
}

}  // namespace ld
