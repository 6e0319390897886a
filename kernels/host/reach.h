// Every access of a kernel passes here: in bounds, aligned, in order with the others, and counted.
#pragma once

#include "rendezvous.h"

namespace ld::host {

// The buffer that an address stands in or at the end of; null where there is none.
inline const Buffer* buffer_at(u64 address) {
    const Buffer* first = grid.request.buffers;
    const Buffer* after = std::upper_bound(first, first + grid.request.buffer_count, address,
                                           [](u64 a, const Buffer& buffer) { return a < buffer.start; });
    return after != first && address - after[-1].start <= after[-1].bytes ? after - 1 : nullptr;
}

// The same for a base: where one buffer ends and another one starts, an offset before it means the former.
inline const Buffer* buffer_of(u64 base, i64 offset) {
    const Buffer* before = offset < 0 ? buffer_at(base - 1) : nullptr;
    return before ? before : buffer_at(base);
}

// An access belongs to the buffer of its base: that it falls into some other one does not make it right.
inline char* reach_global(const char* what, u64 at, i64 offset, u32 bytes, u32 aligned, bool writes, Site site) {
    const Buffer* buffer = buffer_of(at, offset);
    if (!buffer)
        LD_STOP(Fault::bounds, site, "%s of %u bytes at address 0x%llx + %lld: no buffer of this launch is there", what,
                bytes, at, offset);
    i64 place;
    if (__builtin_add_overflow(static_cast<i64>(at - buffer->start), offset, &place) || place < 0 ||
        static_cast<u64>(place) + bytes > buffer->bytes)
        LD_STOP(Fault::bounds, site, "%s of %u bytes at offset %lld of `%s`, which has %llu bytes", what, bytes,
                static_cast<i64>(at - buffer->start + offset), buffer->name, buffer->bytes);
    if (writes && !buffer->writable)
        LD_STOP(Fault::bounds, site, "%s of %u bytes at offset %lld of `%s`, which is not to be written", what, bytes,
                place, buffer->name);
    const u64 address = buffer->start + place;
    if (address % aligned)
        LD_STOP(Fault::alignment, site, "%s of %u bytes at offset %lld of `%s`: address 0x%llx is no multiple of %u",
                what, bytes, place, buffer->name, address, aligned);
    return reinterpret_cast<char*>(address);
}

inline u64 reach_shared(const char* what, u32 at, i64 offset, u32 bytes, Site site) {
    const u64 size = self->warp->block->shared.size();
    i64 place;  // a base before the start is no fault yet
    if (__builtin_add_overflow(i64{static_cast<i32>(at)}, offset, &place) || place < 0 ||
        static_cast<u64>(place) + bytes > size)
        LD_STOP(Fault::bounds, site, "%s of %u bytes at offset %lld of shared memory, which has %llu bytes", what,
                bytes, place, size);
    if (place % bytes)
        LD_STOP(Fault::alignment, site, "%s of %u bytes at offset %lld of shared memory: no multiple of %u", what,
                bytes, place, bytes);
    return static_cast<u64>(place);
}

inline Moment moment(const Lane& lane, u32 tally) {
    return {lane.warp->block->epoch, lane.warp->epoch, static_cast<u16>(lane.place.thread), static_cast<u16>(tally)};
}

inline void check_race(SharedBytes::Race race, const char* what, u32 bytes, u64 place, Site site) {
    if (!race.with || !FINDS_RACES) return;
    const Tally& other = grid.tallies.all()[race.with->tally];
    const char* way = race.copying ? "copy under way" : other.way == Way::load ? "load" : "store";
    LD_STOP(Fault::race, site, "%s of %u bytes at offset %llu of shared memory races with the %s of thread %u at %s:%u",
            what, bytes, place, way, race.with->thread, other.file, other.line);
}

const void* read_global(u64 at, i64 offset, u32 bytes, Site site) {
    maybe_others();
    const char* place = reach_global("load", at, offset, bytes, bytes, false, site);
    note_access(reinterpret_cast<u64>(place), bytes, grid.tallies.index({site, Space::global, Way::load, bytes}));
    return place;
}

void* write_global(u64 at, i64 offset, u32 bytes, Site site) {
    maybe_others();
    char* place = reach_global("store", at, offset, bytes, bytes, true, site);
    note_access(reinterpret_cast<u64>(place), bytes, grid.tallies.index({site, Space::global, Way::store, bytes}));
    grid.idle = 0;
    return place;
}

const void* read_shared(u32 at, i64 offset, u32 bytes, Site site) {
    const u64 place = reach_shared("load", at, offset, bytes, site);
    const u32 tally = grid.tallies.index({site, Space::shared, Way::load, bytes});
    SharedBytes& shared = self->warp->block->shared;
    check_race(shared.load(place, bytes, moment(*self, tally)), "load", bytes, place, site);
    note_access(place, bytes, tally);
    return shared.at(place);
}

void* write_shared(u32 at, i64 offset, u32 bytes, Site site) {
    const u64 place = reach_shared("store", at, offset, bytes, site);
    const u32 tally = grid.tallies.index({site, Space::shared, Way::store, bytes});
    SharedBytes& shared = self->warp->block->shared;
    check_race(shared.store(place, bytes, moment(*self, tally)), "store", bytes, place, site);
    note_access(place, bytes, tally);
    return shared.at(place);
}

void* reach_atomic(u64 at, i64 offset, u32 bytes, bool writes, Site site) {
    ++grid.result->atomics;
    return reach_global("atomic access", at, offset, bytes, bytes, writes, site);
}

void changed() { grid.idle = 0; }

// Polling is the same access again, with the same outcome.
void unchanged(const char* primitive, Site site, const void* place, u64 operand, u64 value) {
    const u64 seen = (reinterpret_cast<u64>(place) * 31 + operand) * 31 + value;
    if (self->polled != seen) grid.idle = 0;
    self->polled = seen;
    poll(primitive, site);
}

}  // namespace ld::host
