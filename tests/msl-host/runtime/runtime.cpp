// Runs the threads of a threadgroup as fibers of one OS thread, and stops at behaviour that Metal leaves undefined.
#include "runtime.h"
#include "guarded.h"
#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

namespace {
constexpr unsigned LANES = 32;
constexpr unsigned THREADGROUP_BYTES = 32768;
constexpr size_t STACK_BYTES = 256 << 10;

enum class State { Ready, AtSimd, AtBarrier, Returned };

struct Call { const char* file; int line; };
bool operator!=(Call a, Call b) { return a.line != b.line || strcmp(a.file, b.file); }

struct Fiber {
    Context context;
    msl_place place;
    State state;
    Call call; // the source line at which it waits
};

// The values that a SIMD-group exchanges. Double-buffered, since a lane may reach its next exchange before another has read this one.
struct Simd {
    alignas(16) unsigned char slots[2][LANES * MSL_SLOT_BYTES];
    unsigned turn;
    unsigned char order[LANES];
};

struct Shared { unsigned site; unsigned bytes; unsigned char* at; };

struct Runtime {
    const msl_dispatch& dispatch;
    std::mt19937_64 random;
    std::vector<void*> buffers;
    std::vector<Fiber> fibers;
    std::vector<Simd> simds;
    Pages shared_pages{2 * THREADGROUP_BYTES};
    std::vector<Shared> shared;
    unsigned shared_bytes = 0;
    Context scheduler{};
    Fiber* running = nullptr;
    msl_fault fault = MSL_NONE;
    char message[512] = "";

    explicit Runtime(const msl_dispatch& dispatch) : dispatch(dispatch), random(dispatch.seed) {}
    unsigned threads() const { return dispatch.threads[0] * dispatch.threads[1] * dispatch.threads[2]; }

    // The numbers 0 to `count` - 1 in the dispatch's order.
    template <class T> std::vector<T> ordered(T count) {
        std::vector<T> order(count);
        std::iota(order.begin(), order.end(), T(0));
        if (dispatch.order == MSL_REVERSE) std::reverse(order.begin(), order.end());
        if (dispatch.order == MSL_RANDOM) std::shuffle(order.begin(), order.end(), random);
        return order;
    }

    [[gnu::format(printf, 3, 4)]] void fail(msl_fault what, const char* format, ...) {
        if (fault) return;
        fault = what;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(message, sizeof message, format, arguments);
        va_end(arguments);
    }

    void start(unsigned threadgroup);
    void run_threadgroup();
    bool run_simd(unsigned simd);
    bool release_simd(unsigned simd);
    bool release_barrier();
};

// The runtime of the kernel that this OS thread is running.
thread_local Runtime* current;

void wait(State state, const char* file, int line) {
    Fiber& fiber = *current->running;
    fiber.state = state;
    fiber.call = {file, line};
    enter(fiber.context, current->scheduler);
}

void fiber_body() {
#ifdef MSL_ASAN
    // Only the sanitizer knows where the scheduler's stack is.
    const void* bottom;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &current->scheduler.stack_bytes);
    current->scheduler.stack = (unsigned char*)bottom;
#endif
    current->dispatch.entry(&current->running->place, current->buffers.data());
    current->running->state = State::Returned;
    release(&current->buffers);
    enter(current->running->context, current->scheduler, true);
}

// Sets up the fibers of a threadgroup.
void Runtime::start(unsigned threadgroup) {
    const unsigned* size = dispatch.threads;
    const unsigned* count = dispatch.threadgroups;
    const unsigned at[3] = {threadgroup % count[0], threadgroup / count[0] % count[1], threadgroup / count[0] / count[1]};
    shared.clear();
    shared_bytes = 0;
    forget(shared_pages.begin(), shared_pages.end() - shared_pages.begin());
    forbid(shared_pages.begin(), shared_pages.end() - shared_pages.begin());
    for (unsigned i = 0; i < threads(); ++i) {
        Fiber& fiber = fibers[i];
        forget(fiber.context.stack, fiber.context.stack_bytes);
        prepare(fiber.context, fiber_body);
        fiber.state = State::Ready;
        msl_place& place = fiber.place;
        const unsigned in_group[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
        for (int a = 0; a < 3; ++a) {
            place.thread_position_in_threadgroup[a] = in_group[a];
            place.threads_per_threadgroup[a] = size[a];
            place.threadgroup_position_in_grid[a] = at[a];
            place.threadgroups_per_grid[a] = count[a];
            place.thread_position_in_grid[a] = at[a] * size[a] + in_group[a];
            place.threads_per_grid[a] = count[a] * size[a];
        }
        place.thread_index_in_threadgroup[0] = i;
        place.thread_index_in_simdgroup[0] = i % LANES;
        place.simdgroup_index_in_threadgroup[0] = i / LANES;
        place.simdgroups_per_threadgroup[0] = simds.size();
        place.threads_per_simdgroup[0] = LANES;
    }
}

// Runs every ready fiber of a SIMD-group. Returns whether there was one.
bool Runtime::run_simd(unsigned simd) {
    const unsigned first = simd * LANES;
    bool any = false;
    for (unsigned lane : ordered(std::min(LANES, threads() - first))) {
        running = &fibers[first + lane];
        if (running->state != State::Ready || fault) continue;
        enter(scheduler, running->context);
        any = true;
    }
    return any;
}

// Releases the lanes of a SIMD-group that wait for each other. All must wait at the same source line; otherwise it is a fault.
bool Runtime::release_simd(unsigned simd) {
    const unsigned first = simd * LANES, end = std::min(first + LANES, threads());
    const Fiber* waiting = nullptr;
    for (unsigned i = first; i < end && !waiting; ++i)
        if (fibers[i].state == State::AtSimd) waiting = &fibers[i];
    if (!waiting) return false;
    for (unsigned i = first; i < end; ++i) {
        const Fiber& other = fibers[i];
        if (other.state == State::AtSimd && !(other.call != waiting->call)) continue;
        char where[128] = "has returned";
        if (other.state != State::Returned) snprintf(where, sizeof where, "waits at %s:%d", other.call.file, other.call.line);
        fail(MSL_DIVERGENT_SIMD, "SIMD-group operation at %s:%d, but lane %u %s", waiting->call.file, waiting->call.line, i - first, where);
        return false;
    }
    for (unsigned i = first; i < end; ++i) fibers[i].state = State::Ready;
    Simd& s = simds[simd];
    ++s.turn;
    std::vector<unsigned char> order = ordered<unsigned char>(LANES);
    copy(s.order, order.data(), LANES);
    return true;
}

// Called when no SIMD-group can run on. Releases the threads at a barrier, which all must wait at; returns false if all have returned.
bool Runtime::release_barrier() {
    const auto waiting = std::find_if(fibers.begin(), fibers.end(), [](const Fiber& f) { return f.state == State::AtBarrier; });
    if (waiting == fibers.end()) return false;
    const Fiber& one = *waiting;
    for (unsigned i = 0; i < threads(); ++i) {
        const Fiber& other = fibers[i];
        if (other.state == State::AtBarrier && !(other.call != one.call)) continue;
        char where[128] = "has returned";
        if (other.state != State::Returned) snprintf(where, sizeof where, "waits at %s:%d", other.call.file, other.call.line);
        fail(MSL_DIVERGENT_BARRIER, "threadgroup_barrier at %s:%d, but thread %u %s", one.call.file, one.call.line, i, where);
        return false;
    }
    for (Fiber& fiber : fibers) fiber.state = State::Ready;
    return true;
}

void Runtime::run_threadgroup() {
    do {
        // In random order, SIMD-groups take turns; otherwise each runs to its next barrier before another starts.
        for (bool progress = true; progress && !fault;) {
            progress = false;
            for (unsigned simd : ordered(unsigned(simds.size()))) {
                do {
                    progress |= run_simd(simd);
                } while (!fault && release_simd(simd) && (progress = true) && (dispatch.order != MSL_RANDOM || random() % 2));
            }
        }
    } while (!fault && release_barrier());
}

struct sigaction previous_action;

// An out-of-bounds access by a kernel ends it with a fault; any other crash goes to the previous handler.
void on_fault(int, siginfo_t* info, void*) {
    if (!current || !current->running) {
        sigaction(SIGSEGV, &previous_action, nullptr);
        return;
    }
    const unsigned* thread = current->running->place.thread_position_in_grid;
    const unsigned char* at = (unsigned char*)info->si_addr;
    long distance = 0;
    int nearest = -1;
    for (unsigned i = 0; i < current->buffers.size(); ++i) {
        const unsigned char* begin = (unsigned char*)current->buffers[i];
        const long outside = at < begin ? at - begin : at - (begin + current->dispatch.buffers[i].bytes);
        if (nearest >= 0 && std::abs(outside) >= std::abs(distance)) continue;
        distance = outside;
        nearest = int(i);
    }
    const char* side = distance < 0 ? "before the start" : "beyond the end";
    current->fail(MSL_OUT_OF_BOUNDS, "thread (%u, %u, %u) touches memory %ld bytes %s of buffer %d", thread[0], thread[1], thread[2],
        std::abs(distance), side, nearest);
    enter(current->running->context, current->scheduler, true);
}

// Runs the fault handler on a separate stack. The handler exits by switching fibers, so the signal stays unblocked (SA_NODEFER).
struct CatchFaults {
    std::vector<char> stack = std::vector<char>(64 << 10);
    stack_t previous;
    CatchFaults() {
        stack_t own{};
        own.ss_sp = stack.data();
        own.ss_size = stack.size();
        sigaltstack(&own, &previous);
        static const bool once = [] {
            struct sigaction action {};
            action.sa_sigaction = on_fault;
            action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
            sigaction(SIGSEGV, &action, &previous_action);
            return true;
        }();
        (void)once;
    }
    ~CatchFaults() { sigaltstack(&previous, nullptr); }
};
} // namespace

// Waits, and tells the thread sanitizer that writes before the wait are visible after it.
static void wait_and_order(State state, void* with, const char* file, int line) {
    release(with);
    wait(state, file, line);
    acquire(with);
}

void msl_barrier(const char* file, int line) { wait_and_order(State::AtBarrier, current, file, line); }

void msl_simd_barrier(const char* file, int line) {
    wait_and_order(State::AtSimd, &current->simds[current->running->place.simdgroup_index_in_threadgroup[0]], file, line);
}

unsigned msl_lane() { return current->running->place.thread_index_in_simdgroup[0]; }

msl_lanes msl_exchange(const void* value, unsigned bytes, const char* file, int line) {
    const unsigned lane = msl_lane();
    Simd& simd = current->simds[current->running->place.simdgroup_index_in_threadgroup[0]];
    const unsigned char* slots = simd.slots[simd.turn % 2];
    copy(simd.slots[simd.turn % 2] + lane * MSL_SLOT_BYTES, value, bytes);
    wait(State::AtSimd, file, line);
    return {slots, simd.order, lane};
}

void* msl_threadgroup_memory(unsigned site, unsigned bytes, const char* name) {
    Runtime& r = *current;
    for (const Shared& known : r.shared)
        if (known.site == site) return known.at;
    const unsigned padded = (bytes + 15) / 16 * 16;
    if (r.shared_bytes + padded > THREADGROUP_BYTES) {
        r.fail(MSL_THREADGROUP_MEMORY, "%u bytes of threadgroup memory with `%s`; Metal has %u", r.shared_bytes + padded, name, THREADGROUP_BYTES);
        enter(r.running->context, r.scheduler, true);
    }
    // The address sanitizer needs a gap after each variable.
    unsigned char* at = r.shared_pages.begin() + r.shared_bytes + 32 * r.shared.size();
    r.shared_bytes += padded;
    allow(at, bytes);
    fill(at, bytes);
    r.shared.push_back({site, bytes, at});
    return at;
}

int msl_run(const msl_dispatch* dispatch, char* message, unsigned long long message_bytes) {
    Runtime runtime(*dispatch);
    std::vector<DeviceBuffer> buffers;
    for (unsigned i = 0; i < dispatch->buffer_count; ++i) {
        buffers.emplace_back(dispatch->buffers[i].data, dispatch->buffers[i].bytes);
        runtime.buffers.push_back(buffers.back().begin());
    }
    const unsigned threads = runtime.threads();
    runtime.fibers.resize(threads);
    runtime.simds.resize((threads + LANES - 1) / LANES);
    static thread_local std::vector<Pages> stacks;
    while (stacks.size() < threads) stacks.emplace_back(STACK_BYTES);
    for (unsigned i = 0; i < threads; ++i) {
        runtime.fibers[i].context.stack = stacks[i].begin();
        runtime.fibers[i].context.stack_bytes = STACK_BYTES;
    }
#ifdef MSL_TSAN
    runtime.scheduler.sanitizer = __tsan_get_current_fiber();
#endif
    current = &runtime;
    const CatchFaults faults;
    Retired retired;
    for (unsigned threadgroup : runtime.ordered(dispatch->threadgroups[0] * dispatch->threadgroups[1] * dispatch->threadgroups[2])) {
        if (runtime.fault) break;
        runtime.start(threadgroup);
        runtime.run_threadgroup();
        for (const Fiber& fiber : runtime.fibers) retired.add(fiber.context);
    }
    current = nullptr;
    acquire(&runtime.buffers);
    for (unsigned i = 0; i < dispatch->buffer_count; ++i)
        if (!buffers[i].read(dispatch->buffers[i].data)) runtime.fail(MSL_OUT_OF_BOUNDS, "bytes beside buffer %u were overwritten", i);
    snprintf(message, message_bytes, "%s", runtime.message);
    return runtime.fault;
}
