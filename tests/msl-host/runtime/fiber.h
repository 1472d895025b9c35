// Switching between stacks, and telling the sanitizers of it.
#pragma once
#if defined(__x86_64__) && !defined(MSL_UCONTEXT)
#define MSL_SWITCH // by our own few instructions; else by the C library, which asks the kernel every time
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
// MSL_TSAN is defined from outside: the runtime is not itself compiled for the thread sanitizer.
#ifdef MSL_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef MSL_TSAN
#include <sanitizer/tsan_interface.h>
#endif

// Memory that may and may not be touched, where a sanitizer watches.
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

// What one has done before releasing something, another sees who acquires it after: for the thread sanitizer.
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

// A point of execution that can be left and entered again: a fiber's, or the scheduler's own.
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
// Saves what a called function must keep on the stack, and takes the same from the other stack.
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

// Makes `context` start at `body`, which must never return, on a stack that is set.
inline void prepare(Context& context, void (*body)()) {
    allow(context.stack, context.stack_bytes);
#ifdef MSL_SWITCH
    void** top = (void**)(context.stack + context.stack_bytes);
    *--top = nullptr; // where `body` would return to, and the alignment that a call has
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

// The fibers that have come to their end. The thread sanitizer takes a new one for one that it was told to forget, and would not see them
// race; so that waits.
struct Retired {
    std::vector<void*> fibers;
    void add(const Context& context) { fibers.push_back(context.sanitizer); }
    ~Retired() {
#ifdef MSL_TSAN
        for (void* fiber : fibers) __tsan_destroy_fiber(fiber);
#endif
    }
};

// Leaves `from`, enters `to`; returns when somebody enters `from` again. `last`: nobody will.
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
