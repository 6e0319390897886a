// cp.async on the host.
#pragma once

#include <cstring>

#include "reach.h"

namespace ld::host {

inline void make(Copy& copy) {
    u8* to = self->warp->block->shared.at(copy.to);
    watch_read(copy.from, copy.valid);
    watch_write(to, copy.bytes);
    std::memcpy(to, copy.from, copy.valid);
    std::memset(to + copy.valid, 0, copy.bytes - copy.valid);
    copy.made = true;
}

inline bool made_at_issue() {
    const Copying copying = grid.request.copying;
    return copying == Copying::early || (copying == Copying::mixed && random_below(2));
}

void copy_async(u32 to, i64 to_offset, u64 from, i64 from_offset, u32 bytes, u32 valid, Site site) {
    if (valid > bytes) LD_STOP(Fault::bounds, site, "asynchronous copy of %u valid bytes out of %u", valid, bytes);
    Copy copy{"", 0, bytes, valid, self->copy_group, 0, false};
    if (valid) {  // else nothing is read, wherever `from` points
        copy.from = reach_global("asynchronous copy", from, from_offset, valid, bytes, false, site);
        const u32 tally = grid.tallies.index({site, Space::global, Way::load, bytes});
        note_access(reinterpret_cast<u64>(copy.from), valid, tally);
    }
    copy.to = static_cast<u32>(reach_shared("asynchronous copy", to, to_offset, bytes, site));
    copy.tally = grid.tallies.index({site, Space::shared, Way::store, bytes});
    note_access(copy.to, bytes, copy.tally);
    const Moment now = moment(*self, copy.tally);
    check_race(self->warp->block->shared.copy_issued(copy.to, bytes, now), "asynchronous copy", bytes, copy.to, site);
    if (made_at_issue()) make(copy);
    self->copies.push_back(copy);
}

void copy_commit() { ++self->copy_group; }

void copy_wait(u32 pending) {
    std::vector<Copy>& copies = self->copies;
    size_t left = 0;
    for (Copy& copy : copies) {
        if (copy.group + pending >= self->copy_group) {
            copies[left++] = copy;
            continue;
        }
        if (!copy.made) make(copy);
        self->warp->block->shared.copy_done(copy.to, copy.bytes, moment(*self, copy.tally));
    }
    copies.resize(left);
}

}  // namespace ld::host
