// Fibers: functions on stacks of their own, that the launcher enters and that leave to it.
#pragma once

#include <sys/mman.h>

#include <vector>

#include "sanitizers.h"
#include "switch.h"

namespace ld::host {

constexpr size_t STACK = 256 << 10;  // host_build.py refuses kernels with frames that could not fit

// Stacks are used again: fresh pages cost more than a small block's whole run.
inline std::vector<char*> free_stacks;

inline Context launcher_context;
inline Watched launcher_watched;

class Fiber {
  public:
    Fiber() = default;
    Fiber(const Fiber&) = delete;
    ~Fiber() {
        if (!stack_) return;
        free_stacks.push_back(stack_);
        end();
    }

    // False where there is no memory for its stack.
    bool start(void (*run)()) {
        if (!stack_ && !(stack_ = new_stack())) return false;
        end();
        watched_.bottom = stack_;
        watched_.size = STACK;
        watch_start(watched_);
        started_ = true;
        prepare(context_, stack_, STACK, run);
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
    static char* new_stack() {
        if (!free_stacks.empty()) {
            char* found = free_stacks.back();
            free_stacks.pop_back();
            return found;
        }
        void* made = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return made == MAP_FAILED ? nullptr : static_cast<char*>(made);
    }

    void end() {
        if (started_) watch_end(watched_);
        started_ = false;
    }

    Context context_;
    Watched watched_;
    char* stack_ = nullptr;
    bool started_ = false;
};

}  // namespace ld::host
