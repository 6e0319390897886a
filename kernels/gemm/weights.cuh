// B: stored tiles as they are, by asynchronous copies into shared memory, and out of it 16 bytes per lane.
//
// A warp copies what it will read itself: 64 columns of its own steps, which lie together in the tensor. They are one
// stored tile, or two of 32 columns each with 8-bit activations.
#pragma once
#include "gemm/shape.cuh"

namespace ld {

// What a lane holds of a tile in one step: words as they are stored.
template <class S> using Stored = Fragment<u32, S::slice / S::tiles / 128>;

template <class S> class Weights {
  public:
    // From the warp's `column` on, a multiple of 64, of a matrix of n columns.
    LD_DEVICE Weights(Global weights, i64 n, i64 column)
        : weights_(weights + column / S::columns * S::slice), row_(static_cast<i32>(n) / S::columns * S::slice),
          shared_(S::weights_at + (warp() % S::across * S::steps + first()) * S::slice) {}

    // The warp's first step in a stage.
    LD_DEVICE static int first() { return warp() / S::across * S::turns; }

    LD_DEVICE void copy(Shared stage, i32 k) const {
        LD_UNROLL
        for (int turn = 0; turn < S::turns; ++turn)
            LD_UNROLL
            for (int begin = 0; begin < S::slice / 16; begin += 32) {
                const int chunk = begin + lane();
                copy_async<16>(stage, shared_ + turn * S::slice + place(chunk), weights_,
                               i64{k / S::step + first() + turn} * row_ + chunk * 16);
            }
    }

    LD_DEVICE Stored<S> stored(Shared stage, int turn, int tile = 0) const {
        Stored<S> words;
        LD_UNROLL
        for (int piece = 0; piece < PIECES; ++piece) {
            const int chunk = (tile * 32 + lane()) * PIECES + piece;
            const Quad four = stage.load<Quad>(shared_ + turn * S::slice + place(chunk));
            words[piece * 4] = four.x;
            words[piece * 4 + 1] = four.y;
            words[piece * 4 + 2] = four.z;
            words[piece * 4 + 3] = four.w;
        }
        return words;
    }

  private:
    static constexpr int PIECES = S::slice / S::tiles / 512;  // chunks of a lane

    // Where lanes read every second chunk, those of the second half of a line move aside.
    LD_DEVICE static int place(int chunk) { return (PIECES == 2 ? chunk ^ (chunk >> 3 & 1) : chunk) * 16; }

    Global weights_;
    i32 row_;  // bytes
    i32 shared_;
};

}  // namespace ld
