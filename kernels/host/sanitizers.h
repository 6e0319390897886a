// What the sanitizers must be told: of switches between stacks, and of what orders what. Nothing in a plain build.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(LD_THREAD_SANITIZER)  // the runtime itself is not instrumented, or its own bookkeeping would be reported
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_read_range(void* address, unsigned long size);
void __tsan_write_range(void* address, unsigned long size);
}
#endif

namespace ld::host {

// ThreadSanitizer finds races by itself: it must get to see them.
#if defined(LD_THREAD_SANITIZER)
constexpr bool FINDS_RACES = false;
#else
constexpr bool FINDS_RACES = true;
#endif

// A stack as the sanitizers see it.
struct Watched {
    const void* bottom = nullptr;
    size_t size = 0;
    void* fake = nullptr;
    void* fiber = nullptr;
};

inline void watch_launcher([[maybe_unused]] Watched& launcher) {
#if defined(LD_THREAD_SANITIZER)
    launcher.fiber = __tsan_get_current_fiber();
#endif
}

inline void watch_start([[maybe_unused]] Watched& stack) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack.bottom, stack.size);
#endif
#if defined(LD_THREAD_SANITIZER)
    stack.fiber = __tsan_create_fiber(0);
#endif
}

inline void watch_end([[maybe_unused]] Watched& stack) {
#if defined(LD_THREAD_SANITIZER)
    __tsan_destroy_fiber(stack.fiber);
#endif
}

// Around a switch: `before` on the stack that is left, `after` on the one that is reached.
inline void watch_before([[maybe_unused]] Watched& from, [[maybe_unused]] const Watched& to,
                         [[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake, to.bottom, to.size);
#endif
#if defined(LD_THREAD_SANITIZER)
    __tsan_switch_to_fiber(to.fiber, 1);  // 1: the switch orders nothing, only barriers do
#endif
}

inline void watch_after([[maybe_unused]] Watched& reached, [[maybe_unused]] Watched& left) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(reached.fake, &left.bottom, &left.size);
    reached.fake = nullptr;
#endif
}

inline void watch_read([[maybe_unused]] const void* place, [[maybe_unused]] size_t bytes) {
#if defined(LD_THREAD_SANITIZER)
    __tsan_read_range(const_cast<void*>(place), bytes);
#endif
}

inline void watch_write([[maybe_unused]] void* place, [[maybe_unused]] size_t bytes) {
#if defined(LD_THREAD_SANITIZER)
    __tsan_write_range(place, bytes);
#endif
}

// All that was done before an arrival comes before all that is done after a departure of the same phase. Phases have
// two marks in turn: with one, a thread that runs ahead into the next phase would order that too, and hide races.
struct Phases {
    char marks[2] = {};
    unsigned phase = 0;

    void arrive() {
#if defined(LD_THREAD_SANITIZER)
        __tsan_release(&marks[phase % 2]);
#endif
    }
    void depart([[maybe_unused]] unsigned of_phase) {
#if defined(LD_THREAD_SANITIZER)
        __tsan_acquire(&marks[of_phase % 2]);
#endif
    }
};

}  // namespace ld::host
