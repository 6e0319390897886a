// Global, Shared and atomics on the host: the runtime says where, the access itself stands in the kernel's own code, so
// that ThreadSanitizer sees it there.
#pragma once

#include <cstring>

#include "runtime.h"
#include "words.h"

namespace ld {

template <class T> constexpr void check_size() {
    static_assert(sizeof(T) <= 16 && (sizeof(T) & (sizeof(T) - 1)) == 0, "an access has 1, 2, 4, 8 or 16 bytes");
    static_assert(__is_trivially_copyable(T), "what is stored is bytes and nothing else");
}

template <class T> T Global::load(i64 offset, Site site) const {
    check_size<T>();
    T value;
    std::memcpy(&value, host::read_global(at, offset, sizeof(T), site), sizeof(T));
    return value;
}

template <class T> void Global::store(i64 offset, T value, Site site) const {
    check_size<T>();
    std::memcpy(host::write_global(at, offset, sizeof(T), site), &value, sizeof(T));
}

template <class T> T Shared::load(i64 offset, Site site) const {
    check_size<T>();
    T value;
    std::memcpy(&value, host::read_shared(at, offset, sizeof(T), site), sizeof(T));
    return value;
}

template <class T> void Shared::store(i64 offset, T value, Site site) const {
    check_size<T>();
    std::memcpy(host::write_shared(at, offset, sizeof(T), site), &value, sizeof(T));
}

inline Shared shared_memory() { return {0}; }

namespace host {

// Replaces a word by change(word), as one relaxed atomic operation, and returns the word that was there.
template <class T, class Change>
T change_word(const char* primitive, Global to, i64 offset, T operand, Site site, Change change) {
    T* place = static_cast<T*>(reach_atomic(to.at, offset, sizeof(T), true, site));
    T before = __atomic_load_n(place, __ATOMIC_RELAXED), after;
    do
        after = change(before);
    while (!__atomic_compare_exchange_n(place, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (after == before)
        unchanged(primitive, site, place, operand, before);
    else
        changed();
    return before;
}

}  // namespace host

inline u32 atomic_add(Global to, i64 offset, u32 value, Site site) {
    return host::change_word("atomic_add", to, offset, value, site, [=](u32 before) { return before + value; });
}

inline float atomic_add(Global to, i64 offset, float value, Site site) {
    return host::float_of(host::change_word("atomic_add", to, offset, host::bits_of(value), site, [=](u32 before) {
        return host::bits_of(host::float_of(before) + value);
    }));
}

inline u64 atomic_min(Global to, i64 offset, u64 value, Site site) {
    return host::change_word("atomic_min", to, offset, value, site,
                             [=](u64 before) { return before < value ? before : value; });
}

inline u32 atomic_swap_if(Global to, i64 offset, u32 expected, u32 value, Site site) {
    return host::change_word("atomic_swap_if", to, offset, value, site,
                             [=](u32 before) { return before == expected ? value : before; });
}

inline u32 load_acquire(Global from, i64 offset, Site site) {
    void* place = host::reach_atomic(from.at, offset, 4, false, site);
    const u32 value = __atomic_load_n(static_cast<u32*>(place), __ATOMIC_ACQUIRE);
    host::unchanged("load_acquire", site, place, 0, value);
    return value;
}

inline void store_release(Global to, i64 offset, u32 value, Site site) {
    void* place = host::reach_atomic(to.at, offset, 4, true, site);
    __atomic_store_n(static_cast<u32*>(place), value, __ATOMIC_RELEASE);
    host::changed();
}

inline u32 atomic_add_ordered(Global to, i64 offset, u32 value, Site site) {
    u32* place = static_cast<u32*>(host::reach_atomic(to.at, offset, 4, true, site));
    host::changed();
    return __atomic_fetch_add(place, value, __ATOMIC_ACQ_REL);
}

inline void pause(Site site) { host::pause(site); }

}  // namespace ld
