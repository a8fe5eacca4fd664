// A second profiler plugin, for a chain: it checks that it gets its own contexts, handles and parents back, and writes
// what it was called for to the file NEXT_LOG when its last communicator ends. NEXT_MASK is what it asks for. NEXT_MODE:
// "deaf" refuses every communicator, "sour" every event, "tagged" returns handles that are no pointers, "blank" has no
// context. Built with -DONLY=4, 5 or 6 it has one interface, else all.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 15, SLOTS = 1 << 20, COLL = 2, P2P = 4, KERNEL_CH = 64 };
struct event { int magic, version; _Atomic int stops; uint64_t type; };
struct comm { int magic, version; };

static struct event all[SLOTS];
static struct comm comms[4096];
static _Atomic uint32_t events, opened, closed;
static _Atomic uint64_t starts[KINDS], stops[KINDS], states, parents, groups, wrong;

static bool is_mode(const char *mode) { const char *set = getenv("NEXT_MODE"); return set && !strcmp(set, mode); }
static void *wrap(const struct event *event) {
    uint64_t number = (uint64_t)(event - all) + 1;
    return is_mode("tagged") ? (void *)(uintptr_t)(0xc1ull << 56 | number) : (void *)(uintptr_t)event;
}
static struct event *unwrap(const void *handle) {
    uint64_t value = (uint64_t)(uintptr_t)handle;
    struct event *event = is_mode("tagged") ? (value >> 56 == 0xc1 ? &all[(value & 0xffffffff) - 1] : NULL) : (struct event *)handle;
    if (event < all || event >= all + SLOTS || event->magic != 4242) { wrong++; return NULL; }
    return event;
}
static int kind_of(uint64_t type) { for (int i = 0; i < KINDS; i++) if (type == 1ull << i) return i; wrong++; return 0; }

static int begin(void **context, int *mask, int version) {
    if (is_mode("deaf")) return 3;
    struct comm *comm = &comms[opened++ % 4096];
    *comm = (struct comm){77, version};
    *context = is_mode("blank") ? NULL : comm;
    __atomic_store_n(mask, atoi(getenv("NEXT_MASK") ? getenv("NEXT_MASK") : "0"), __ATOMIC_RELAXED); // other communicators run
    return 0;
}
static int begin4(void **c, int *m, const char *name, uint64_t id, int nodes, int nranks, int rank, void *log) {
    (void)name; (void)log; if (nodes != 2 || rank >= nranks || !id) wrong++;
    return begin(c, m, 4);
}
static int begin5(void **c, uint64_t id, int *m, const char *name, int nodes, int nranks, int rank, void *log) {
    (void)name; (void)log; if (nodes != 2 || rank >= nranks || !id) wrong++;
    return begin(c, m, 5);
}

static int start(void *context, void **handle, void *descriptor, int version) {
    const struct comm *comm = context;
    if (is_mode("blank") ? context != NULL : comm < comms || comm >= comms + 4096 || comm->magic != 77) wrong++;
    uint64_t type = version == 4 ? *(uint8_t *)descriptor : *(uint64_t *)descriptor;
    void *parent = ((void **)descriptor)[1];
    void *group = version == 4 ? NULL : type == COLL ? ((void **)descriptor)[13] : type == P2P ? ((void **)descriptor)[8] : NULL;
    if (is_mode("sour")) { *handle = (void *)7; return 1; }
    if (parent) { parents++; unwrap(parent); }
    if (group) { groups++; unwrap(group); }
    if (type == KERNEL_CH && !parent) wrong++;
    struct event *event = &all[events++ % SLOTS];
    event->magic = 4242; event->type = type; event->stops = 0;
    starts[kind_of(type)]++;
    *handle = wrap(event);
    return 0;
}
static int start4(void *c, void **h, void *d) { return start(c, h, d, 4); }
static int start5(void *c, void **h, void *d) { return start(c, h, d, 5); }
static int stop(void *handle) {
    struct event *event = unwrap(handle);
    if (event) { stops[kind_of(event->type)]++; if (event->stops++) wrong++; }
    return 0;
}
static int state(void *handle, int value, void *args) { (void)args; if (value == 22) states++; unwrap(handle); return 0; }
static int end(void *context) {
    const struct comm *comm = context;
    if (!is_mode("blank") && (comm < comms || comm->magic != 77)) wrong++;
    if (++closed != opened || !getenv("NEXT_LOG")) return 0;
    FILE *file = fopen(getenv("NEXT_LOG"), "w");
    if (!file) return 0;
    for (int i = 0; i < KINDS; i++) if (starts[i]) fprintf(file, "%d %llu %llu\n", i, (unsigned long long)starts[i], (unsigned long long)stops[i]);
    fprintf(file, "states %llu\nparents %llu\ngroups %llu\nwrong %llu\n", (unsigned long long)states, (unsigned long long)parents, (unsigned long long)groups, (unsigned long long)wrong);
    fclose(file);
    return 0;
}

struct table { const char *name; void *init, *start, *stop, *state, *finalize; };
#define EXPORT __attribute__((visibility("default")))
#if !defined(ONLY) || ONLY == 4
EXPORT struct table ncclProfiler_v4 = {"second", begin4, start4, stop, state, end};
#endif
#if !defined(ONLY) || ONLY == 5
EXPORT struct table ncclProfiler_v5 = {"second", begin5, start5, stop, state, end};
#endif
#if !defined(ONLY) || ONLY == 6
EXPORT struct table ncclProfiler_v6 = {"second", begin5, start5, stop, state, end};
#endif
