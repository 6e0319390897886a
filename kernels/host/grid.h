// The state of a launch: the blocks that are resident, their warps and lanes, and the fault that ended it.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <vector>

#include "accesses.h"
#include "fibers.h"
#include "request.h"
#include "runtime.h"
#include "shared_bytes.h"

namespace ld::host {

constexpr u32 WARP = 32;

enum class State { ready, waiting, ended };

struct Warp;
struct Block;

// From global to shared memory, under way: made when it is issued, or held back until the wait that covers it. A GPU
// may do either, and a kernel must give the same with both.
struct Copy {
    const void* from;
    u32 to, bytes, valid;
    u32 group, tally;
    bool made;
};

struct Lane {
    Place place;
    State state = State::ended;
    Warp* warp = nullptr;
    Fiber fiber;
    // What it waits in, or went through last.
    const char* primitive = nullptr;
    Site site{};
    void* operand = nullptr;
    u64 polled = 0;  // the last atomic access that changed nothing, and what it found
    bool polls = false;
    Accesses accesses;
    std::vector<Copy> copies;
    u32 copy_group = 0;  // the one that the next commit closes
};

struct Warp {
    Block* block = nullptr;
    Lane* lanes = nullptr;
    u32 ready = 0, arrived = 0, ended = 0;
    u32 epoch = 0;  // counts sync_warp
    bool waits_for_block = false;
    Phases phases;
};

struct Block {
    std::vector<Lane> lanes;
    std::vector<Warp> warps;
    SharedBytes shared;
    u32 arrived = 0, ended = 0;  // warps
    u32 epoch = 0;               // counts sync_block, over all blocks that stood here
    Phases phases;
};

struct Grid {
    Request request{};
    std::vector<std::unique_ptr<Block>> blocks;
    u32 started = 0, live = 0;
    Tallies tallies;
    u64 random = 0;
    u64 idle = 0;  // turns in a row in which threads only polled
    Result* result = nullptr;
};

inline Grid grid;
inline Lane* self = nullptr;  // null: the launcher

inline u32 random_below(u32 bound) {
    grid.random = grid.random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<u32>((grid.random >> 33) % bound);
}

// The first fault stands; the launch ends with it.
__attribute__((format(printf, 4, 5))) inline void report(Fault fault, const Lane& lane, Site site,
                                                         const char* format, ...) {
    Result& result = *grid.result;
    if (result.fault != Fault::none) return;
    result.fault = fault;
    result.block = lane.place.block;
    result.thread = lane.place.thread;
    result.file = site.file;
    result.line = site.line;
    va_list values;
    va_start(values, format);
    std::vsnprintf(result.text, sizeof result.text, format, values);
    va_end(values);
}

#define LD_STOP(fault, site, ...)                         \
    do {                                                  \
        report(fault, *self, site, __VA_ARGS__);          \
        self->fiber.leave_for_good();                     \
    } while (false)

}  // namespace ld::host
