// Runs a second profiler plugin behind this one. INGERO_NCCL_NEXT_PLUGIN names it, as a path or in the short form that
// NCCL_PROFILER_PLUGIN allows. Without the variable nothing here runs: the exported tables keep their plain functions.
//
// NCCL keeps one context per communicator and one handle per event, so where both plugins have returned one, NCCL gets
// the number of a pair. Where only one plugin has a handle, NCCL gets that handle itself: ours are numbers with a tag in
// the top byte, and pointers of the other plugin have none. Memory is fixed, and no lock is taken. Any trouble with the
// next plugin ends the forwarding of one event, of one communicator or of everything, and never what we record.
#define _GNU_SOURCE
#include "plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef PAIRS // tests make it small
#define PAIRS 65536
#endif

enum {
    MAX_PROBES = 64, // pairs looked at for one that may be used again
    V4 = 0,
    V5 = 1,
    V6 = 2,
    VERSIONS = 3,
};

#define COPY_ENGINE_PARTS (1ull << 13 | 1ull << 14)
#define LAST_KIND_V4 (1ull << 7)
#define LAST_KIND_V5 (1ull << 11)

// ---- pairs --------------------------------------------------------------------------------------------------------

enum { TAG_PAIR = 0xd1, TAG_CONTEXT = 0xd2 };

// A pair of a stopped event is used again only after all others: NCCL names it as a parent long after its stop.
struct pair {
    _Atomic uint64_t word; // generation and place, as in an operation; CLAIMED means stopped here
    _Atomic(void *) ours, theirs;
};

struct pool {
    _Atomic uint32_t next;
    uint32_t size;
    int tag;
    struct pair *pairs;
};

static struct pool events = {.size = PAIRS, .tag = TAG_PAIR};
static struct pool contexts = {.size = RING_COMMS, .tag = TAG_CONTEXT};

static void *make_pair(struct pool *pool, void *ours, void *theirs) {
    for (int i = 0; i < MAX_PROBES; i++) {
        uint32_t index = atomic_fetch_add(&pool->next, 1) % pool->size;
        struct pair *pair = &pool->pairs[index];
        uint64_t seen = atomic_load(&pair->word);
        unsigned generation = GENERATION(seen) + 1;
        if (PLACE(seen) == LIVE || PLACE(seen) == FILLING) continue;
        if (!atomic_compare_exchange_strong(&pair->word, &seen, word_of(generation, FILLING, 0))) continue;
        atomic_store(&pair->ours, ours);
        atomic_store(&pair->theirs, theirs);
        atomic_store(&pair->word, word_of(generation, LIVE, 0));
        return handle_of((enum tag)pool->tag, generation, index);
    }
    return NULL;
}

static struct pair *read_pair(const struct pool *pool, const void *handle, void **ours, void **theirs) {
    if (index_of(handle) >= pool->size) return NULL;
    struct pair *pair = &pool->pairs[index_of(handle)];
    uint64_t before = atomic_load(&pair->word);
    *ours = atomic_load(&pair->ours);
    *theirs = atomic_load(&pair->theirs);
    uint64_t after = atomic_load(&pair->word);
    bool is_same = GENERATION(before) == generation_of(handle) && GENERATION(after) == generation_of(handle) &&
                   PLACE(before) != FILLING && PLACE(before) != FREE;
    if (is_same) return pair;
    *ours = *theirs = NULL;
    return NULL;
}

static void release_pair(struct pair *pair, const void *handle) {
    uint64_t live = word_of(generation_of(handle), LIVE, 0);
    if (pair) atomic_compare_exchange_strong(&pair->word, &live, word_of(generation_of(handle), CLAIMED, 0));
}

// The two handles of an event behind the one that NCCL holds.
static struct pair *split(const void *handle, void **ours, void **theirs) {
    int tag = (int)tag_of(handle);
    *ours = *theirs = NULL;
    if (tag == TAG_PAIR) return read_pair(&events, handle, ours, theirs);
    if (tag >= TAG_OP && tag <= TAG_COMM) *ours = (void *)(uintptr_t)handle;
    else if (!tag) *theirs = (void *)(uintptr_t)handle;
    return NULL;
}

// ---- the next plugin ----------------------------------------------------------------------------------------------

struct next {
    int version; // of its interface: 4, 5 or 6
    init_v4 *init_v4;
    init_v5 *init_v5;
    start_event *start;
    stop_event *stop;
    record_state *state;
    finalize *finalize;
    int mask; // what it asked for; it may keep the address and change the value
};

static struct next next_of[VERSIONS]; // by the version that NCCL speaks with us
static struct profiler_v4 own_v4;
static struct profiler_v5 own_v5, own_v6;

// NCCL calls a plugin for the parents of every kind it asked for, too.
static uint64_t wanted_kinds(const struct next *next) {
    uint64_t mask = (uint64_t)__atomic_load_n(&next->mask, __ATOMIC_RELAXED);
    if (mask & COPY_ENGINE_PARTS) mask |= EVENT_COPY_ENGINE;
    if (mask & EVENT_NET_PLUGIN) mask |= EVENT_PROXY_STEP;
    if (mask & EVENT_PROXY_STEP) mask |= EVENT_PROXY_OP;
    if (mask & (EVENT_PROXY_OP | EVENT_KERNEL_CHANNEL)) mask |= EVENT_COLLECTIVE | EVENT_P2P;
    if (mask & EVENT_COLLECTIVE) mask |= EVENT_GROUP | EVENT_COLLECTIVE_API;
    if (mask & EVENT_P2P) mask |= EVENT_GROUP | EVENT_P2P_API;
    if (mask & EVENT_COPY_ENGINE) mask |= EVENT_COLLECTIVE_API;
    if (mask & (EVENT_GROUP | EVENT_COLLECTIVE_API | EVENT_P2P_API | EVENT_KERNEL_LAUNCH)) mask |= EVENT_GROUP_API;
    uint64_t last = next->version == 4 ? LAST_KIND_V4 : next->version == 5 ? LAST_KIND_V5 : 1ull << 30;
    return mask & (2 * last - 1);
}

// Joins the contexts that both plugins have returned for a communicator, and what they asked for.
static int join_contexts(struct next *next, void **context, int *mask, void *theirs, int failed) {
    if (failed || !context || !mask) return 0;
    void *joined = make_pair(&contexts, *context, theirs);
    if (!joined) {
        next->finalize(theirs);
        return 0;
    }
    *context = joined;
    *mask |= (int)(wanted_kinds(next) & (uint64_t)__atomic_load_n(&next->mask, __ATOMIC_RELAXED));
    return 0;
}

static int chain_init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int nranks, int rank,
                         void *log) {
    struct next *next = &next_of[V4];
    void *theirs = NULL;
    own_v4.init(context, mask, name, id, nodes, nranks, rank, log);
    int failed = next->init_v4(&theirs, &next->mask, name, id, nodes, nranks, rank, log);
    return join_contexts(next, context, mask, theirs, failed);
}

static int chain_init(struct next *next, const struct profiler_v5 *own, void **context, uint64_t id, int *mask,
                      const char *name, int nodes, int nranks, int rank, void *log) {
    void *theirs = NULL;
    own->init(context, id, mask, name, nodes, nranks, rank, log);
    int failed = next->version == 4 ? next->init_v4(&theirs, &next->mask, name, id, nodes, nranks, rank, log)
                                    : next->init_v5(&theirs, id, &next->mask, name, nodes, nranks, rank, log);
    return join_contexts(next, context, mask, theirs, failed);
}

// A handle that the next plugin has returned, whatever NCCL got for it.
static void *their_handle(const void *handle) {
    void *ours, *theirs;
    split(handle, &ours, &theirs);
    return theirs;
}

// Calls the next plugin with parents of its own. NCCL's descriptor is on the stack of its caller, and changed back.
static void *start_theirs(const struct next *next, int version, void *context, struct descriptor *event, uint64_t type) {
    void *handle = NULL, *parent = event->parent, **group = NULL, *kept_group = NULL;
    if (version > 4 && type == EVENT_COLLECTIVE) group = &event->collective.group;
    if (version > 4 && type == EVENT_P2P) group = &event->p2p.group;
    if (group) {
        kept_group = *group;
        *group = their_handle(kept_group);
    }
    // version 4 has one parent, which is the group
    event->parent = group && next->version == 4 ? *group : their_handle(parent);
    if (next->start(context, &handle, event)) handle = NULL;
    event->parent = parent;
    if (group) *group = kept_group;
    return handle;
}

static int chain_start(const struct next *next, int version, start_event *own, void *context, void **handle,
                       struct descriptor *event) {
    void *our_context, *their_context, *ours = NULL, *theirs = NULL, *our_parent, *their_parent;
    if (!handle || !event) return own(NULL, handle, event);
    *handle = NULL;
    uint64_t type = version == 4 ? event->type_v4 : event->type;
    bool is_joined = (int)tag_of(context) == TAG_CONTEXT;
    if (!is_joined) return own(context, handle, event); // the next plugin has refused this communicator
    is_joined = read_pair(&contexts, context, &our_context, &their_context);
    void *parent = event->parent;
    split(parent, &our_parent, &their_parent);
    event->parent = our_parent;
    own(our_context, &ours, event);
    event->parent = parent;
    if (is_joined && (type & wanted_kinds(next))) theirs = start_theirs(next, version, their_context, event, type);
    bool is_plain = !theirs || (!ours && !tag_of(theirs));
    *handle = is_plain ? (theirs ? theirs : ours) : make_pair(&events, ours, theirs);
    if (*handle || is_plain) return 0;
    next->stop(theirs); // no pair is free: they get no more of this event
    *handle = ours;
    return 0;
}

static int chain_stop(const struct next *next, void *handle) {
    void *ours, *theirs;
    struct pair *pair = split(handle, &ours, &theirs);
    if (ours) own_v5.stop(ours);
    if (theirs) next->stop(theirs);
    release_pair(pair, handle);
    return 0;
}

static int chain_state(const struct next *next, void *handle, int state, union state_args *args) {
    void *ours, *theirs;
    split(handle, &ours, &theirs);
    if (ours) own_v5.state(ours, state, args);
    if (theirs) next->state(theirs, state, args);
    return 0;
}

static int chain_finalize(const struct next *next, void *context) {
    void *ours, *theirs;
    if ((int)tag_of(context) != TAG_CONTEXT) return own_v5.finalize(context);
    struct pair *pair = read_pair(&contexts, context, &ours, &theirs);
    if (!pair || PLACE(atomic_load(&pair->word)) != LIVE) return 0;
    release_pair(pair, context);
    own_v5.finalize(ours);
    next->finalize(theirs);
    return 0;
}

#define CHAIN(v)                                                                                                       \
    static int start_v##v(void *context, void **handle, struct descriptor *event) {                                    \
        return chain_start(&next_of[V##v], v, own_v##v.start, context, handle, event);                                 \
    }                                                                                                                  \
    static int stop_v##v(void *handle) { return chain_stop(&next_of[V##v], handle); }                                  \
    static int state_v##v(void *handle, int state, union state_args *args) {                                           \
        return chain_state(&next_of[V##v], handle, state, args);                                                       \
    }                                                                                                                  \
    static int finalize_v##v(void *context) { return chain_finalize(&next_of[V##v], context); }
CHAIN(4)
CHAIN(5)
CHAIN(6)
#undef CHAIN

static int chain_init_v5(void **context, uint64_t id, int *mask, const char *name, int nodes, int nranks, int rank,
                         void *log) {
    return chain_init(&next_of[V5], &own_v5, context, id, mask, name, nodes, nranks, rank, log);
}

static int chain_init_v6(void **context, uint64_t id, int *mask, const char *name, int nodes, int nranks, int rank,
                         void *log) {
    return chain_init(&next_of[V6], &own_v6, context, id, mask, name, nodes, nranks, rank, log);
}

// ---- set-up: when the library is loaded, before NCCL looks up a table ---------------------------------------------

// The interface of this version in the next plugin; false where it has none, or is this very library.
static bool find_interface(struct next *next, void *library, int version) {
    char symbol[24];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    void *table = dlsym(library, symbol);
    if (!table || table == &ncclProfiler_v4 || table == &ncclProfiler_v5 || table == &ncclProfiler_v6) return false;
    struct next found = {.version = version};
    if (version == 4) {
        const struct profiler_v4 *v4 = table;
        found.init_v4 = v4->init;
        found.start = v4->start, found.stop = v4->stop, found.state = v4->state, found.finalize = v4->finalize;
    } else {
        const struct profiler_v5 *v5 = table;
        found.init_v5 = v5->init;
        found.start = v5->start, found.stop = v5->stop, found.state = v5->state, found.finalize = v5->finalize;
    }
    if (!(found.init_v4 || found.init_v5) || !found.start || !found.stop || !found.state || !found.finalize)
        return false;
    *next = found;
    return true;
}

static void *open_next(const char *name) {
    char path[512];
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    int size = snprintf(path, sizeof path, "libnccl-profiler-%s.so", name);
    if (!library && size > 0 && (size_t)size < sizeof path) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library;
}

static bool make_pool(struct pool *pool) {
    size_t bytes = pool->size * sizeof(struct pair);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    pool->pairs = memory;
    return true;
}

// An older interface of the next plugin serves a newer NCCL: the fields are in the same places.
__attribute__((constructor)) static void load_next(void) {
    const char *name = getenv("INGERO_NCCL_NEXT_PLUGIN");
    void *library = name && *name ? open_next(name) : NULL;
    if (!library || !make_pool(&events) || !make_pool(&contexts)) return;
    own_v4 = ncclProfiler_v4;
    own_v5 = ncclProfiler_v5;
    own_v6 = ncclProfiler_v6;
    if (find_interface(&next_of[V4], library, 4))
        ncclProfiler_v4 =
            (struct profiler_v4){own_v4.name, chain_init_v4, start_v4, stop_v4, state_v4, finalize_v4};
    if (find_interface(&next_of[V5], library, 5) || find_interface(&next_of[V5], library, 4))
        ncclProfiler_v5 =
            (struct profiler_v5){own_v5.name, chain_init_v5, start_v5, stop_v5, state_v5, finalize_v5};
    if (find_interface(&next_of[V6], library, 6) || find_interface(&next_of[V6], library, 5) ||
        find_interface(&next_of[V6], library, 4))
        ncclProfiler_v6 =
            (struct profiler_v5){own_v6.name, chain_init_v6, start_v6, stop_v6, state_v6, finalize_v6};
}
