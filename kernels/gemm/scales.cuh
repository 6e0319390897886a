// Scales and zero points: where a lane reads them, and how they are applied.
//
// Scales of several groups stand in shared memory with the stage and multiply the weights before the mma, each product
// rounded once to 16 bits. Scales per channel multiply the sums, in float32.
#pragma once
#include "gemm/decode.cuh"
#include "gemm/shape.cuh"

namespace ld {

template <Operand type> LD_DEVICE float to_float(u32 bits) {
    return type == Operand::f16 ? half_to_float(static_cast<u16>(bits)) : bfloat16_to_float(static_cast<u16>(bits));
}

template <Operand type> LD_DEVICE u32 from_float(float value) {
    return type == Operand::f16 ? float_to_half(value) : float_to_bfloat16(value);
}

// S0E5M3 scales of bfloat16 are multiplied with 2^112, so that weights are no smaller than with float16; the global
// scale has that much too much.
constexpr int RAISED = 112;

// Byte scales as 16-bit floats: of four bytes the first and third (`odd` 0) or the others. Bytes are the upper ones of
// a float without its sign, of a bfloat16 (e8m0) or of a float16 (s0e5m3), whose exponent counts from 112 less.
template <class S> LD_DEVICE u32 from_bytes(u32 word, int odd) {
    if constexpr (S::scale == Scale::e8m0 || S::operand == Operand::f16)
        return (odd ? word >> 1 : word << 7) & 0x7F807F80;
    const u32 low = (odd ? word >> 4 : word << 4) & 0x0FF00FF0;
    return mul_bf16x2(mul_bf16x2(low, bf16_power(112)), bf16_power(RAISED));
}

// Scales and zero points of a lane's columns in one step: word j of the scales is for parts 2 j and 2 j + 1.
template <class S> struct StepScales {
    Fragment<u32, 4> scales;
    Zeros<S> zeros;

    // Both halves what takes off a part's zero point, as `decoded` wants it.
    LD_DEVICE u32 zero(int part) const {
        return S::zero_points ? half_twice(zero_pair<S>(zeros, part / 2), part % 2) : 0;
    }

    LD_DEVICE Fragment<u32, 2> scaled(Fragment<u32, 2> weights, int part) const {
        if constexpr (S::grouped) {
            const u32 scale = half_twice(scales[part / 2], part % 2);
            weights[0] = mul<S::operand>(weights[0], scale);
            weights[1] = mul<S::operand>(weights[1], scale);
        }
        return weights;
    }
};

template <class S> class Scales {
  public:
    // From `column` of the block on, of a matrix of n columns.
    LD_DEVICE Scales(Global scales, Global zeros, i64 n, i64 column)
        : scales_(scales + column * S::scale_bytes), zeros_(zeros + column * S::bits / 8), n_(static_cast<i32>(n)) {
        if constexpr (S::zero_points && !S::grouped) zero_ = zeros_of_lane(zeros_);
    }

    // Zero points lie behind the scales in a stage, and are copied along with them.
    LD_DEVICE void copy(Shared stage, i32 k) const {
        if constexpr (S::grouped) {
            constexpr int in_scales = S::scale_row / 16, in_zeros = S::zero_points ? S::zero_row / 16 : 1;
            constexpr int scales = S::groups * in_scales, all = scales + S::groups * (S::zero_row / 16);
            LD_UNROLL
            for (int begin = 0; begin < all; begin += S::threads) {
                const int chunk = begin + thread(), zero = chunk - scales;
                const bool of_zeros = S::zero_points && zero >= 0;
                const int row = of_zeros ? zero / in_zeros : chunk / in_scales;
                const int within = of_zeros ? zero % in_zeros : chunk % in_scales;
                const i64 stride = n_ * (of_zeros ? S::bits : 8 * S::scale_bytes) / 8;
                if (chunk < all)
                    copy_async<16>(stage, S::scales_at + chunk * 16, of_zeros ? zeros_ : scales_,
                                   (k / S::group + row) * stride + within * 16);
            }
        }
    }

    LD_DEVICE StepScales<S> of_step(Shared stage, int step) const {
        StepScales<S> found;
        if constexpr (S::grouped) {
            const Shared mine = stage + (S::scales_at + row(step) * S::scale_row);
            found.scales = words(mine + (of_warp() + lane() / 4 * 8) * S::scale_bytes);
        }
        found.zeros = zeros(stage, step);
        return found;
    }

    // The zero points of a lane's columns.
    LD_DEVICE Zeros<S> zeros(Shared stage, int step) const {
        if constexpr (!S::zero_points)
            return {};
        else if constexpr (!S::grouped)
            return zero_;
        else
            return zeros_of_lane(stage + (S::zeros_at + row(step) * S::zero_row));
    }

    // Columns of the block before the warp's own; in a stage, the row of a step's group.
    LD_DEVICE static int of_warp() { return warp() % S::across * S::columns; }
    LD_DEVICE static int row(int step) { return S::group < S::k ? step * S::step / S::group : 0; }

  private:
    LD_DEVICE static Fragment<u32, 4> words(Shared mine) {
        if constexpr (S::scale_bytes == 2) {
            const Quad four = mine.load<Quad>(0);
            return {four.x, four.y, four.z, four.w};
        } else {
            const u64 eight = mine.load<u64>(0);
            const u32 low = static_cast<u32>(eight), high = static_cast<u32>(eight >> 32);
            return {from_bytes<S>(low, 0), from_bytes<S>(low, 1), from_bytes<S>(high, 0), from_bytes<S>(high, 1)};
        }
    }

    // `Memory` is Shared or Global, from the block's first column on.
    template <class Memory> LD_DEVICE static Zeros<S> zeros_of_lane(const Memory& row) {
        const int at = (of_warp() + lane() / 4 * 8) * S::bits / 8;
        if constexpr (S::bits == 4) {
            return {{row.template load<u32>(at)}};
        } else {
            const u64 both = row.template load<u64>(at);
            return {{static_cast<u32>(both), static_cast<u32>(both >> 32)}};
        }
    }

    Global scales_, zeros_;
    i32 n_;
    Zeros<S> zero_;
};

// Two neighbours, the pair `i` of the eight from `column` on, of 16-bit floats in the order of scales per channel and
// biases.
LD_DEVICE u32 channel_pair(Global values, i64 column, int i) {
    return values.load<u32>((column / 32 * 32 + i * 8 + column / 8 % 4 * 2) * 2);
}

LD_DEVICE constexpr float power_of_two(int exponent) {
    float made = 1.0f;
    for (int i = 0; i != exponent; i += exponent < 0 ? -1 : 1) made *= exponent < 0 ? 0.5f : 2.0f;
    return made;
}

// The power that scales of sums have too much: the weights have it.
template <class S> LD_DEVICE constexpr int excess() {
    if (S::operand != Operand::bf16) return 0;
    return S::scale == Scale::s0e5m3 ? RAISED : restores<S> && !S::grouped ? lacks<S>() : 0;
}

// What becomes of sums before they are rounded.
template <class S> class Finish {
  public:
    LD_DEVICE Finish(Global scales, Global global_scale, Global bias) : scales_(scales), bias_(bias) {
        if constexpr (S::scale == Scale::s0e5m3) factor_ = global_scale.load<float>(0) * power_of_two(-excess<S>());
    }

    // Eight of a row, from `column` of the matrix on, a multiple of 8: times of_sums first, times of_results at last.
    LD_DEVICE Fragment<float, 8> operator()(Fragment<float, 8> sums, i64 column, float of_sums,
                                            float of_results) const {
        LD_UNROLL
        for (int i = 0; i < 4; ++i) {
            const u32 scales = S::grouped ? 0 : channel_pair(scales_, column, i);
            const u32 bias = bias_.at ? channel_pair(bias_, column, i) : 0;
            sums[2 * i] = finished(sums[2 * i] * of_sums, scales, bias) * of_results;
            sums[2 * i + 1] = finished(sums[2 * i + 1] * of_sums, scales >> 16, bias >> 16) * of_results;
        }
        return sums;
    }

  private:
    // The scale and the bias are the low 16 bits.
    LD_DEVICE float finished(float sum, u32 scale, u32 bias) const {
        if constexpr (!S::grouped) sum *= to_float<S::result>(scale & 0xFFFF) * power_of_two(-excess<S>());
        if constexpr (S::scale == Scale::s0e5m3) sum *= factor_;
        return bias_.at ? sum + to_float<S::result>(bias & 0xFFFF) : sum;
    }

    Global scales_, bias_;
    float factor_;
};

}  // namespace ld
