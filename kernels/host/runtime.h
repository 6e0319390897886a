// What a compiled kernel asks of the runtime (runtime.cpp, a library of its own, so that kernels compile quickly).
#pragma once

#include "site.h"

#define LD_RUNTIME __attribute__((visibility("default")))

namespace ld::host {

// Who runs now; one and the same for all that a thread does.
struct Place {
    u32 thread, threads, block, blocks;
};
LD_RUNTIME __attribute__((const)) const Place& place();

// Checked, counted, and where the bytes are on this machine. A fault ends the launch and does not return.
LD_RUNTIME const void* read_global(u64 at, i64 offset, u32 bytes, Site site);
LD_RUNTIME void* write_global(u64 at, i64 offset, u32 bytes, Site site);
LD_RUNTIME const void* read_shared(u32 at, i64 offset, u32 bytes, Site site);
LD_RUNTIME void* write_shared(u32 at, i64 offset, u32 bytes, Site site);

// An atomic access: where it goes, and afterwards whether it changed what stood there. One that changes nothing may be
// a turn of a loop that waits, so another thread gets its chance.
LD_RUNTIME void* reach_atomic(u64 at, i64 offset, u32 bytes, bool writes, Site site);
LD_RUNTIME void changed();
LD_RUNTIME void unchanged(const char* primitive, Site site, const void* place, u64 operand, u64 value);
LD_RUNTIME void pause(Site site);

LD_RUNTIME void copy_async(u32 to, i64 to_offset, u64 from, i64 from_offset, u32 bytes, u32 valid, Site site);
LD_RUNTIME void copy_commit();
LD_RUNTIME void copy_wait(u32 pending);

LD_RUNTIME void sync_block(Site site);
LD_RUNTIME void sync_warp(Site site);
LD_RUNTIME u32 shfl(u32 value, int from_lane, Site site);
LD_RUNTIME u32 shfl_xor(u32 value, int mask, Site site);
LD_RUNTIME u32 ballot(bool predicate, Site site);

LD_RUNTIME void ldmatrix(u32* result, u32 count, u32 at, i64 offset, Site site);
LD_RUNTIME void ldmatrix_transposed(u32* result, u32 count, u32 at, i64 offset, Site site);
// c += a * b
LD_RUNTIME void mma_f16(const u32* a, const u32* b, float* c, Site site);
LD_RUNTIME void mma_bf16(const u32* a, const u32* b, float* c, Site site);
LD_RUNTIME void mma_s8(const u32* a, const u32* b, i32* c, Site site);
LD_RUNTIME void mma_e4m3(const u32* a, const u32* b, float* c, Site site);

}  // namespace ld::host
