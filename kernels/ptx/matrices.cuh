// ldmatrix and mma.sync.
#pragma once

namespace ld {

#define LD_LDMATRIX(name, modifier)                                                                                   \
    template <int count> LD_DEVICE Fragment<u32, count> name(Shared from, i64 offset) {                               \
        static_assert(count == 1 || count == 2 || count == 4, "ldmatrix loads 1, 2 or 4 matrices");                   \
        const u32 row = from.at + static_cast<u32>(offset);                                                           \
        Fragment<u32, count> m;                                                                                       \
        if constexpr (count == 1)                                                                                     \
            asm volatile("ldmatrix.sync.aligned.m8n8.x1" modifier ".shared.b16 {%0}, [%1];"                           \
                         : "=r"(m[0]) : "r"(row) : "memory");                                                         \
        else if constexpr (count == 2)                                                                                \
            asm volatile("ldmatrix.sync.aligned.m8n8.x2" modifier ".shared.b16 {%0, %1}, [%2];"                       \
                         : "=r"(m[0]), "=r"(m[1]) : "r"(row) : "memory");                                             \
        else                                                                                                          \
            asm volatile("ldmatrix.sync.aligned.m8n8.x4" modifier ".shared.b16 {%0, %1, %2, %3}, [%4];"               \
                         : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(row) : "memory");                     \
        return m;                                                                                                     \
    }

LD_LDMATRIX(ldmatrix, "")
LD_LDMATRIX(ldmatrix_transposed, ".trans")
#undef LD_LDMATRIX

// Both kinds of sum are added up in place; `sum` is the constraint of their registers.
#define LD_MMA(name, T, sum, instruction)                                                                             \
    LD_DEVICE Fragment<T, 4> name(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<T, 4> c) {                         \
        asm volatile("mma.sync.aligned." instruction                                                                  \
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                               \
                     : "+" sum(c[0]), "+" sum(c[1]), "+" sum(c[2]), "+" sum(c[3])                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                             \
        return c;                                                                                                     \
    }

LD_MMA(mma_f16, float, "f", "m16n8k16.row.col.f32.f16.f16.f32")
LD_MMA(mma_bf16, float, "f", "m16n8k16.row.col.f32.bf16.bf16.f32")
LD_MMA(mma_s8, i32, "r", "m16n8k32.row.col.s32.s8.s8.s32")
#if __CUDA_ARCH__ >= 890
LD_MMA(mma_e4m3, float, "f", "m16n8k32.row.col.f32.e4m3.e4m3.f32")
#endif
#undef LD_MMA

}  // namespace ld
