// Which thread runs next. A thread runs until it waits, polls or ends. A GPU may run them in any of these orders:
//   forward, reverse    warps and their lanes by turns, from the first or from the last; blocks begin in that order
//   random              any warp next, its lanes in a random order
//   ahead               one warp as long as it can, then any other
#pragma once

#include "rendezvous.h"

namespace ld::host {

constexpr u64 IDLE_TURNS = 1000;  // for each thread: so long nothing happens but that threads look and find it so

class Schedule {
  public:
    explicit Schedule(u32 warps) : warps_(warps), at_(grid.request.order == Order::forward ? warps - 1 : 0) {}

    // The warp that runs next; null where none can.
    Warp* next() {
        const Order order = grid.request.order;
        if (order == Order::ahead && eager(warp(at_))) return &warp(at_);
        const u32 step = order == Order::reverse ? warps_ - 1 : 1;
        u32 at = order == Order::random || order == Order::ahead ? random_below(warps_) : (at_ + step) % warps_;
        for (u32 tried = 0; tried < warps_; ++tried, at = (at + step) % warps_)
            if (warp(at).ready) {
                at_ = at;
                return &warp(at);
            }
        return nullptr;
    }

    // The lane that has the i-th turn in a warp. `twist` is random, and one for all turns.
    static u32 lane(u32 i, u32 twist) {
        switch (grid.request.order) {
            case Order::forward: return i;
            case Order::reverse: return WARP - 1 - i;
            default: return (i * (twist | 1) + twist / WARP) % WARP;
        }
    }

  private:
    Warp& warp(u32 index) {
        const size_t per_block = grid.blocks[0]->warps.size();
        return grid.blocks[index / per_block]->warps[index % per_block];
    }

    // Some lane has more to do than to look whether it may go on.
    static bool eager(const Warp& warp) {
        return std::any_of(warp.lanes, warp.lanes + WARP,
                           [](const Lane& lane) { return lane.state == State::ready && !lane.polls; });
    }

    u32 warps_, at_;
};

}  // namespace ld::host
