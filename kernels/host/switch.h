// A context that can be left and taken up again: a few instructions on x86-64, ucontext (a system call each) elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(LD_UCONTEXT)

namespace ld::host {

struct Context {
    void* top = nullptr;  // of its stack, where a call keeps its registers
};

// Keeps what a function must keep on the stack that is left, and takes it up from the other one.
extern "C" void ld_host_switch(void** left, void* entered);
asm(R"(
    .text
    .globl ld_host_switch
    .hidden ld_host_switch
ld_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

inline void switch_to(Context& from, Context& to) { ld_host_switch(&from.top, to.top); }

// The first switch to it calls `run`, which never returns.
inline void prepare(Context& context, char* stack, size_t size, void (*run)()) {
    void** top = reinterpret_cast<void**>(stack + size);
    *--top = nullptr;  // where a caller would stand: keeps `run` aligned as after a call, and ends traces
    *--top = reinterpret_cast<void*>(run);
    for (int kept = 0; kept < 6; ++kept) *--top = nullptr;
    context.top = top;
}

}  // namespace ld::host

#else
#include <ucontext.h>

namespace ld::host {

struct Context {
    ucontext_t kept;
};

inline void switch_to(Context& from, Context& to) { swapcontext(&from.kept, &to.kept); }

inline void prepare(Context& context, char* stack, size_t size, void (*run)()) {
    getcontext(&context.kept);
    context.kept.uc_stack.ss_sp = stack;
    context.kept.uc_stack.ss_size = size;
    context.kept.uc_link = nullptr;
    makecontext(&context.kept, run, 0);
}

}  // namespace ld::host

#endif
