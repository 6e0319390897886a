// Collectives of a warp without memory: each lane leaves its operand, the last one to come gives each its result.
#pragma once

#include "rendezvous.h"

namespace ld::host {

template <class T> T& operand_of(Warp& warp, u32 lane) { return *static_cast<T*>(warp.lanes[lane].operand); }

struct Exchange {
    u32 value, other, result;
};

inline void exchange(Warp& warp) {
    for (u32 lane = 0; lane < WARP; ++lane) {
        Exchange& wanted = operand_of<Exchange>(warp, lane);
        wanted.result = operand_of<Exchange>(warp, wanted.other % WARP).value;
    }
    wake(warp);
}

u32 shfl(u32 value, int from_lane, Site site) {
    Exchange operand{value, static_cast<u32>(from_lane), 0};
    meet("shfl", site, &operand, exchange);
    return operand.result;
}

u32 shfl_xor(u32 value, int mask, Site site) {
    Exchange operand{value, self->place.thread ^ static_cast<u32>(mask), 0};
    meet("shfl_xor", site, &operand, exchange);
    return operand.result;
}

inline void gather_bits(Warp& warp) {
    u32 bits = 0;
    for (u32 lane = 0; lane < WARP; ++lane) bits |= (operand_of<u32>(warp, lane) & 1) << lane;
    for (u32 lane = 0; lane < WARP; ++lane) operand_of<u32>(warp, lane) = bits;
    wake(warp);
}

u32 ballot(bool predicate, Site site) {
    u32 operand = predicate;
    meet("ballot", site, &operand, gather_bits);
    return operand;
}

}  // namespace ld::host
