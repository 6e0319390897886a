// Stored codes as B fragments of m16n8k32, for 8-bit activations. Bytes are made of words, several at a time.
//
// A lane of column c and quarter kq has, of each fragment, the codes k = 16 k4 + 4 kq + k0 of its column. Of 4-bit codes
// one word holds them all, in nibble 2 k0 + k4, so that the low nibbles are the first register's and the high ones the
// second's; of 8-bit codes a word for each k4 has k0 in byte k0: the registers themselves.
//
// A byte that is made stands for a number that differs from the code's value by a power of two. `unit` is that power:
// value = byte * unit, and whoever sums up products multiplies the sums by it, unless a plan's scales carry it already.
#pragma once
#include "gemm/shape.cuh"

namespace ld {

constexpr u32 EACH_BYTE = 0x01010101, NIBBLES = 0x0F0F0F0F;

// `words` of a lane are a fragment; `zero` is its zero point, which u4 alone has.
template <Code code, Operand operand> struct Decode8;

// The zero point of an n8 fragment of 64 columns, out of a column's word (nibble = fragment).
LD_DEVICE u32 zero_of(u32 word, int fragment) { return word >> 4 * fragment & 15; }

// u4b8 to int8: the code in the upper half of a byte, less 128, is 16 (q - 8). 3 instructions for 8 codes.
template <> struct Decode8<Code::u4b8, Operand::s8> {
    static constexpr int words = 1;
    static constexpr float unit = 1.0f / 16;
    LD_DEVICE static Fragment<u32, 2> fragment(const u32* of, u32) {
        const u32 high = NIBBLES << 4, bias = 0x80 * EACH_BYTE;
        return {{(of[0] << 4 & high) ^ bias, (of[0] & high) ^ bias}};
    }
};

// u4 with zero points to int8: 128 + q - z borrows nothing from the next byte. 7 instructions for 8 codes.
template <> struct Decode8<Code::u4, Operand::s8> {
    static constexpr int words = 1;
    static constexpr float unit = 1;
    LD_DEVICE static Fragment<u32, 2> fragment(const u32* of, u32 zero) {
        return {{less(of[0] & NIBBLES, zero), less(of[0] >> 4 & NIBBLES, zero)}};
    }
    LD_DEVICE static u32 less(u32 codes, u32 zero) {
        const u32 above = 0x80 * EACH_BYTE;
        return ((codes | above) - zero * EACH_BYTE) ^ above;
    }
};

// u8b128 to int8: q - 128 has the sign bit the other way around. 1 instruction for 4 codes.
template <> struct Decode8<Code::u8b128, Operand::s8> {
    static constexpr int words = 2;
    static constexpr float unit = 1;
    LD_DEVICE static Fragment<u32, 2> fragment(const u32* of, u32) {
        return {{of[0] ^ 0x80 * EACH_BYTE, of[1] ^ 0x80 * EACH_BYTE}};
    }
};

// Nibbles recoded around zero point z (n4) or 8 (n4b8): code c is the integer c where c < 16 - z, else 15 - z - c. An
// e4m3 byte v < 16 is v * 2^-9, subnormal or not, so the byte is c, or 0x80 | (c + z - 15) = c + (0x71 + z) where it is
// negative: c + z then has bit 4, and no sum leaves its byte. The plan's scales carry 2^9.
template <> struct Decode8<Code::u4, Operand::e4m3> {
    static constexpr int words = 1;
    static constexpr float unit = 1;
    // 11 instructions for 8 codes
    LD_DEVICE static Fragment<u32, 2> fragment(const u32* of, u32 zero) {
        return {{signed_(of[0] & NIBBLES, zero), signed_(of[0] >> 4 & NIBBLES, zero)}};
    }
    LD_DEVICE static u32 signed_(u32 codes, u32 zero) {
        const u32 negative = (codes + zero * EACH_BYTE) >> 4 & EACH_BYTE;
        return codes + negative * (0x71 + zero);
    }
};

template <> struct Decode8<Code::u4b8, Operand::e4m3> {
    static constexpr int words = 1;
    static constexpr float unit = 1;
    // 9 instructions for 8 codes: with z = 8 the sign is bit 3
    LD_DEVICE static Fragment<u32, 2> fragment(const u32* of, u32) {
        const u32 first = of[0] & NIBBLES, second = of[0] >> 4 & NIBBLES;
        return {{first + (of[0] >> 3 & EACH_BYTE) * 0x79, second + (of[0] >> 7 & EACH_BYTE) * 0x79}};
    }
};

// e2m1 to e4m3: sign to sign, both bits of the exponent to the lower two of four, mantissa to the first of three. The
// biases are 1 and 7, so what is made is the value times 2^-6, subnormal or not. MXFP4's scale bytes carry 2^6: 6 has
// been added to each. 7 instructions for 8 codes.
template <> struct Decode8<Code::e2m1, Operand::e4m3> {
    static constexpr int words = 1;
    static constexpr float unit = 1;
    LD_DEVICE static Fragment<u32, 2> fragment(const u32* of, u32) {
        const u32 sign = 0x80 * EACH_BYTE, rest = 0x1C * EACH_BYTE;
        return {{(of[0] << 4 & sign) | (of[0] << 2 & rest), (of[0] & sign) | (of[0] >> 2 & rest)}};
    }
};

}  // namespace ld
