// The C interface of the runtime; host/launch.py has the same structures.
#pragma once

#include "site.h"

namespace ld::host {

enum class Order : u32 { forward, reverse, random, ahead };
enum class Copying : u32 { early, late, mixed };
enum class Fault : u32 { none, bounds, alignment, divergence, deadlock, race, memory };

struct Buffer {
    u64 start, bytes;
    const char* name;
    u64 writable;
};

struct Request {
    void (*entry)(const u64* arguments);
    const u64* arguments;
    const Buffer* buffers;  // apart from each other, in the order of their addresses
    u64 buffer_count;
    u64 seed;
    u32 blocks, threads, shared, resident;
    Order order;
    Copying copying;
};

enum class Space : u32 { global, shared };
enum class Way : u32 { load, store };

// The accesses of one line of the kernel, in one direction. An access is that of a whole warp.
struct Tally {
    const char* file;
    u32 line;
    Space space;
    Way way;
    u32 width;  // bytes per lane
    u64 accesses, bytes;
    u64 transactions, sectors;  // global: lines of 128 bytes and sectors of 32 that were touched
    u64 conflicts;              // shared: wavefronts beyond those that the width needs
};

struct Result {
    Fault fault;
    u32 block, thread, line;
    const char* file;
    const Tally* tallies;  // until the next launch
    u64 tally_count;
    u64 atomics;
    char text[1024];
};

}  // namespace ld::host
