// Operations on words, and conversions of floats, on a GPU.
#pragma once

namespace ld {

LD_DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) {
    u32 result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
    return result;
}

template <int table> LD_DEVICE u32 lop3(u32 a, u32 b, u32 c) {
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(a), "r"(b), "r"(c), "n"(table));
    return result;
}

LD_DEVICE u32 count_ones(u32 a) { return __popc(a); }

LD_DEVICE u16 float_to_half(float value) {
    u16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}

LD_DEVICE float half_to_float(u16 value) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
    return result;
}

LD_DEVICE u16 float_to_bfloat16(float value) {
    u16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}

LD_DEVICE float bfloat16_to_float(u16 value) { return __uint_as_float(static_cast<u32>(value) << 16); }

#if __CUDA_ARCH__ >= 890
LD_DEVICE u16 floats_to_e4m3(float first, float second) {
    u16 result;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(result) : "f"(second), "f"(first));
    return result;
}
#endif

LD_DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

LD_DEVICE u32 add_f16x2(u32 a, u32 b) {
    u32 result;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

LD_DEVICE u32 mul_f16x2(u32 a, u32 b) {
    u32 result;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

// Before sm_90 bfloat16 has no addition and no multiplication of its own: times 1, and plus -0, which changes nothing.
LD_DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    u32 result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

LD_DEVICE u32 add_bf16x2(u32 a, u32 b) { return fma_bf16x2(a, 0x3F803F80, b); }
LD_DEVICE u32 mul_bf16x2(u32 a, u32 b) { return fma_bf16x2(a, b, 0x80008000); }

LD_DEVICE float fast_exp2(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

LD_DEVICE float fast_reciprocal(float value) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

LD_DEVICE float normal_cdf(float value) { return normcdff(value); }

}  // namespace ld
