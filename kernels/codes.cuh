// Element codes as numbers: decoded exactly into doubles, encoded with one rounding, half to even. The definition is
// layoutdsl/codes.py; generated text states each code as a struct of its numbers (backends/repack/codes.py).
#pragma once
#include "device.cuh"

namespace ld {

enum class Kind { integer, floating, power };

LD_DEVICE u64 bits_of(double value) {
    u64 made;
    memcpy(&made, &value, 8);
    return made;
}

LD_DEVICE double double_of(u64 bits) {
    double made;
    memcpy(&made, &bits, 8);
    return made;
}

LD_DEVICE i64 exponent_of(double value) { return static_cast<i64>(bits_of(value) >> 52 & 0x7FF) - 1023; }
LD_DEVICE u64 mantissa_of(double value) { return bits_of(value) & ((1ull << 52) - 1); }
LD_DEVICE bool is_negative(double value) { return bits_of(value) >> 63; }
LD_DEVICE double magnitude_of(double value) { return double_of(bits_of(value) & ~(1ull << 63)); }

// 2^exponent, from -1022 to 1023.
LD_DEVICE double power_of_two(i64 exponent) { return double_of(static_cast<u64>(exponent + 1023) << 52); }

// A number of 0 to 2^52, half to even: beyond 2^52 doubles have no fractions, so the addition rounds.
LD_DEVICE i64 rounded(double value) {
    const double whole = power_of_two(52);
    return static_cast<i64>(bits_of(value + whole) - bits_of(whole));
}

// The low 16 bits of a number rounded to a whole one, of any size.
LD_DEVICE u32 low_bits(double value) {
    const i64 beyond = exponent_of(value) - 52;
    const double magnitude = magnitude_of(value);
    const u64 whole = beyond < 0 ? static_cast<u64>(rounded(magnitude))
                                 : (beyond < 16 ? (mantissa_of(value) | 1ull << 52) << beyond : 0);
    return static_cast<u32>(is_negative(value) ? -whole : whole) & 0xFFFF;
}

template <class Code> LD_DEVICE bool is_finite(u32 code) { return (code & Code::nan_mask) != Code::nan; }

// NaN and infinite codes give numbers like others: is_finite tells them.
template <class Code> LD_DEVICE double decode(u32 code) {
    if constexpr (Code::kind == Kind::integer)
        return static_cast<i32>(code << (32 - Code::bits)) >> (32 - Code::bits);
    if constexpr (Code::kind == Kind::power)
        return code == 0 && Code::has_zero ? 0.0 : power_of_two(static_cast<i64>(code) - 127);
    const i64 exponent = code >> Code::mantissa & ((1u << Code::exponent) - 1);
    const u32 fraction = code & ((1u << Code::mantissa) - 1);
    const u32 whole = exponent ? fraction | 1u << Code::mantissa : fraction;
    const double value = whole * power_of_two((exponent ? exponent : 1) - Code::bias - Code::mantissa);
    if (value < Code::floor) return 0.0;
    return Code::sign && code >> (Code::bits - 1) ? -value : value;
}

// The code nearest to a number; `bad` is set where there is none.
template <class Code> LD_DEVICE u32 encode(double value, bool& bad) {
    const bool negative = is_negative(value);
    const i64 exponent = exponent_of(value);
    if constexpr (Code::kind == Kind::power) {
        if (value == 0.0) return 0;
        bad |= negative || mantissa_of(value) || exponent + 127 < 0 || exponent + 127 > Code::top;
        return static_cast<u32>(exponent + 127);
    }
    const double magnitude = magnitude_of(value);
    const i64 biased = exponent + Code::bias < 1 ? 1 : exponent + Code::bias;
    i64 made = rounded(magnitude * power_of_two(Code::mantissa + Code::bias - biased));
    made = magnitude < Code::floor ? 0 : made + ((biased - 1) << Code::mantissa);
    bad |= exponent == 1024 || made > Code::top || (negative && !Code::sign && magnitude > 0.0);
    return static_cast<u32>(made) | static_cast<u32>(negative && Code::sign) << (Code::bits - 1);
}

}  // namespace ld
