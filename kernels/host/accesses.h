// The accesses of a warp, told apart by line and turn: the n-th access of each lane in a line is one of the warp.
#pragma once

#include <algorithm>
#include <vector>

#include "request.h"

namespace ld::host {

struct Key {
    Site site;
    Space space;
    Way way;
    u32 width;
    bool operator==(const Key& other) const {
        return site == other.site && space == other.space && way == other.way && width == other.width;
    }
};

struct Access {
    u64 address;
    u32 tally;  // its index
    u16 lane;
    u16 bytes;
};

using Accesses = std::vector<Access>;

constexpr u32 BANKS = 32, BANK = 4, SECTOR = 32, LINE = 128;

// How many different values `of` has, over accesses that are mostly in order.
template <class Of> u32 different(const Access* first, const Access* last, Of of) {
    u64 values[32];
    u32 count = 0;
    bool rising = true;
    for (const Access* access = first; access != last; ++access) {
        const u64 value = of(*access);
        if (count && value == values[count - 1]) continue;
        rising = rising && (!count || value > values[count - 1]);
        values[count++] = value;
    }
    if (rising) return count;
    std::sort(values, values + count);
    return static_cast<u32>(std::unique(values, values + count) - values);
}

// A wavefront serves each of 32 banks once, with any number of lanes that want the same word of it.
inline u32 wavefronts(const Access* first, const Access* last, u32 width) {
    u64 words[BANKS][32];  // the different words of each bank
    u32 counts[BANKS] = {}, most = 0;
    for (const Access* access = first; access != last; ++access)
        for (u64 word = access->address / BANK; word <= (access->address + width - 1) / BANK; ++word) {
            u64* held = words[word % BANKS];
            u32& count = counts[word % BANKS];
            if (std::find(held, held + count, word) != held + count) continue;
            held[count++] = word;
            most = std::max(most, count);
        }
    return most;
}

class Tallies {
  public:
    void clear() {
        tallies_.clear();
        tallies_.reserve(1024);  // growing it would be a race between lanes to ThreadSanitizer
        for (auto& entry : recent_) entry = {};
    }
    const std::vector<Tally>& all() const { return tallies_; }

    u32 index(const Key& key) {
        auto& recent = recent_[(key.site.line * 8 + u32(key.space) * 4 + u32(key.way) * 2 + key.width / 16) % RECENT];
        if (recent.known && recent.key == key) return recent.index;
        u32 found = 0;
        while (found < tallies_.size() && !(key_of(tallies_[found]) == key)) ++found;
        if (found == tallies_.size())
            tallies_.push_back({key.site.file, key.site.line, key.space, key.way, key.width, 0, 0, 0, 0, 0});
        recent = {key, found, true};
        return found;
    }

    // One access of a warp: at most one entry per lane, in the order of the lanes.
    void add(const Access* first, const Access* last) {
        Tally& tally = tallies_[first->tally];
        ++tally.accesses;
        for (const Access* access = first; access != last; ++access) tally.bytes += access->bytes;
        if (tally.space == Space::global) {
            tally.sectors += different(first, last, [](const Access& a) { return a.address / SECTOR; });
            tally.transactions += different(first, last, [](const Access& a) { return a.address / LINE; });
            return;
        }
        // Lanes are served in parts that take 128 bytes.
        const u32 part = tally.width <= BANK ? 32 : LINE / tally.width;
        while (first != last) {
            const Access* end = first;
            while (end != last && end->lane / part == first->lane / part) ++end;
            tally.conflicts += wavefronts(first, end, tally.width) - 1;
            first = end;
        }
    }

  private:
    static Key key_of(const Tally& tally) { return {{tally.file, tally.line}, tally.space, tally.way, tally.width}; }

    static constexpr u32 RECENT = 256;
    struct Recent {
        Key key;
        u32 index;
        bool known;
    };
    std::vector<Tally> tallies_;
    Recent recent_[RECENT] = {};
};

}  // namespace ld::host
