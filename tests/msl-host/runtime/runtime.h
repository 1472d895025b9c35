// The interface between compiled kernels, the runtime and its caller.
#pragma once

enum { MSL_SLOT_BYTES = 16 };

extern "C" {
// A thread's position: fields are named as the Metal attributes.
struct msl_place {
    unsigned thread_position_in_grid[3], threads_per_grid[3];
    unsigned thread_position_in_threadgroup[3], threads_per_threadgroup[3];
    unsigned threadgroup_position_in_grid[3], threadgroups_per_grid[3];
    unsigned thread_index_in_threadgroup[1], thread_index_in_simdgroup[1], threads_per_simdgroup[1];
    unsigned simdgroup_index_in_threadgroup[1], simdgroups_per_threadgroup[1];
};

// The argument of a kernel in CUDA (metal/threads_cuda.h): a pointer for every slot.
struct msl_buffers { void* at[8]; };

typedef void msl_entry_function(const struct msl_place*, void* const* buffers);

// --- called by kernels

// The values of all lanes, one slot each; the order in which to combine them; the index of the calling lane.
struct msl_lanes { const unsigned char *slots, *order; unsigned lane; };

void msl_barrier(const char* file, int line);
void msl_simd_barrier(const char* file, int line);
struct msl_lanes msl_exchange(const void* value, unsigned bytes, const char* file, int line);
unsigned msl_lane(void);
void* msl_threadgroup_memory(unsigned site, unsigned bytes, const char* name);

// --- called by the host

struct msl_buffer { void* data; unsigned long long bytes; };
enum msl_order { MSL_FORWARD, MSL_REVERSE, MSL_RANDOM };
enum msl_fault {
    MSL_NONE, MSL_DIVERGENT_BARRIER, MSL_DIVERGENT_SIMD, MSL_THREADGROUP_MEMORY, MSL_OUT_OF_BOUNDS,
};

struct msl_dispatch {
    msl_entry_function* entry;
    const struct msl_buffer* buffers;
    unsigned buffer_count;
    unsigned threadgroups[3], threads[3];
    unsigned order;
    unsigned long long seed;
};

// Runs all threadgroups, one after another. Returns an msl_fault and describes it in `message`.
int msl_run(const struct msl_dispatch* dispatch, char* message, unsigned long long message_bytes);
}
