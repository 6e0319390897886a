// The host's bodies of device.cuh.
#pragma once

#include "runtime.h"

#include "entry.h"
#include "memory.h"
#include "words.h"

namespace ld {

inline u32 thread() { return host::place().thread; }
inline u32 threads() { return host::place().threads; }
inline u32 block() { return host::place().block; }
inline u32 blocks() { return host::place().blocks; }
inline u32 lane() { return host::place().thread % 32; }
inline u32 warp() { return host::place().thread / 32; }

inline void sync_block(Site site) { host::sync_block(site); }
inline void sync_warp(Site site) { host::sync_warp(site); }
inline u32 shfl(u32 value, int from_lane, Site site) { return host::shfl(value, from_lane, site); }
inline u32 shfl_xor(u32 value, int mask, Site site) { return host::shfl_xor(value, mask, site); }
inline u32 ballot(bool predicate, Site site) { return host::ballot(predicate, site); }

template <int bytes> void copy_async(Shared to, i64 to_offset, Global from, i64 from_offset, u32 valid, Site site) {
    static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
    host::copy_async(to.at, to_offset, from.at, from_offset, bytes, valid, site);
}

inline void copy_commit(Site) { host::copy_commit(); }
template <int pending> void copy_wait(Site) { host::copy_wait(pending); }

template <int count> Fragment<u32, count> ldmatrix(Shared from, i64 offset, Site site) {
    static_assert(count == 1 || count == 2 || count == 4, "ldmatrix loads 1, 2 or 4 matrices");
    Fragment<u32, count> result;
    host::ldmatrix(result.at, count, from.at, offset, site);
    return result;
}

template <int count> Fragment<u32, count> ldmatrix_transposed(Shared from, i64 offset, Site site) {
    static_assert(count == 1 || count == 2 || count == 4, "ldmatrix loads 1, 2 or 4 matrices");
    Fragment<u32, count> result;
    host::ldmatrix_transposed(result.at, count, from.at, offset, site);
    return result;
}

inline Fragment<float, 4> mma_f16(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<float, 4> c, Site site) {
    host::mma_f16(a.at, b.at, c.at, site);
    return c;
}

inline Fragment<float, 4> mma_bf16(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<float, 4> c, Site site) {
    host::mma_bf16(a.at, b.at, c.at, site);
    return c;
}

inline Fragment<i32, 4> mma_s8(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<i32, 4> c, Site site) {
    host::mma_s8(a.at, b.at, c.at, site);
    return c;
}

inline Fragment<float, 4> mma_e4m3(Fragment<u32, 4> a, Fragment<u32, 2> b, Fragment<float, 4> c, Site site) {
    host::mma_e4m3(a.at, b.at, c.at, site);
    return c;
}

}  // namespace ld
