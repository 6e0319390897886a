// Global and shared memory on a GPU. The conversions tell the compiler the address space: LDG and LDS, not LD.
#pragma once

namespace ld {

template <class T> LD_DEVICE T Global::load(i64 offset) const {
    return *static_cast<const T*>(__cvta_global_to_generic(at + offset));
}

template <class T> LD_DEVICE void Global::store(i64 offset, T value) const {
    *static_cast<T*>(__cvta_global_to_generic(at + offset)) = value;
}

template <class T> LD_DEVICE T Shared::load(i64 offset) const {
    return *static_cast<const T*>(__cvta_shared_to_generic(at + static_cast<u32>(offset)));
}

template <class T> LD_DEVICE void Shared::store(i64 offset, T value) const {
    *static_cast<T*>(__cvta_shared_to_generic(at + static_cast<u32>(offset))) = value;
}

LD_DEVICE Shared shared_memory() {
    extern __shared__ Quad block_memory[];
    return {static_cast<u32>(__cvta_generic_to_shared(block_memory))};
}

LD_DEVICE u32 atomic_add(Global to, i64 offset, u32 value) {
    return atomicAdd(static_cast<u32*>(__cvta_global_to_generic(to.at + offset)), value);
}

LD_DEVICE float atomic_add(Global to, i64 offset, float value) {
    return atomicAdd(static_cast<float*>(__cvta_global_to_generic(to.at + offset)), value);
}

LD_DEVICE u64 atomic_min(Global to, i64 offset, u64 value) {
    return atomicMin(static_cast<u64*>(__cvta_global_to_generic(to.at + offset)), value);
}

LD_DEVICE u32 atomic_swap_if(Global to, i64 offset, u32 expected, u32 value) {
    return atomicCAS(static_cast<u32*>(__cvta_global_to_generic(to.at + offset)), expected, value);
}

LD_DEVICE u32 load_acquire(Global from, i64 offset) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from.at + offset) : "memory");
    return value;
}

LD_DEVICE void store_release(Global to, i64 offset, u32 value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to.at + offset), "r"(value) : "memory");
}

LD_DEVICE u32 atomic_add_ordered(Global to, i64 offset, u32 value) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(to.at + offset), "r"(value) : "memory");
    return before;
}

LD_DEVICE void pause() { __nanosleep(32); }

}  // namespace ld
