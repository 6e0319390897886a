// The shared memory of a block: its bytes, and for each of them who wrote and who read it last. Two accesses of which
// one is a store race where no barrier stands between them; that is found in whatever order the threads happen to run.
#pragma once

#include <vector>

#include "request.h"

namespace ld::host {

// Who accesses, when, and in which line: sync_warp orders the threads of a warp, sync_block those of the block.
struct Moment {
    u32 epoch, warp_epoch;
    u16 thread;
    u16 tally;

    bool unordered_before(const Moment& now) const {
        if (epoch != now.epoch || thread == now.thread) return false;
        return thread / 32 != now.thread / 32 || warp_epoch == now.warp_epoch;
    }
};

class SharedBytes {
  public:
    // All bytes are 0xFF, which is a NaN in every float type that kernels compute with. Epochs of the blocks that stood
    // here before are over.
    void start(u32 size) {
        bytes_.assign(size, 0xFF);
        pasts_.resize(size);
        ++tenant_;
    }
    u64 size() const { return bytes_.size(); }
    u8* at(u64 offset) { return bytes_.data() + offset; }

    // The earlier access that one races with, if there is one.
    struct Race {
        const Moment* with;
        bool copying;
    };

    Race load(u64 offset, u32 bytes, const Moment& now) {
        for (Past *past = &pasts_[offset], *end = past + bytes; past != end; ++past) {
            if (past->copying == tenant_ || past->written.unordered_before(now))
                return {&past->written, past->copying == tenant_};
            past->note_read(now);
        }
        return {};
    }

    Race store(u64 offset, u32 bytes, const Moment& now) {
        for (Past *past = &pasts_[offset], *end = past + bytes; past != end; ++past) {
            if (past->copying == tenant_ || past->written.unordered_before(now))
                return {&past->written, past->copying == tenant_};
            if (past->read_unordered_before(now)) return {&past->read, false};
            past->written = now;
        }
        return {};
    }

    // A copy writes at any time from its issue to its end.
    Race copy_issued(u64 offset, u32 bytes, const Moment& now) {
        const Race race = store(offset, bytes, now);
        if (!race.with)
            for (u32 byte = 0; byte < bytes; ++byte) pasts_[offset + byte].copying = tenant_;
        return race;
    }

    void copy_done(u64 offset, u32 bytes, const Moment& now) {
        for (Past *past = &pasts_[offset], *end = past + bytes; past != end; ++past) {
            past->written = now;
            past->copying = 0;
        }
    }

  private:
    enum Readers : u32 { one, lanes, warps };

    struct Past {
        Moment written, read;
        Readers readers;  // since no barrier orders them: `read` alone, lanes of its warp, or lanes of several
        u32 copying;      // the tenant whose copy is under way

        void note_read(const Moment& now) {
            const bool same_warp = read.thread / 32 == now.thread / 32;
            if (read.epoch != now.epoch || (readers != warps && same_warp && read.warp_epoch != now.warp_epoch)) {
                read = now;
                readers = one;
            } else if (!same_warp) {
                readers = warps;
            } else if (readers == one && read.thread != now.thread) {
                readers = lanes;
            }
        }

        bool read_unordered_before(const Moment& now) const {
            if (readers == one) return read.unordered_before(now);
            if (read.epoch != now.epoch) return false;
            return readers == warps || read.thread / 32 != now.thread / 32 || read.warp_epoch == now.warp_epoch;
        }
    };

    std::vector<u8> bytes_;
    std::vector<Past> pasts_;
    u32 tenant_ = 0;
};

}  // namespace ld::host
