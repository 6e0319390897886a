// cp.async: copies from global to shared memory beside the thread. Sixteen bytes at a time pass L1 by.
#pragma once

namespace ld {

template <int bytes>
LD_DEVICE void copy_async(Shared to, i64 to_offset, Global from, i64 from_offset, u32 valid) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
    const u32 there = to.at + static_cast<u32>(to_offset);
    const u64 here = from.at + from_offset;
    if (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(there), "l"(here), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(there), "l"(here), "n"(bytes), "r"(valid)
                     : "memory");
}

LD_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int pending> LD_DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

}  // namespace ld
