// Rows of 16-bit floats, several at once: computed with as floats, rounded when they are stored.
#pragma once
#include "device.cuh"

namespace ld {

struct F16 {
    LD_DEVICE static float read(u16 code) { return half_to_float(code); }
    LD_DEVICE static u16 rounded(float value) { return float_to_half(value); }
};

struct BF16 {
    LD_DEVICE static float read(u16 code) { return bfloat16_to_float(code); }
    LD_DEVICE static u16 rounded(float value) { return float_to_bfloat16(value); }
};

// `count` neighbours of a row, moved by one access.
template <int count> struct alignas(2 * count) Chunk {
    u16 at[count];
};

}  // namespace ld
