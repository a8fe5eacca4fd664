// The NCCL profiler plugin: it writes one record per finished operation, timed on the GPU, to a ring in shared memory.
//
// It runs inside training jobs, so its memory is fixed, it has no thread, takes no lock, prints nothing and never waits
// during a collective. Any error switches it off. The handles that NCCL holds are numbers, never pointers: a handle is
// the index of a place and the generation of that place, so one that is used too late or twice is recognised and ignored.
#define _GNU_SOURCE
#include "plugin.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#define EXPORT __attribute__((visibility("default")))

static _Atomic(struct plugin *) current;
static _Atomic int making; // pid of the process that is setting up; a forked child ignores the pid of its parent
static _Atomic int is_off; // pid of the process where set-up failed

static struct plugin *usable(void) {
    struct plugin *plugin = atomic_load_explicit(&current, memory_order_acquire);
    return plugin && atomic_load_explicit(&plugin->alive, memory_order_relaxed) ? plugin : NULL;
}

static struct plugin *make_plugin(void) {
    struct plugin *plugin = mmap(NULL, sizeof *plugin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (plugin == MAP_FAILED) return NULL;
    if (!madvise(plugin, sizeof *plugin, MADV_WIPEONFORK)) plugin->ring = make_ring();
    if (!plugin->ring) {
        munmap(plugin, sizeof *plugin);
        return NULL;
    }
    atomic_store_explicit(&plugin->alive, 1, memory_order_release);
    return plugin;
}

// Returns the plugin. The first thread sets it up; others wait for that, a tenth of a second at most.
static struct plugin *set_up(void) {
    int pid = getpid();
    for (int tries = 0; tries < 1000; tries++) {
        struct plugin *plugin = usable();
        if (plugin || atomic_load(&is_off) == pid) return plugin;
        int owner = atomic_load(&making);
        if (owner != pid && atomic_compare_exchange_strong(&making, &owner, pid)) {
            plugin = usable();
            if (!plugin) {
                plugin = make_plugin();
                if (plugin) atomic_store_explicit(&current, plugin, memory_order_release);
                else atomic_store(&is_off, pid);
            }
            atomic_store(&making, 0);
            return plugin;
        }
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
    return NULL;
}

struct facts {
    uint64_t id;
    const char *name;
    int nodes, nranks, rank, version;
};

static void register_comm(struct comm_entry *entry, const struct facts *facts) {
    atomic_exchange_explicit(&entry->state, COMM_WRITING, memory_order_acq_rel);
    memset(entry->name, 0, sizeof entry->name);
    entry->interface = (uint32_t)facts->version;
    entry->comm = facts->id;
    entry->rank = facts->rank;
    entry->nranks = facts->nranks;
    entry->nodes = facts->nodes;
    entry->opened_ns = now_ns();
    copy_text(entry->name, sizeof entry->name, facts->name);
    atomic_store_explicit(&entry->closed_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->enqueued, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->finished, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->last_enqueue_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->last_finish_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->state, COMM_LIVE, memory_order_release);
}

static void *open_comm(struct plugin *plugin, const struct facts *facts) {
    for (unsigned i = 0; i < RING_COMMS; i++) {
        unsigned index = atomic_fetch_add_explicit(&plugin->next_comm, 1, memory_order_relaxed) % RING_COMMS;
        struct comm *comm = &plugin->comms[index];
        uint64_t w = atomic_load_explicit(&comm->word, memory_order_relaxed);
        uint64_t filling = word_of(GENERATION(w), FILLING, 0);
        if (PLACE(w) != FREE || !atomic_compare_exchange_strong_explicit(&comm->word, &w, filling, memory_order_acquire,
                                                                         memory_order_relaxed))
            continue;
        comm->id = facts->id;
        comm->rank = facts->rank;
        comm->nranks = facts->nranks;
        atomic_store_explicit(&comm->collectives, 0, memory_order_relaxed);
        atomic_store_explicit(&comm->p2ps, 0, memory_order_relaxed);
        register_comm(&plugin->ring->comms[index], facts);
        atomic_store_explicit(&comm->word, word_of(GENERATION(w), LIVE, 0), memory_order_release);
        return handle_of(TAG_COMM, GENERATION(w), index);
    }
    count(&plugin->ring->header.refused);
    return NULL;
}

// NCCL keeps one mask for the whole process, so the mask is zero only when the plugin is off, never for a single
// communicator.
static int begin(void **context, int *mask, const struct facts *facts) {
    struct plugin *plugin = context && mask ? set_up() : NULL;
    if (context) *context = plugin ? open_comm(plugin, facts) : NULL;
    if (mask && !plugin) *mask = 0;
    else if (mask)
        *mask = EVENT_COLLECTIVE | EVENT_P2P | EVENT_KERNEL_CHANNEL | (facts->version >= 6 ? EVENT_COPY_ENGINE : 0);
    return 0;
}

static int begin_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int nranks, int rank,
                    void *log) {
    (void)log;
    return begin(context, mask, &(struct facts){id, name, nodes, nranks, rank, 4});
}

static int begin_v5(void **context, uint64_t id, int *mask, const char *name, int nodes, int nranks, int rank,
                    void *log) {
    (void)log;
    return begin(context, mask, &(struct facts){id, name, nodes, nranks, rank, 5});
}

static int begin_v6(void **context, uint64_t id, int *mask, const char *name, int nodes, int nranks, int rank,
                    void *log) {
    (void)log;
    return begin(context, mask, &(struct facts){id, name, nodes, nranks, rank, 6});
}

static int start(void *context, void **handle, const struct descriptor *descriptor, uint64_t type) {
    if (!handle) return 0;
    *handle = NULL;
    struct plugin *plugin = usable();
    if (!plugin || !descriptor) return 0;
    switch (type) {
    case EVENT_COLLECTIVE:
    case EVENT_P2P:
    case EVENT_COPY_ENGINE:
        *handle = start_operation(plugin, context, descriptor, type);
        break;
    case EVENT_KERNEL_CHANNEL:
        *handle = start_channel(plugin, descriptor);
        break;
    case EVENT_COLLECTIVE_API:
        *handle = stream_handle(descriptor->collective_api.stream, descriptor->collective_api.captured);
        break;
    case EVENT_P2P_API:
        *handle = stream_handle(descriptor->p2p_api.stream, descriptor->p2p_api.captured);
        break;
    default:
        break;
    }
    return 0;
}

static int start_v4_event(void *context, void **handle, struct descriptor *descriptor) {
    return start(context, handle, descriptor, descriptor ? descriptor->type_v4 : 0);
}

static int start_v5_event(void *context, void **handle, struct descriptor *descriptor) {
    return start(context, handle, descriptor, descriptor ? descriptor->type : 0);
}

static int stop(void *handle) {
    struct plugin *plugin = usable();
    if (plugin) stop_handle(plugin, handle);
    return 0;
}

static int record(void *handle, int state, union state_args *args) {
    struct plugin *plugin = usable();
    if (plugin && args && state == STATE_KERNEL_CHANNEL_STOP)
        record_gpu_stop(plugin, handle, args->kernel_channel.gpu_ns);
    return 0;
}

// The communicator is being closed. NCCL's proxy thread has ended, so nothing more is reported about open operations.
static int close_comm(void *context) {
    struct plugin *plugin = usable();
    uint32_t index;
    struct comm *comm = plugin ? find_comm(plugin, context, &index) : NULL;
    if (!comm) return 0;
    uint64_t w = atomic_load_explicit(&comm->word, memory_order_acquire);
    uint64_t closed = word_of(GENERATION(w) + 1, FILLING, 0);
    if (!atomic_compare_exchange_strong_explicit(&comm->word, &w, closed, memory_order_acq_rel, memory_order_relaxed))
        return 0;
    close_operations(plugin, index);
    struct comm_entry *entry = &plugin->ring->comms[index];
    atomic_store_explicit(&entry->closed_ns, now_ns(), memory_order_relaxed);
    atomic_store_explicit(&entry->state, COMM_CLOSED, memory_order_release);
    atomic_store_explicit(&comm->word, word_of(GENERATION(closed), FREE, 0), memory_order_release);
    return 0;
}

EXPORT struct profiler_v4 ncclProfiler_v4 = {"ingero", begin_v4, start_v4_event, stop, record, close_comm};
EXPORT struct profiler_v5 ncclProfiler_v5 = {"ingero", begin_v5, start_v5_event, stop, record, close_comm};
EXPORT struct profiler_v5 ncclProfiler_v6 = {"ingero", begin_v6, start_v5_event, stop, record, close_comm};
EXPORT const char ingero_source_digest[] = "ingero-source:" SOURCE_DIGEST;
