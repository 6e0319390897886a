// Operations on words, and conversions of floats: the definitions that the GPU's instructions are held against.
#pragma once

#include <cmath>
#include <cstring>

namespace ld {

inline u32 permute_bytes(u32 a, u32 b, u32 selector) {
    const u64 bytes = u64{b} << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 nibble = selector >> 4 * i & 15;
        u32 byte = bytes >> 8 * (nibble & 7) & 0xFF;
        if (nibble & 8) byte = byte & 0x80 ? 0xFF : 0;
        result |= byte << 8 * i;
    }
    return result;
}

template <int table> u32 lop3(u32 a, u32 b, u32 c) {
    static_assert(table >= 0 && table < 256, "a function of three bits has a table of eight");
    u32 result = 0;
    for (int row = 0; row < 8; ++row)
        if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return result;
}

inline u32 count_ones(u32 a) { return static_cast<u32>(__builtin_popcount(a)); }

namespace host {

// Half a unit is rounded to even. `shift` low bits are dropped, at least one.
inline u32 rounded(u32 value, u32 shift) {
    if (shift > 31) return 0;
    const u32 half = 1u << (shift - 1), kept = value >> shift, rest = value & ((half << 1) - 1);
    return kept + (rest > half || (rest == half && (kept & 1)));
}

inline u32 bits_of(float value) {
    u32 bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline float float_of(u32 bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// A small float of so many exponent and mantissa bits as a float, exact; no code of it is infinite or NaN.
inline float widened(u32 code, u32 exponent_bits, u32 mantissa_bits) {
    const u32 sign = code >> (exponent_bits + mantissa_bits) & 1;
    const u32 exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
    const u32 mantissa = code & ((1u << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const float unit = float_of(u32(127 - bias - int(mantissa_bits) + int(exponent ? exponent : 1)) << 23);
    const float magnitude = float(exponent ? mantissa | 1u << mantissa_bits : mantissa) * unit;
    return sign ? -magnitude : magnitude;
}

inline float e4m3_to_float(u8 code) { return (code & 0x7F) == 0x7F ? float_of(0x7FFFFFFF) : widened(code, 4, 3); }

}  // namespace host

inline u16 float_to_half(float value) {
    const u32 bits = host::bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return 0x7FFF;
    if (magnitude >= 0x47800000) return sign | 0x7C00;  // 2^16 and above
    if (magnitude >= 0x38800000) return sign | host::rounded(magnitude - 0x38000000, 13);
    const u32 exponent = magnitude >> 23;  // the result counts units of 2^-24
    return sign | host::rounded((magnitude & 0x7FFFFF) | 0x800000, 126 - exponent);
}

inline float half_to_float(u16 value) {
    if ((value & 0x7FFF) > 0x7C00) return host::float_of(0x7FFFFFFF);
    if ((value & 0x7FFF) == 0x7C00) return host::float_of((value & 0x8000u) << 16 | 0x7F800000);
    return host::widened(value, 5, 10);
}

inline u16 float_to_bfloat16(float value) {
    const u32 bits = host::bits_of(value);
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : host::rounded(bits, 16);
}

inline float bfloat16_to_float(u16 value) { return host::float_of(u32{value} << 16); }

namespace host {

inline u8 float_to_e4m3(float value) {
    const u32 bits = bits_of(value), sign = bits >> 24 & 0x80, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return 0x7F;
    if (magnitude >= 0x43E80000) return sign | 0x7E;  // 464, in the middle between 448 and what there is not, and above
    if (magnitude >= 0x3C800000) return sign | rounded(magnitude - 0x3C000000, 20);
    const u32 exponent = magnitude >> 23;  // the result counts units of 2^-9
    return sign | rounded((magnitude & 0x7FFFFF) | 0x800000, 141 - exponent);
}

// The float at or below a number in magnitude, with its last bit set where it is not that number: rounding it once more,
// to fewer bits, gives what rounding the number itself would.
inline float odd_float(double value) {
    const float nearest = static_cast<float>(value);
    if (static_cast<double>(nearest) == value || value != value) return nearest;
    const u32 bits = bits_of(nearest);
    return float_of((__builtin_fabs(nearest) > __builtin_fabs(value) ? bits - 1 : bits) | 1);
}

// a * b + c for 16-bit floats, whose products are exact in double precision; what the sum loses is made odd.
inline float multiplied_and_added(float a, float b, float c) {
    const double product = double{a} * b, sum = product + c;
    if (!__builtin_isfinite(sum)) return static_cast<float>(sum);
    const double added = sum - product, lost = (product - (sum - added)) + (c - added);
    u64 bits;
    std::memcpy(&bits, &sum, 8);
    if (lost != 0 && !(bits & 1)) bits += (lost > 0) == (sum > 0) ? 1 : -1;
    double odd;
    std::memcpy(&odd, &bits, 8);
    return odd_float(odd);
}

template <float (*widen)(u16), u16 (*narrow)(float)> u32 fma_pair(u32 a, u32 b, u32 c) {
    u32 result = 0;
    for (int i = 0; i < 32; i += 16) {
        const float made = multiplied_and_added(widen(a >> i & 0xFFFF), widen(b >> i & 0xFFFF), widen(c >> i & 0xFFFF));
        result |= u32{narrow(made)} << i;
    }
    return result;
}

}  // namespace host

inline u16 floats_to_e4m3(float first, float second) {
    return static_cast<u16>(host::float_to_e4m3(first) | host::float_to_e4m3(second) << 8);
}

inline u32 fma_f16x2(u32 a, u32 b, u32 c) { return host::fma_pair<half_to_float, float_to_half>(a, b, c); }
inline u32 add_f16x2(u32 a, u32 b) { return fma_f16x2(a, 0x3C003C00, b); }
inline u32 mul_f16x2(u32 a, u32 b) { return fma_f16x2(a, b, 0x80008000); }
inline u32 fma_bf16x2(u32 a, u32 b, u32 c) { return host::fma_pair<bfloat16_to_float, float_to_bfloat16>(a, b, c); }
inline u32 add_bf16x2(u32 a, u32 b) { return fma_bf16x2(a, 0x3F803F80, b); }
inline u32 mul_bf16x2(u32 a, u32 b) { return fma_bf16x2(a, b, 0x80008000); }

inline float fast_exp2(float value) { return static_cast<float>(std::exp2(double{value})); }
inline float fast_reciprocal(float value) { return 1.0f / value; }
inline float normal_cdf(float value) { return static_cast<float>(0.5 * std::erfc(value * -0.70710678118654752440)); }

}  // namespace ld
