// Fibers: switching between stacks, with the notifications that sanitizers need.
#pragma once
#if defined(__x86_64__) && !defined(MSL_UCONTEXT)
#define MSL_SWITCH // our own assembly; the C library's swapcontext makes a system call every time
#endif
#include <cstddef>
#include <vector>
#ifndef MSL_SWITCH
#include <ucontext.h>
#endif

#ifdef __SANITIZE_ADDRESS__
#define MSL_ASAN
#endif
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define MSL_ASAN
#endif
#endif
// MSL_TSAN is set by a compiler flag, since the runtime itself is not compiled with the thread sanitizer.
#ifdef MSL_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef MSL_TSAN
#include <sanitizer/tsan_interface.h>
#endif

// Tell the address sanitizer which memory must not, and which may, be accessed.
inline void forbid(const void* from, size_t bytes) {
#ifdef MSL_ASAN
    __asan_poison_memory_region(from, bytes);
#endif
    (void)from, (void)bytes;
}
inline void allow(const void* from, size_t bytes) {
#ifdef MSL_ASAN
    __asan_unpoison_memory_region(from, bytes);
#endif
    (void)from, (void)bytes;
}

// Tell the thread sanitizer about ordering: what happened before a release is visible after a later acquire.
inline void release(void* what) {
#ifdef MSL_TSAN
    __tsan_release(what);
#endif
    (void)what;
}
inline void acquire(void* what) {
#ifdef MSL_TSAN
    __tsan_acquire(what);
#endif
    (void)what;
}

// A saved point of execution, of a fiber or of the scheduler.
struct Context {
#ifdef MSL_SWITCH
    void* stack_pointer;
#else
    ucontext_t machine;
#endif
    unsigned char* stack;
    size_t stack_bytes;
    void* sanitizer;
};

#ifdef MSL_SWITCH
// Pushes the callee-saved registers, switches stacks, and pops them from the other stack.
extern "C" void msl_switch(void** save, void* to);
asm(R"(
.text
.type msl_switch,@function
msl_switch:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
.size msl_switch,.-msl_switch
)");
#endif

// Makes `context` start at `body`, which must never return, on the stack that it already names.
inline void prepare(Context& context, void (*body)()) {
    allow(context.stack, context.stack_bytes);
#ifdef MSL_SWITCH
    void** top = (void**)(context.stack + context.stack_bytes);
    *--top = nullptr; // the return address of `body`; also aligns the stack as after a call
    *--top = (void*)body;
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    context.stack_pointer = top;
#else
    getcontext(&context.machine);
    context.machine.uc_stack.ss_sp = context.stack;
    context.machine.uc_stack.ss_size = context.stack_bytes;
    makecontext(&context.machine, body, 0);
#endif
#ifdef MSL_TSAN
    context.sanitizer = __tsan_create_fiber(0);
#else
    context.sanitizer = nullptr;
#endif
}

// Fibers that have finished. The thread sanitizer mistakes a new fiber for a destroyed one and would miss races between the two, so fibers
// are destroyed only at the end.
struct Retired {
    std::vector<void*> fibers;
    void add(const Context& context) { fibers.push_back(context.sanitizer); }
    ~Retired() {
#ifdef MSL_TSAN
        for (void* fiber : fibers) __tsan_destroy_fiber(fiber);
#endif
    }
};

// Switches from `from` to `to`; returns when `from` is entered again. `last`: it never will be.
inline void enter(Context& from, Context& to, bool last = false) {
#ifdef MSL_TSAN
    __tsan_switch_to_fiber(to.sanitizer, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef MSL_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &from.sanitizer, to.stack, to.stack_bytes);
#endif
#ifdef MSL_SWITCH
    msl_switch(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(&from.machine, &to.machine);
#endif
#ifdef MSL_ASAN
    __sanitizer_finish_switch_fiber(from.sanitizer, nullptr, nullptr);
#endif
    (void)last;
}
