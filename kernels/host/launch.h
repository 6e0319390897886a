// Runs the blocks of a launch, so many at a time as are resident, until all have ended or one thread is at fault.
#pragma once

#include <map>
#include <string>

#include "copies.h"
#include "matrices.h"
#include "schedule.h"

namespace ld::host {

const Place& place() { return self->place; }

inline Phases launches;  // what a launch did comes before what the next one does

inline const Lane* waiting_in(const Warp& warp) {
    for (u32 lane = 0; lane < WARP; ++lane)
        if (warp.lanes[lane].state == State::waiting) return &warp.lanes[lane];
    return nullptr;
}

inline void end_lane() {
    Lane& lane = *self;
    Warp& warp = *lane.warp;
    Block& block = *warp.block;
    launches.arrive();
    lane.state = State::ended;
    --warp.ready;
    ++warp.ended;
    grid.idle = 0;
    const Lane* left = waiting_in(warp);
    if (warp.ended == WARP) {
        count_accesses(warp);
        ++block.ended;
        for (Warp& other : block.warps)
            if (other.waits_for_block) left = &other.lanes[0];
    }
    if (left)
        LD_STOP(Fault::divergence, left->site, "`%s`, where thread %u waits, but this thread ended", left->primitive,
                left->place.thread);
}

inline void run_lane() {
    self->fiber.begun();
    grid.request.entry(grid.request.arguments);
    end_lane();
    self->fiber.leave_for_good();
}

inline void start(Block& block, u32 index) {
    const Request& request = grid.request;
    launches.depart(0);
    block.shared.start(request.shared);
    block.arrived = block.ended = 0;
    ++block.epoch;
    for (u32 w = 0; w < block.warps.size(); ++w) {
        Warp& warp = block.warps[w];
        warp.block = &block;
        warp.lanes = &block.lanes[w * WARP];
        warp.ready = WARP;
        warp.arrived = warp.ended = 0;
        warp.waits_for_block = false;
        for (u32 l = 0; l < WARP; ++l) {
            Lane& lane = warp.lanes[l];
            lane.place = {w * WARP + l, request.threads, index, request.blocks};
            lane.warp = &warp;
            lane.state = State::ready;
            lane.polls = false;
            lane.copies.clear();
            lane.copy_group = 0;
            lane.accesses.clear();
            if (!lane.fiber.start(run_lane))
                return report(Fault::memory, lane, {}, "no memory for the stacks of so many threads");
        }
    }
}

inline void start_next(Block& block) {
    const u32 at = grid.started++;
    start(block, grid.request.order == Order::reverse ? grid.request.blocks - 1 - at : at);
}

// Nobody can go on, or all that can only look and find what they found before.
inline void report_deadlock() {
    std::map<std::string, u32> waiting;
    const Lane* first = nullptr;
    for (const auto& block : grid.blocks)
        for (const Lane& lane : block->lanes) {
            if (lane.state != State::waiting && !lane.polls) continue;
            if (!first) first = &lane;
            ++waiting[std::string(lane.primitive) + " at " + lane.site.file + ":" + std::to_string(lane.site.line)];
        }
    std::string text;
    for (const auto& [where, count] : waiting) {
        if (!text.empty()) text += ", ";
        text += std::to_string(count) + (count > 1 ? " threads in " : " thread in ") + where;
    }
    const u32 blocks = grid.request.blocks, missing = blocks - grid.started;
    if (missing) text += "; " + std::to_string(missing) + " of " + std::to_string(blocks) + " blocks have not started";
    report(Fault::deadlock, *first, first->site, "all wait: %s", text.c_str());
}

inline void run_turn(Warp& warp) {
    const u32 twist = random_below(1 << 10);
    for (u32 i = 0; i < WARP && grid.result->fault == Fault::none; ++i) {
        Lane& lane = warp.lanes[Schedule::lane(i, twist)];
        if (lane.state != State::ready) continue;
        self = &lane;
        lane.fiber.enter();
        self = nullptr;
    }
}

inline void run_blocks() {
    const Request& request = grid.request;
    const u32 warps = request.threads / WARP;
    for (auto& block : grid.blocks) start_next(*block);
    Schedule schedule(static_cast<u32>(grid.blocks.size()) * warps);
    while (grid.result->fault == Fault::none) {
        Warp* warp = schedule.next();
        if (!warp && grid.live == 0) return;
        if (!warp || grid.idle > IDLE_TURNS * request.threads * grid.blocks.size()) return report_deadlock();
        run_turn(*warp);
        if (warp->block->ended < warps || warp->ended < WARP) continue;
        if (grid.started < request.blocks)
            start_next(*warp->block);
        else
            --grid.live;
    }
}

inline void launch(const Request& request, Result& result) {
    watch_launcher(launcher_watched);
    result = {};
    grid.request = request;
    grid.result = &result;
    grid.random = request.seed;
    grid.tallies.clear();
    grid.idle = 0;
    grid.started = 0;
    grid.live = std::min(request.resident, request.blocks);
    grid.blocks.resize(grid.live);
    for (auto& block : grid.blocks) {
        if (!block) block = std::make_unique<Block>();
        if (block->lanes.size() != request.threads) {
            block->lanes = std::vector<Lane>(request.threads);
            block->warps = std::vector<Warp>(request.threads / WARP);
        }
    }
    run_blocks();
    launches.depart(0);
    result.tallies = grid.tallies.all().data();
    result.tally_count = grid.tallies.all().size();
}

}  // namespace ld::host

// One launch at a time: the state is that of the library.
extern "C" LD_RUNTIME void layoutdsl_launch(const ld::host::Request* request, ld::host::Result* result) {
    ld::host::launch(*request, *result);
}
