// The recodes of layoutdsl/recodes.py, one code at a time. Each sets `bad` where the definition refuses.
#pragma once
#include "codes.cuh"

namespace ld {

template <int bits> LD_DEVICE u32 load_code(Global from, i64 address) {
    if constexpr (bits == 4) return from.load<u8>(address >> 1) >> (address & 1) * 4 & 15;
    if constexpr (bits == 8) return from.load<u8>(address);
    if constexpr (bits == 16) return from.load<u16>(address * 2);
    if constexpr (bits == 32) return from.load<u32>(address * 4);
}

LD_DEVICE void refuse(Global status) { atomic_min(status, 0, 0ull); }

template <class Source> LD_DEVICE u32 copied(u32 code, bool& bad) {
    bad |= !is_finite<Source>(code);
    return code;
}

template <class Source, class Target> LD_DEVICE u32 rescaled(u32 code, i64 power, bool& bad) {
    bad |= !is_finite<Source>(code);
    return encode<Target>(decode<Source>(code) * power_of_two(power), bad);
}

template <class Source, class Target> LD_DEVICE u32 inverted(u32 code, i64 power, bool& bad) {
    const double value = decode<Source>(code);
    bad |= !is_finite<Source>(code) || value == 0.0;
    return encode<Target>(1.0 / value * power_of_two(power), bad);
}

// The zero point of another convention, in `bits` bits.
template <int bits> LD_DEVICE u32 offset(u32 code, i64 power, bool& bad) {
    const i64 made = code + power;
    bad |= made < 0 || made >> bits;
    return static_cast<u32>(made);
}

LD_DEVICE u32 fp8_nibble(u32 code, u32 zero) { return code >= zero ? code - zero : 15 - code; }
LD_DEVICE u32 plain_nibble(u32 code, u32 zero) { return code + zero < 16 ? code + zero : 15 - code; }

// An FP4 code with the sign of its scale, an e4m3 code: 0x80 is -0.0 and 0xFF is NaN, which are not negative.
LD_DEVICE u32 signed_by(u32 code, u32 scale) { return code ^ (scale > 0x80 && scale != 0xFF ? 8u : 0u); }

template <class Source> LD_DEVICE u32 int16_scale(u32 code, double largest, bool& bad) {
    bad |= !is_finite<Source>(code);
    return largest == 0.0 ? 0 : low_bits(decode<Source>(code) * 4096.0 / largest);
}

// The same as another engine computes it: rounded to the source's dtype after each step.
template <class Source> LD_DEVICE u32 int16_scale_stepwise(u32 code, double largest, bool& bad) {
    bad |= !is_finite<Source>(code);
    if (largest == 0.0) return 0;
    const u32 step = encode<Source>(decode<Source>(code) / largest, bad);
    return low_bits(decode<Source>(encode<Source>(decode<Source>(step) * 4096.0, bad)));
}

template <class Source, class Factor, class Target> LD_DEVICE u32 int16_undone(u32 code, u32 factor, i64 power, bool& bad) {
    bad |= !is_finite<Factor>(factor);
    return encode<Target>(decode<Source>(code) * decode<Factor>(factor) * power_of_two(power), bad);
}

template <class Source, class Target> LD_DEVICE u32 nvfp4_scale(u32 code, i64 power, bool& bad) {
    bad |= !is_finite<Source>(code);
    const double value = magnitude_of(decode<Source>(code)) * power_of_two(power);
    const u32 made = encode<Target>(value, bad);
    bad |= value >= Target::floor && decode<Target>(made) != value;
    return made;
}

template <class Source, class Target> LD_DEVICE u32 nvfp4_global(u32 code, double factor, i64 power, bool& bad) {
    bad |= !is_finite<Source>(code);
    return encode<Target>(factor * power_of_two(power), bad);
}

// Whether a value other than 0 has become 0.
template <class Source, class Target> LD_DEVICE bool vanished(u32 code, u32 made) {
    return decode<Target>(made) == 0.0 && decode<Source>(code) != 0.0;
}

// ---- numbers found in the data before: the largest of many, by atomic_min over keys that fall as numbers rise

LD_DEVICE u64 key_of(double value) {
    const u64 bits = bits_of(value);
    return bits >> 63 ? bits : ~(bits | 1ull << 63);
}

constexpr u64 NOTHING = ~0ull;  // what keys begin with

LD_DEVICE double largest_of(Global keys, i64 slot) {
    const u64 key = keys.load<u64>(slot * 8);
    if (key == NOTHING) return 0.0;
    return double_of(key >> 63 ? key : ~key & ~(1ull << 63));
}

}  // namespace ld
