// Operations, from their start on the host to their record in the ring.
//
// The state of an operation is one atomic word. Host threads start and stop operations; NCCL's proxy threads start and
// stop their channels. The thread that changes the word to CLAIMED is the only one to publish the record and free the
// place.
#define _GNU_SOURCE
#include "plugin.h"

#include <sys/syscall.h>
#include <unistd.h>

enum {
    PROBES = 8, // places to look at for one that can be freed when all are taken
    QUIET_NS = 100 * 1000 * 1000,
};
#define UNTIMED_NS 10000000000ull

static _Thread_local uint32_t own_tid;
static _Thread_local const struct plugin *own_tid_of; // differs in a forked child, which has another thread id

static void publish(struct plugin *plugin, struct op *op, uint64_t w) {
    struct ring *ring = plugin->ring;
    struct record record = op->record;
    record.gpu_start_ns = atomic_load_explicit(&op->gpu_start_ns, memory_order_relaxed);
    record.gpu_stop_ns = atomic_load_explicit(&op->gpu_stop_ns, memory_order_relaxed);
    record.host_stop_ns = atomic_load_explicit(&op->host_stop_ns, memory_order_relaxed);
    record.channels_done = (uint8_t)(STOPPED(w) < 255 ? STOPPED(w) : 255);
    if (record.gpu_start_ns && record.gpu_stop_ns >= record.gpu_start_ns) record.flags |= FLAG_GPU_TIMED;
    if (!(w & HOST_STOPPED) || STARTED(w) != STOPPED(w) || STOPPED(w) < EXPECTED(w)) {
        record.flags |= FLAG_PARTIAL;
        count(&ring->header.partial);
    }
    uint64_t index = atomic_fetch_add_explicit(&ring->header.head, 1, memory_order_relaxed);
    struct slot *slot = &ring->slots[index & (RING_SLOTS - 1)];
    uint64_t words[RECORD_WORDS], check = (index + 1) * CHECK_WEIGHT(0);
    memcpy(words, &record, sizeof words);
    for (unsigned i = 2; i < RECORD_WORDS; i++) {
        check += words[i] * CHECK_WEIGHT(i);
        atomic_store_explicit(&slot->word[i], words[i], memory_order_relaxed);
    }
    atomic_store_explicit(&slot->word[1], check, memory_order_relaxed);
    atomic_store_explicit(&slot->word[0], index + 1, memory_order_release);
    struct comm_entry *entry = &ring->comms[atomic_load_explicit(&op->comm_index, memory_order_relaxed)];
    count(&entry->finished);
    raise_to(&entry->last_finish_ns, record.host_stop_ns);
}

// ---- free places: a stack of indices; a count in its top word shows that it changed between a read and a swap -------

static void push_free(struct plugin *plugin, uint32_t index) {
    uint64_t top = atomic_load_explicit(&plugin->free_top, memory_order_relaxed), next;
    do {
        atomic_store_explicit(&plugin->ops[index].next_free, (uint32_t)top, memory_order_relaxed);
        next = ((top >> 32) + 1) << 32 | (index + 1);
    } while (!atomic_compare_exchange_weak_explicit(&plugin->free_top, &top, next, memory_order_release,
                                                    memory_order_relaxed));
}

static struct op *pop_free(struct plugin *plugin) {
    uint64_t top = atomic_load_explicit(&plugin->free_top, memory_order_acquire), next;
    while ((uint32_t)top) {
        struct op *op = &plugin->ops[(uint32_t)top - 1];
        next = ((top >> 32) + 1) << 32 | atomic_load_explicit(&op->next_free, memory_order_relaxed);
        if (atomic_compare_exchange_weak_explicit(&plugin->free_top, &top, next, memory_order_acquire,
                                                  memory_order_acquire))
            return op;
    }
    if (atomic_load_explicit(&plugin->fresh, memory_order_relaxed) >= OPS) return NULL;
    uint32_t fresh = atomic_fetch_add_explicit(&plugin->fresh, 1, memory_order_relaxed); // never used so far
    return fresh < OPS ? &plugin->ops[fresh] : NULL;
}

// The caller moved the word to CLAIMED: publish. The place is the caller's then, under a new generation.
static void settle(struct plugin *plugin, struct op *op, uint64_t w) {
    publish(plugin, op, w);
    atomic_store_explicit(&op->word, word_of(GENERATION(w) + 1, FREE, 0), memory_order_release);
}

static void finish(struct plugin *plugin, struct op *op, uint64_t w) {
    settle(plugin, op, w);
    push_free(plugin, (uint32_t)(op - plugin->ops));
}

static bool claim(struct op *op, uint64_t w) {
    uint64_t claimed = (w & ~3ull) | CLAIMED;
    return atomic_compare_exchange_strong_explicit(&op->word, &w, claimed, memory_order_acq_rel, memory_order_relaxed);
}

enum step { HOST_STOP, CHANNEL_START, CHANNEL_STOP };

// Moves a live operation one step on and publishes it if that was the last; false if the step does not fit.
static bool advance(struct plugin *plugin, struct op *op, unsigned generation, enum step step) {
    uint64_t w = atomic_load_explicit(&op->word, memory_order_acquire), next;
    do {
        if (PLACE(w) != LIVE || GENERATION(w) != generation) return false;
        if (step == HOST_STOP && (w & HOST_STOPPED)) return false;
        if (step == CHANNEL_START && STARTED(w) >= MAX_CHANNELS) return false;
        if (step == CHANNEL_STOP && STOPPED(w) >= STARTED(w)) return false;
        next = step == HOST_STOP ? w | HOST_STOPPED : w + (step == CHANNEL_START ? ONE_STARTED : ONE_STOPPED);
        if (is_complete(next)) next |= CLAIMED;
    } while (!atomic_compare_exchange_weak_explicit(&op->word, &w, next, memory_order_acq_rel, memory_order_acquire));
    if (PLACE(next) == CLAIMED) finish(plugin, op, next);
    return true;
}

// ---- places for operations ----------------------------------------------------------------------------------------

static struct op *op_of(struct plugin *plugin, const void *handle) {
    return index_of(handle) < OPS ? &plugin->ops[index_of(handle)] : NULL;
}

static bool is_current(uint64_t w, const void *handle) {
    return PLACE(w) == LIVE && GENERATION(w) == generation_of(handle);
}

// NCCL may announce more channels than it launches (small point-to-point messages), or time none at all. Such an
// operation is never complete by the number of its channels. Each operation is looked at again when some more have
// started: if none of its channels runs and none has reported for a while, its record is published as it is. An operation
// without any started channel may be queued behind a slow one, so it is published early only after more operations than
// a launch queue holds.
static void give_up_quiet(struct plugin *plugin, uint32_t order, uint64_t now) {
    static const uint32_t lags[] = {4, 64, 1024, OPS - 1};
    for (unsigned i = 0; i < sizeof lags / sizeof *lags; i++) {
        uint64_t kept = atomic_load_explicit(&plugin->started[(order - lags[i]) % OPS], memory_order_acquire);
        const void *handle = (const void *)(uintptr_t)kept;
        struct op *op = tag_of(handle) == TAG_OP ? op_of(plugin, handle) : NULL;
        if (!op) continue;
        uint64_t w = atomic_load_explicit(&op->word, memory_order_acquire);
        if (!is_current(w, handle) || !is_quiet(w) || (!STARTED(w) && lags[i] < 1024)) continue;
        uint64_t reported_ns = atomic_load_explicit(&op->host_stop_ns, memory_order_relaxed);
        uint64_t timeout_ns = STARTED(w) ? QUIET_NS : UNTIMED_NS;
        if (now > reported_ns && now - reported_ns > timeout_ns && claim(op, w)) finish(plugin, op, w);
    }
}

// Called when all places are taken: publishes an operation of which no channel runs, and returns its place; NULL when
// none of those looked at is like that.
static struct op *evict(struct plugin *plugin) {
    for (unsigned i = 0; i < PROBES; i++) {
        struct op *op = &plugin->ops[atomic_fetch_add_explicit(&plugin->next_evicted, 1, memory_order_relaxed) % OPS];
        uint64_t w = atomic_load_explicit(&op->word, memory_order_acquire);
        if (!is_quiet(w) || !claim(op, w)) continue;
        settle(plugin, op, w);
        return op;
    }
    return NULL;
}

// Returns a place that belongs to the caller until it is filled; NULL when there is none.
static struct op *find_place(struct plugin *plugin, unsigned *generation) {
    struct op *op = pop_free(plugin);
    if (!op) op = evict(plugin);
    if (!op) return NULL;
    *generation = GENERATION(atomic_load_explicit(&op->word, memory_order_acquire));
    atomic_store_explicit(&op->word, word_of(*generation, FILLING, 0), memory_order_relaxed);
    return op;
}

struct comm *find_comm(struct plugin *plugin, void *context, uint32_t *index) {
    *index = index_of(context);
    if (tag_of(context) != TAG_COMM || *index >= RING_COMMS) return NULL;
    struct comm *comm = &plugin->comms[*index];
    uint64_t w = atomic_load_explicit(&comm->word, memory_order_acquire);
    return PLACE(w) == LIVE && GENERATION(w) == generation_of(context) ? comm : NULL;
}

static uint32_t thread_id(const struct plugin *plugin) {
    if (own_tid_of != plugin) {
        own_tid = (uint32_t)syscall(SYS_gettid);
        own_tid_of = plugin;
    }
    return own_tid;
}

static void fill_collective(struct record *record, const struct descriptor *descriptor, bool copy_engine) {
    record->kind = copy_engine ? KIND_COPY_ENGINE : KIND_COLLECTIVE;
    record->nccl_seq = descriptor->collective.seq;
    record->count = descriptor->collective.count;
    record->peer = descriptor->collective.root;
    copy_name(record->op, sizeof record->op, descriptor->collective.func);
    copy_name(record->datatype, sizeof record->datatype, descriptor->collective.datatype);
    if (copy_engine) {
        record->stream = (uint64_t)(uintptr_t)descriptor->copy_engine.stream;
        record->flags |= FLAG_STREAM;
        return;
    }
    record->channels = descriptor->collective.channels;
    record->warps = descriptor->collective.warps;
    copy_name(record->algo, sizeof record->algo, descriptor->collective.algo);
    copy_name(record->proto, sizeof record->proto, descriptor->collective.proto);
}

static void fill_p2p(struct record *record, const struct descriptor *descriptor) {
    record->kind = KIND_P2P;
    record->count = descriptor->p2p.count;
    record->peer = descriptor->p2p.peer;
    record->channels = descriptor->p2p.channels;
    copy_name(record->op, sizeof record->op, descriptor->p2p.func);
    copy_name(record->datatype, sizeof record->datatype, descriptor->p2p.datatype);
}

void *start_operation(struct plugin *plugin, void *context, const struct descriptor *descriptor, uint64_t type) {
    uint32_t index;
    struct comm *comm = find_comm(plugin, context, &index);
    if (!comm) return NULL;
    struct comm_entry *entry = &plugin->ring->comms[index];
    uint64_t now = now_ns();
    uint64_t seq = atomic_fetch_add_explicit(type == EVENT_P2P ? &comm->p2ps : &comm->collectives, 1,
                                             memory_order_relaxed); // counts dropped operations, too: ranks must agree
    count(&plugin->ring->header.seen);
    count(&entry->enqueued);
    raise_to(&entry->last_enqueue_ns, now);
    unsigned generation;
    struct op *op = find_place(plugin, &generation);
    if (!op) {
        count(&plugin->ring->header.dropped);
        return NULL;
    }
    struct record *record = &op->record;
    memset(record, 0, sizeof *record);
    record->comm = comm->id;
    record->rank = comm->rank;
    record->nranks = comm->nranks;
    record->seq = seq;
    record->enqueue_ns = now;
    record->tid = thread_id(plugin);
    if (type == EVENT_P2P) fill_p2p(record, descriptor);
    else fill_collective(record, descriptor, type == EVENT_COPY_ENGINE);
    uint64_t parent = (uint64_t)(uintptr_t)descriptor->parent;
    if (tag_of(descriptor->parent) == TAG_STREAM) {
        record->stream = parent & (CAPTURED - 1);
        record->flags |= FLAG_STREAM | (parent & CAPTURED ? FLAG_GRAPH : 0);
    }
    atomic_store_explicit(&op->comm_index, index, memory_order_relaxed);
    atomic_store_explicit(&op->gpu_start_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&op->gpu_stop_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&op->host_stop_ns, now, memory_order_relaxed);
    atomic_store_explicit(&op->word, word_of(generation, LIVE, record->channels), memory_order_release);
    void *handle = handle_of(TAG_OP, generation, (unsigned)(op - plugin->ops));
    uint32_t order = atomic_fetch_add_explicit(&plugin->next_op, 1, memory_order_relaxed);
    atomic_store_explicit(&plugin->started[order % OPS], (uint64_t)(uintptr_t)handle, memory_order_release);
    give_up_quiet(plugin, order, now);
    return handle;
}

void *start_channel(struct plugin *plugin, const struct descriptor *descriptor) {
    unsigned generation = generation_of(descriptor->parent);
    struct op *op = tag_of(descriptor->parent) == TAG_OP ? op_of(plugin, descriptor->parent) : NULL;
    if (!op) return NULL;
    // the place is not freed before the channel stops, so the times stored in it are those of this operation
    if (!advance(plugin, op, generation, CHANNEL_START)) {
        count(&plugin->ring->header.orphans);
        return NULL;
    }
    if (descriptor->kernel_channel.gpu_ns) lower_to(&op->gpu_start_ns, descriptor->kernel_channel.gpu_ns);
    return handle_of(TAG_CHANNEL, generation, index_of(descriptor->parent));
}

void stop_handle(struct plugin *plugin, void *handle) {
    enum tag tag = tag_of(handle);
    struct op *op = tag == TAG_OP || tag == TAG_CHANNEL ? op_of(plugin, handle) : NULL;
    if (!op) return;
    uint64_t w = atomic_load_explicit(&op->word, memory_order_acquire);
    bool fits = is_current(w, handle);
    if (fits) {
        if (tag == TAG_CHANNEL || !EXPECTED(w)) raise_to(&op->host_stop_ns, now_ns()); // else a channel sets it later
        fits = advance(plugin, op, generation_of(handle), tag == TAG_OP ? HOST_STOP : CHANNEL_STOP);
    }
    if (!fits) count(&plugin->ring->header.orphans);
}

void record_gpu_stop(struct plugin *plugin, void *handle, uint64_t gpu_ns) {
    struct op *op = tag_of(handle) == TAG_CHANNEL ? op_of(plugin, handle) : NULL;
    if (op && is_current(atomic_load_explicit(&op->word, memory_order_acquire), handle))
        raise_to(&op->gpu_stop_ns, gpu_ns);
}

// Publishes all operations of a communicator that is being closed, also those that still run.
void close_operations(struct plugin *plugin, uint32_t comm_index) {
    for (unsigned i = 0; i < OPS; i++) {
        struct op *op = &plugin->ops[i];
        uint64_t seen = atomic_load_explicit(&op->word, memory_order_acquire);
        while (PLACE(seen) == LIVE && atomic_load_explicit(&op->comm_index, memory_order_relaxed) == comm_index) {
            if (claim(op, seen)) {
                op->record.flags |= FLAG_CLOSED;
                finish(plugin, op, seen);
            }
            seen = atomic_load_explicit(&op->word, memory_order_acquire);
        }
    }
}
