// From what each lane of a warp accessed to the accesses of the warp.
#pragma once

#include "grid.h"

namespace ld::host {

// The n-th access of every lane is in the same line.
inline bool in_step(const Warp& warp, size_t& most) {
    const Accesses* longest = &warp.lanes[0].accesses;
    for (u32 lane = 1; lane < WARP; ++lane)
        if (warp.lanes[lane].accesses.size() > longest->size()) longest = &warp.lanes[lane].accesses;
    most = longest->size();
    for (u32 lane = 0; lane < WARP; ++lane) {
        const Accesses& accesses = warp.lanes[lane].accesses;
        if (!accesses.empty() && accesses.size() != most) return false;
        for (size_t turn = 0; turn < accesses.size(); ++turn)
            if (accesses[turn].tally != (*longest)[turn].tally) return false;
    }
    return true;
}

// Lanes took different ways: sorts out which access of a lane is the n-th in its line.
inline void count_out_of_step(const Warp& warp) {
    struct Turn {
        u32 turn;
        Access access;
    };
    std::vector<Turn> turns;
    for (u32 lane = 0; lane < WARP; ++lane) {
        std::vector<u32> seen(grid.tallies.all().size());
        for (const Access& access : warp.lanes[lane].accesses) turns.push_back({seen[access.tally]++, access});
    }
    std::stable_sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
        return a.access.tally != b.access.tally ? a.access.tally < b.access.tally : a.turn < b.turn;
    });
    Access together[WARP];
    u32 count = 0;
    for (size_t i = 0; i < turns.size(); ++i) {
        together[count++] = turns[i].access;
        const Turn* next = i + 1 < turns.size() ? &turns[i + 1] : nullptr;
        if (next && next->turn == turns[i].turn && next->access.tally == turns[i].access.tally) continue;
        grid.tallies.add(together, together + count);
        count = 0;
    }
}

// Called where the lanes of a warp meet or have ended.
inline void count_accesses(Warp& warp) {
    size_t most;
    if (in_step(warp, most)) {
        Access together[WARP];
        for (size_t turn = 0; turn < most; ++turn) {
            u32 count = 0;
            for (u32 lane = 0; lane < WARP; ++lane)
                if (!warp.lanes[lane].accesses.empty()) together[count++] = warp.lanes[lane].accesses[turn];
            grid.tallies.add(together, together + count);
        }
    } else {
        count_out_of_step(warp);
    }
    for (u32 lane = 0; lane < WARP; ++lane) warp.lanes[lane].accesses.clear();
}

constexpr size_t ENDLESS = 1 << 20;

inline void note_access(u64 address, u32 bytes, u32 tally) {
    if (self->accesses.size() == ENDLESS) {
        const Tally& of = grid.tallies.all()[tally];
        LD_STOP(Fault::deadlock, (Site{of.file, of.line}),
                "%zu accesses since this thread last met others: a loop without end?", ENDLESS);
    }
    self->accesses.push_back({address, tally, static_cast<u16>(self->place.thread % WARP), static_cast<u16>(bytes)});
}

}  // namespace ld::host
