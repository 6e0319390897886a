// Fibers: functions on stacks of their own, that the launcher enters and that leave to it.
#pragma once

#include <sys/mman.h>

#include <vector>

#include "sanitizers.h"
#include "switch.h"

namespace ld::host {

constexpr size_t STACK = 256 << 10;  // host/build.py refuses kernels with frames that could not fit

struct Stack {
    char* bottom = nullptr;
    size_t size = 0;
};

// Stacks are used again: fresh pages cost more than a small block's whole run.
inline std::vector<Stack> free_stacks;

// Its bottom is null where there is no memory. Tops stand at different places of their pages: else all would share the
// same few sets of the cache.
inline Stack take_stack() {
    static size_t made = 0;
    if (!free_stacks.empty()) {
        const Stack found = free_stacks.back();
        free_stacks.pop_back();
        return found;
    }
    void* bottom = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bottom == MAP_FAILED) return {};
    return {static_cast<char*>(bottom), STACK - made++ % 61 * 320};
}

inline Context launcher_context;
inline Watched launcher_watched;

class Fiber {
  public:
    Fiber() = default;
    Fiber(const Fiber&) = delete;
    ~Fiber() {
        if (!stack_.bottom) return;
        end();
        free_stacks.push_back(stack_);
    }

    // False where there is no memory for its stack.
    bool start(void (*run)()) {
        if (!stack_.bottom) stack_ = take_stack();
        if (!stack_.bottom) return false;
        end();
        watched_.bottom = stack_.bottom;
        watched_.size = stack_.size;
        watch_start(watched_);
        started_ = true;
        prepare(context_, stack_.bottom, stack_.size, run);
        return true;
    }

    // Called by the launcher: runs until the fiber leaves.
    void enter() {
        watch_before(launcher_watched, watched_, false);
        switch_to(launcher_context, context_);
        watch_after(launcher_watched, watched_);
    }

    // Called on the fiber, first of all.
    void begun() { watch_after(watched_, launcher_watched); }

    // Called on the fiber: back to the launcher, until it enters again.
    void leave() {
        watch_before(watched_, launcher_watched, false);
        switch_to(context_, launcher_context);
        watch_after(watched_, launcher_watched);
    }

    [[noreturn]] void leave_for_good() {
        watch_before(watched_, launcher_watched, true);
        switch_to(context_, launcher_context);
        __builtin_unreachable();
    }

  private:
    void end() {
        if (started_) watch_end(watched_);
        started_ = false;
    }

    Context context_;
    Watched watched_;
    Stack stack_;
    bool started_ = false;
};

}  // namespace ld::host
