// 16-bit floats: computed with as floats, rounded when they are stored, and several of a row in one access.
#pragma once
#include "gemm/shape.cuh"

namespace ld {

template <Operand type> LD_DEVICE float to_float(u32 bits) {
    return type == Operand::f16 ? half_to_float(static_cast<u16>(bits)) : bfloat16_to_float(static_cast<u16>(bits));
}

template <Operand type> LD_DEVICE u32 from_float(float value) {
    return type == Operand::f16 ? float_to_half(value) : float_to_bfloat16(value);
}

// `count` neighbours of a row.
template <int count> struct alignas(2 * count) Chunk {
    u16 at[count];
};

}  // namespace ld
