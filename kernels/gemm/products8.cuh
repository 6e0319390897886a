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

// ---- scales, in channel order: of a tile's four parts the columns 2 (lane % 4) and the next

// Two 16-bit floats; or, with int8 activations, integers, each in the mantissa of 2^23 as its distance from -2^15.
template <class S> LD_DEVICE float scale_of(u32 pair, int second) {
    if constexpr (S::operand == Operand::s8)
        return float_of(permute_bytes(pair ^ 0x80008000, 0x4B000000, second ? 0x7632 : 0x7610)) - 8421376.0f;
    return to_float<S::result>(second ? pair >> 16 : pair & 0xFFFF);
}

// A byte b is 2^(b - 127), and 0 is 0. This is half of it: 2^128 is no float. Sums of activations that are not scaled
// yet stay in range up to bytes of 243.
LD_DEVICE float half_of_power(u32 byte) { return float_of(byte > 1 ? (byte - 1) << 23 : byte << 22); }

template <class S> class TileScales {
  public:
    LD_DEVICE TileScales(Shared stage, int step, int tile) {
        if constexpr (S::grouped) {
            const int column = Scales<S>::of_warp() + 32 * tile + lane() % 4 * 8;
            const int at = S::scales_at + Scales<S>::row(step) * S::scale_row + column * S::scale_bytes;
            if constexpr (S::scale == Scale::e8m0) {
                const u64 eight = stage.load<u64>(at);
                words_ = {{static_cast<u32>(eight), static_cast<u32>(eight >> 32), 0, 0}};
            } else {
                const Quad four = stage.load<Quad>(at);
                words_ = {{four.x, four.y, four.z, four.w}};
            }
        }
    }

    // Of part `within` of the tile; 1 where sums are scaled at the end.
    LD_DEVICE float at(int within, int second) const {
        if constexpr (!S::grouped)
            return 1.0f;
        else if constexpr (S::scale == Scale::e8m0)
            return half_of_power(words_[within / 2] >> (within % 2 * 16 + second * 8) & 0xFF);
        else
            return scale_of<S>(words_[within], second);
    }

  private:
    Fragment<u32, 4> words_;
};

// What sums are multiplied with at last: for bytes that decoders make, and for halves of powers.
template <class S>
constexpr float unit8 = Decode8<S::code, S::operand>::unit * (S::scale == Scale::e8m0 ? 2.0f : 1.0f);

// ---- products

template <class S> constexpr bool adds_integers = S::operand == Operand::s8 && !S::grouped;

template <bool integers> struct SumType { using Sum = float; };
template <> struct SumType<true> { using Sum = i32; };
template <class S> using SumOf = typename SumType<adds_integers<S>>::Sum;

// Steps of a warp in a stage whose products are added up before they are scaled.
template <class S> constexpr int span = !S::grouped || S::group >= S::turns * S::step ? S::turns : S::group / S::step;

// A warp's part of one stage.
template <class S, class Sum>
LD_DEVICE void multiply8(Shared stage, const Weights<S>& weights, const Scales<S>& scales, Sums<S, Sum>& sums) {
    using Decoder = Decode8<S::code, S::operand>;
    using Add = Adding<S::operand>;
    static_assert(span<S> * S::step * 128 * 128 < 1 << 22, "sums of int8 that are scaled stay within 2^22");
    LD_UNROLL
    for (int begin = 0; begin < S::turns; begin += span<S>) {
        const int step = weights.first() + begin;
        const Zeros<S> zeros = scales.zeros(stage, step);
        Fragment<u32, 4> a[span<S>][S::strips];
        LD_UNROLL
        for (int turn = 0; turn < span<S>; ++turn)
            LD_UNROLL
            for (int strip = 0; strip < S::strips; ++strip)
                a[turn][strip] = Rows<S>::fragment(stage, strip, step + turn);
        LD_UNROLL
        for (int tile = 0; tile < S::tiles; ++tile) {
            const TileScales<S> factors(stage, step, tile);
            Stored<S> words[span<S>];
            LD_UNROLL
            for (int turn = 0; turn < span<S>; ++turn) words[turn] = weights.stored(stage, begin + turn, tile);
            LD_UNROLL
            for (int within = 0; within < 4; ++within) {
                const int part = tile * 4 + within;
                Fragment<typename Add::Sum, 4> added[S::strips];
                LD_UNROLL
                for (int strip = 0; strip < S::strips; ++strip)
                    if constexpr (adds_integers<S>)
                        added[strip] = sums.at[strip][part];
                    else
                        added[strip] = {{Add::zero, Add::zero, Add::zero, Add::zero}};
                LD_UNROLL
                for (int turn = 0; turn < span<S>; ++turn) {
                    const u32 zero = S::zero_points ? zero_of(zeros[0], part) : 0;
                    const Fragment<u32, 2> b = Decoder::fragment(words[turn].at + within * Decoder::words, zero);
                    LD_UNROLL
                    for (int strip = 0; strip < S::strips; ++strip) added[strip] = Add::mma(a[turn][strip], b, added[strip]);
                }
                LD_UNROLL
                for (int strip = 0; strip < S::strips; ++strip)
                    if constexpr (adds_integers<S>)
                        sums.at[strip][part] = added[strip];
                    else
                        LD_UNROLL
                        for (int i = 0; i < 4; ++i)
                            sums.at[strip][part][i] += Add::value(added[strip][i]) * factors.at(within, i % 2);
            }
        }
    }
}

}  // namespace ld
