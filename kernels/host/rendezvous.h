// Where threads wait for each other: all lanes of a warp come to the same primitive in the same line, the last one to
// come completes it for all of them.
#pragma once

#include "counting.h"
#include "grid.h"

namespace ld::host {

inline void wake(Warp& warp) {
    for (u32 lane = 0; lane < WARP; ++lane) warp.lanes[lane].state = State::ready;
    warp.ready = WARP;
    grid.idle = 0;
}

// Lets the other threads run until something makes this one ready again, which may be so already.
inline void wait_until_ready() {
    Lane& lane = *self;
    if (lane.state != State::ready) lane.fiber.leave();
}

// A kernel whose lanes or warps part ways at a barrier or collective is wrong, even where some GPU happens to bear it.
inline void check_company(const Lane& other, const char* primitive, Site site) {
    if (other.primitive == primitive && other.site == site) return;
    LD_STOP(Fault::divergence, site, "`%s`, while thread %u waits in `%s` at %s:%u", primitive, other.place.thread,
            other.primitive, other.site.file, other.site.line);
}

inline void check_all_there(u32 ended, const char* unit, const char* primitive, Site site) {
    if (ended) LD_STOP(Fault::divergence, site, "`%s`, but %u %s ended already", primitive, ended, unit);
}

// `operand` stands on the lane's stack until the primitive is complete.
inline void meet(const char* primitive, Site site, void* operand, void (*complete)(Warp&)) {
    Lane& lane = *self;
    Warp& warp = *lane.warp;
    check_all_there(warp.ended, "threads of the warp", primitive, site);
    if (warp.arrived)
        for (u32 other = 0; other < WARP; ++other)
            if (warp.lanes[other].state == State::waiting) {
                check_company(warp.lanes[other], primitive, site);
                break;
            }
    lane.primitive = primitive;
    lane.site = site;
    lane.operand = operand;
    lane.state = State::waiting;
    --warp.ready;
    if (++warp.arrived == WARP) {
        warp.arrived = 0;
        count_accesses(warp);
        complete(warp);
    }
    wait_until_ready();
}

inline void end_warp_phase(Warp& warp) {
    ++warp.epoch;
    ++warp.phases.phase;
    wake(warp);
}

inline void end_block_phase(Warp& warp) {
    Block& block = *warp.block;
    const Lane& lane = warp.lanes[0];
    check_all_there(block.ended, "warps of the block", lane.primitive, lane.site);
    if (block.arrived)
        for (Warp& other : block.warps)
            if (other.waits_for_block) check_company(other.lanes[0], lane.primitive, lane.site);
    warp.waits_for_block = true;
    if (++block.arrived < block.warps.size()) return;
    block.arrived = 0;
    ++block.epoch;
    ++block.phases.phase;
    for (Warp& other : block.warps) {
        other.waits_for_block = false;
        wake(other);
    }
}

void sync_warp(Site site) {
    Phases& phases = self->warp->phases;
    const u32 phase = phases.phase;
    phases.arrive();
    meet("sync_warp", site, nullptr, end_warp_phase);
    phases.depart(phase);
}

void sync_block(Site site) {
    Phases& phases = self->warp->block->phases;
    const u32 phase = phases.phase;
    phases.arrive();
    meet("sync_block", site, nullptr, end_block_phase);
    phases.depart(phase);
}

// A turn in which a thread only looks whether to go on; the others get theirs.
inline void poll(const char* primitive, Site site) {
    Lane& lane = *self;
    lane.primitive = primitive;
    lane.site = site;
    lane.polls = true;
    ++grid.idle;
    lane.fiber.leave();
    lane.polls = false;
}

void pause(Site site) { poll("pause", site); }

// A GPU may let others run between any two accesses.
inline void maybe_others() {
    if (grid.request.order == Order::random && random_below(16) == 0) self->fiber.leave();
}

}  // namespace ld::host
