// The private state of the plugin, and small functions that several of its files use.
#ifndef INGERO_PLUGIN_H
#define INGERO_PLUGIN_H

#include "interface.h"
#include "ring.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST "unknown"
#endif

#ifndef POOL // tests make it small
#define POOL 8192
#endif

enum {
    OPS = POOL, // operations in flight: a launch queue holds about a thousand kernels, a grouped all-to-all many more
    MAX_CHANNELS = 4095,
};

// ---- the state word of an operation -------------------------------------------------------------------------------

enum place { FREE, FILLING, LIVE, CLAIMED };

#define PLACE(w) ((w) & 3u)
#define HOST_STOPPED 4ull
#define EXPECTED(w) ((unsigned)((w) >> 8) & 0xffu)
#define STARTED(w) ((unsigned)((w) >> 16) & 0xfffu)
#define STOPPED(w) ((unsigned)((w) >> 28) & 0xfffu)
#define GENERATION(w) ((unsigned)((w) >> 40) & 0xffffffu)
#define ONE_STARTED (1ull << 16)
#define ONE_STOPPED (1ull << 28)

static inline uint64_t word_of(unsigned generation, enum place place, unsigned expected) {
    return (uint64_t)(generation & 0xffffffu) << 40 | (uint64_t)(expected & 0xffu) << 8 | place;
}

static inline bool is_quiet(uint64_t w) { return PLACE(w) == LIVE && (w & HOST_STOPPED) && STARTED(w) == STOPPED(w); }

static inline bool is_complete(uint64_t w) { return is_quiet(w) && STOPPED(w) >= EXPECTED(w); }

struct op {
    _Alignas(64) _Atomic uint64_t word;
    _Atomic uint64_t gpu_start_ns, gpu_stop_ns, host_stop_ns;
    _Atomic uint32_t comm_index, next_free;
    struct record record; // all but the times above; written while FILLING, read while CLAIMED
};

struct comm {
    _Atomic uint64_t word; // generation and place, as above
    _Atomic uint64_t collectives, p2ps;
    uint64_t id;
    int32_t rank, nranks;
};

// All private state. The kernel zeroes these pages in a forked child, so `alive` is 0 there and all handles are stale.
struct plugin {
    _Atomic uint32_t alive;
    struct ring *ring;
    _Alignas(64) _Atomic uint64_t free_top; // tag and index + 1 of the first free place
    _Atomic uint32_t fresh;                 // places used at least once
    _Atomic uint32_t next_evicted;          // where the search for a place to free goes on when all are taken
    _Alignas(64) _Atomic uint32_t next_op, next_comm;
    _Atomic uint64_t started[OPS]; // handles in the order of their start
    struct comm comms[RING_COMMS];
    struct op ops[OPS];
};

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec at;
    return clock_gettime(clock, &at) ? 0 : (uint64_t)at.tv_sec * 1000000000ull + (uint64_t)at.tv_nsec;
}

static inline uint64_t now_ns(void) { return clock_ns(CLOCK_REALTIME); }

static inline void count(_Atomic uint64_t *counter) { atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }

static inline void raise_to(_Atomic uint64_t *value, uint64_t at_least) {
    uint64_t seen = atomic_load_explicit(value, memory_order_relaxed);
    while (seen < at_least && !atomic_compare_exchange_weak_explicit(value, &seen, at_least, memory_order_relaxed,
                                                                     memory_order_relaxed)) {
    }
}

static inline void lower_to(_Atomic uint64_t *value, uint64_t at_most) { // zero means not set yet
    uint64_t seen = atomic_load_explicit(value, memory_order_relaxed);
    while ((!seen || seen > at_most) && !atomic_compare_exchange_weak_explicit(
                                            value, &seen, at_most, memory_order_relaxed, memory_order_relaxed)) {
    }
}

// The field must be all zeros. A text as long as the field has no zero at its end.
static inline void copy_text(char *field, size_t size, const char *text) {
    for (size_t i = 0; text && i < size && text[i]; i++) field[i] = text[i];
}

// Copies the name of a function or type without the prefix "nccl".
static inline void copy_name(char *field, size_t size, const char *name) {
    copy_text(field, size, name && !strncmp(name, "nccl", 4) ? name + 4 : name);
}

// ---- handles ------------------------------------------------------------------------------------------------------

enum tag { TAG_OP = 0xc1, TAG_CHANNEL, TAG_STREAM, TAG_COMM };
#define CAPTURED (1ull << 55) // flag in a stream handle

static inline void *handle_of(enum tag tag, unsigned generation, unsigned index) {
    return (void *)(uintptr_t)((uint64_t)tag << 56 | (uint64_t)(generation & 0xffffffu) << 32 | index);
}

static inline enum tag tag_of(const void *handle) { return (enum tag)((uint64_t)(uintptr_t)handle >> 56); }
static inline unsigned generation_of(const void *handle) {
    return (unsigned)((uint64_t)(uintptr_t)handle >> 32) & 0xffffffu;
}
static inline uint32_t index_of(const void *handle) { return (uint32_t)(uintptr_t)handle; }

// The handle of an API call is its stream. Nothing has to be stored, and the operation that the call starts receives
// the handle as its parent.
static inline void *stream_handle(const void *stream, bool captured) {
    uint64_t value = (uint64_t)(uintptr_t)stream;
    if (value >= CAPTURED) return NULL;
    return (void *)(uintptr_t)((uint64_t)TAG_STREAM << 56 | (captured ? CAPTURED : 0) | value);
}

// profiler.c: what NCCL looks up; chain.c replaces the functions when there is a next plugin
extern struct profiler_v4 ncclProfiler_v4;
extern struct profiler_v5 ncclProfiler_v5, ncclProfiler_v6;

// ring.c
struct ring *make_ring(void);

// operations.c: no function waits or allocates; the only system calls are for the time and, once, for the thread id
struct comm *find_comm(struct plugin *plugin, void *context, uint32_t *index);
void *start_operation(struct plugin *plugin, void *context, const struct descriptor *descriptor, uint64_t type);
void *start_channel(struct plugin *plugin, const struct descriptor *descriptor);
void stop_handle(struct plugin *plugin, void *handle);
void record_gpu_stop(struct plugin *plugin, void *handle, uint64_t gpu_ns);
void close_operations(struct plugin *plugin, uint32_t comm_index);

#endif
