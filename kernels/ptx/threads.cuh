// Indices, barriers and warp collectives on a GPU. Masks are full: warps come whole.
#pragma once

namespace ld {

LD_DEVICE u32 thread() { return threadIdx.x; }
LD_DEVICE u32 threads() { return blockDim.x; }
LD_DEVICE u32 block() { return blockIdx.x; }
LD_DEVICE u32 blocks() { return gridDim.x; }
LD_DEVICE u32 lane() { return threadIdx.x % 32; }
LD_DEVICE u32 warp() { return threadIdx.x / 32; }

LD_DEVICE void sync_block() { __syncthreads(); }
LD_DEVICE void sync_warp() { __syncwarp(); }
LD_DEVICE u32 shfl(u32 value, int from_lane) { return __shfl_sync(0xFFFFFFFF, value, from_lane); }
LD_DEVICE u32 shfl_xor(u32 value, int mask) { return __shfl_xor_sync(0xFFFFFFFF, value, mask); }
LD_DEVICE u32 ballot(bool predicate) { return __ballot_sync(0xFFFFFFFF, predicate); }

}  // namespace ld
