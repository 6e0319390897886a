// What is fixed when a GEMM is compiled: how its weights are stored, what they are multiplied with, and how a block is
// cut up. All sizes follow from it.
#pragma once
#include "device.cuh"

namespace ld {

// The stored code of a weight. u4 and u8 have zero points in a tensor of its own.
enum class Code { u4b8, u4, u8b128, u8, e4m3, e2m1 };

// What the tensor cores multiply, and what comes out.
enum class Operand { f16, bf16, s8, e4m3 };

// One 16-bit scale per channel, or per channel and group of inputs: 16-bit floats, or bytes.
enum class Scale { channel, group, e8m0, s0e5m3 };

// A block makes m x n results and takes k inputs at a time: one stage. Each warp owns 64 columns; `depth` warps share
// the inputs of a stage between them. So many stages stand in shared memory, all but one of them on their way.
template <Code code_, Operand operand_, Scale scale_, int group_, int m_, int n_, int k_, int depth_, int stages_,
          Operand result_ = operand_>
struct Shape {
    static constexpr Code code = code_;
    static constexpr Operand operand = operand_, result = result_;
    static constexpr Scale scale = scale_;
    static constexpr int group = group_;  // inputs; 0 with scales per channel
    static constexpr int m = m_, n = n_, k = k_, depth = depth_, stages = stages_;

    static constexpr int bits = code == Code::u8b128 || code == Code::u8 || code == Code::e4m3 ? 8 : 4;
    static constexpr int element = operand == Operand::s8 || operand == Operand::e4m3 ? 1 : 2;  // bytes

    static constexpr int strip = 16, strips = m / strip;                   // rows of one mma
    static constexpr int step = 32 / element, steps = k / step;            // inputs of one mma, and how many in a stage
    static constexpr int columns = 64, across = n / columns, parts = 8;    // of a warp; an mma has 8 columns
    static constexpr int tiles = 2 / element;                              // stored tiles that have these columns
    static constexpr int turns = steps / depth;                            // steps of a warp in each stage
    static constexpr int warps = across * depth, threads = 32 * warps;

    static constexpr bool grouped = scale != Scale::channel;
    static constexpr bool zero_points = code == Code::u4 || code == Code::u8;
    static constexpr int scale_bytes = scale == Scale::e8m0 || scale == Scale::s0e5m3 ? 1 : 2;
    static constexpr int groups = !grouped ? 0 : group < k ? k / group : 1;  // rows of scales in a stage

    // Bytes of a stage, and where in it each part begins.
    static constexpr int slice = columns * step * bits / 8;  // weights of a warp's step
    static constexpr int scale_row = n * scale_bytes, zero_row = zero_points && grouped ? n * bits / 8 : 0;
    static constexpr int weights_at = m * k * element;
    static constexpr int scales_at = weights_at + steps * across * slice;
    static constexpr int zeros_at = scales_at + groups * scale_row;
    static constexpr int stage = zeros_at + groups * zero_row;

    // After the last stage: sums of half the warps, then results in rows.
    static constexpr int sums = warps / 2 * strips * parts * 32 * 16;
    static constexpr int result_row = n * 4 + 32, results = m * result_row;
    static constexpr int shared = stages * stage > (sums > results ? sums : results)
                                      ? stages * stage
                                      : (sums > results ? sums : results);

    static_assert(m % strip == 0 && n % columns == 0 && k % step == 0 && steps % depth == 0 && stages >= 2);
    static_assert((depth & (depth - 1)) == 0, "sums of warps are added up by halves");
    static_assert(!grouped || (group % step == 0 && (group % k == 0 || k % group == 0)));
};

}  // namespace ld
