// The activation between two products: rows of the first one's output -> rows of the second one's input, 16-bit floats
// with fp32 in between, within 2^-15 of the value before it is rounded. Where the second product's weights have padding
// on either side, zeros are written.
//
// A row has the parts gate and up, one after the other or alternating, or is all there is:
//     gated            function(gate) * up
//     clamped swiglu   (up + 1) * gate * sigmoid(alpha * gate), up in [-limit, limit] and gate at most limit
//     plain            function(x)
#pragma once
#include "gemm/halves.cuh"

namespace ld {

constexpr float LOG2_E = 1.4426950408889634f;

// Within 2^-21 + |value| 2^-23 of itself.
LD_DEVICE float sigmoid(float value) { return fast_reciprocal(1.0f + fast_exp2(value * -LOG2_E)); }

struct Silu {
    LD_DEVICE static float of(float x) { return x * sigmoid(x); }
};

// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, without the cancellation of 1 + tanh.
struct GeluTanh {
    LD_DEVICE static float of(float x) { return x * sigmoid(x * (1.5957691216057308f + 0.071354816272600f * (x * x))); }
};

struct GeluErf {
    LD_DEVICE static float of(float x) { return x * normal_cdf(x); }
};

struct Relu2 {
    LD_DEVICE static float of(float x) { return x > 0.0f ? x * x : x < 0.0f ? 0.0f : x; }
};

template <class Function> struct Gated {
    LD_DEVICE static float of(float gate, float up) { return Function::of(gate) * up; }
};

// Numbers has `alpha` and `limit`.
template <class Numbers> struct ClampedSwiglu {
    LD_DEVICE static float of(float gate, float up) {
        constexpr float limit = Numbers::limit;
        gate = gate > limit ? limit : gate;
        up = up > limit ? limit : up < -limit ? -limit : up;
        return (up + 1.0f) * (gate * sigmoid(Numbers::alpha * gate));
    }
};

// ---- where the parts of a row stand: `count` outputs from column `at` on

template <Operand type, class Combined> struct Split {
    static constexpr int count = 8;
    LD_DEVICE static Chunk<count> of(Global row, i64 at, i64 up) {
        const auto gates = row.load<Chunk<8>>(at * 2), ups = row.load<Chunk<8>>((up + at) * 2);
        Chunk<count> made;
        for (int i = 0; i < count; ++i)
            made.at[i] = from_float<type>(Combined::of(to_float<type>(gates.at[i]), to_float<type>(ups.at[i])));
        return made;
    }
};

template <Operand type, class Combined> struct Alternating {
    static constexpr int count = 4;
    LD_DEVICE static Chunk<count> of(Global row, i64 at, i64) {
        const auto both = row.load<Chunk<8>>(at * 4);
        Chunk<count> made;
        for (int i = 0; i < count; ++i) {
            const float gate = to_float<type>(both.at[2 * i]), up = to_float<type>(both.at[2 * i + 1]);
            made.at[i] = from_float<type>(Combined::of(gate, up));
        }
        return made;
    }
};

template <Operand type, class Function> struct Plain {
    static constexpr int count = 8;
    LD_DEVICE static Chunk<count> of(Global row, i64 at, i64) {
        auto made = row.load<Chunk<8>>(at * 2);
        for (int i = 0; i < count; ++i) made.at[i] = from_float<type>(Function::of(to_float<type>(made.at[i])));
        return made;
    }
};

struct Activation {
    Global from;      // rows, `from_stride` elements apart
    i64 from_stride;
    i64 up;           // the column where the part `up` begins, where it follows the gate
    Global to;        // [rows, width]
    i64 width;
    i64 front;        // how many columns of zeros come first
    i64 valid;        // how many columns follow that have values; then zeros again
    i64 rows;
    Global local;     // [rows] int32: a row with a negative number is left out; at 0 where none is
};

// A chunk for each thread. All columns and strides but `valid` are multiples of 8 elements, all rows of 16 bytes.
template <class Parts> LD_DEVICE void activate(const Activation& of) {
    constexpr int count = Parts::count;
    const u32 chunks = static_cast<u32>(of.width / count), piece = block() * threads() + thread();
    const u32 row = piece / chunks;
    if (row >= of.rows || (of.local.at && of.local.load<i32>(row * 4ll) < 0)) return;
    const i64 column = i64{piece - row * chunks} * count, at = column - of.front;
    Chunk<count> made = {};
    if (at >= 0 && at < of.valid) made = Parts::of(of.from + row * of.from_stride * 2, at, of.up);
    for (int i = 0; i < count; ++i) made.at[i] = at + i < of.valid ? made.at[i] : 0;
    of.to.store<Chunk<count>>((row * of.width + column) * 2, made);
}

}  // namespace ld
