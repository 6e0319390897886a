// Products of 8-bit activations and the weights of one stage.
//
// Products of inputs that share their scales are added up by the tensor cores, from zero each time; such a sum times its
// scales is added to the warp's sums, in float32. With e4m3 the same is done without scales: tensor cores add up e4m3
// with fewer bits than float32 has. Sums of int8 with one scale per channel stay integers until the end.
#pragma once
#include "gemm/decode8.cuh"
#include "gemm/floats.cuh"
#include "gemm/rows.cuh"
#include "gemm/scales.cuh"
#include "gemm/sums.cuh"
#include "gemm/weights.cuh"

namespace ld {

// ---- what tensor cores add up: `zero` to begin with, `value` of what came out

template <Operand operand> struct Adding;

// A sum within 2^22 of zero stands in the mantissa of 1.5 * 2^23, and needs no conversion.
template <> struct Adding<Operand::s8> {
    using Sum = i32;
    static constexpr i32 zero = 0x4B400000;
    LD_DEVICE static float value(i32 sum) { return float_of(static_cast<u32>(sum)) - 12582912.0f; }
    LD_DEVICE static Fragment<i32, 4> mma(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<i32, 4> c) {
        return mma_s8(a, b, c);
    }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
template <> struct Adding<Operand::e4m3> {
    using Sum = float;
    static constexpr float zero = 0;
    LD_DEVICE static float value(float sum) { return sum; }
    LD_DEVICE static Fragment<float, 4> mma(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<float, 4> c) {
        return mma_e4m3(a, b, c);
    }
};
#endif
}  // namespace ld
