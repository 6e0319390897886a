// A kernel as a function of its arguments in an array, for a launcher that does not know its types.
#pragma once

#include <utility>

#define LD_KERNEL(name, max_threads, ...)                 \
    enum : unsigned { name##_max_threads = max_threads }; \
    extern "C" void name

// Stands after the kernel: what the launcher looks up.
#define LD_HOST_ENTRY(name)                                                                    \
    extern "C" {                                                                               \
    LD_RUNTIME void name##_entry(const u64* arguments) { host::call(name, arguments); }        \
    LD_RUNTIME u32 name##_facts[] = {host::count_parameters(name), name##_max_threads};        \
    }

namespace ld::host {

template <class T> T argument(u64 word);
template <> inline Global argument(u64 word) { return {word}; }
template <> inline i64 argument(u64 word) { return static_cast<i64>(word); }

template <class... Types> constexpr u32 count_parameters(void (*)(Types...)) { return sizeof...(Types); }

template <class... Types, std::size_t... at>
void call(void (*kernel)(Types...), const u64* arguments, std::index_sequence<at...>) {
    kernel(argument<Types>(arguments[at])...);
}

template <class... Types> void call(void (*kernel)(Types...), const u64* arguments) {
    call(kernel, arguments, std::index_sequence_for<Types...>{});
}

}  // namespace ld::host
