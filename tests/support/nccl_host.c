// Speaks NCCL's profiler interface to the plugin, as NCCL does and as it should not. Build: cc nccl_host.c -ldl -lpthread
// Usage: host PLUGIN VERSION SCENARIO [NUMBER]. Prints what it did; "ready" and a line on stdin separate work from exit.
// The structures are written down here once more, from NCCL's published layout, so that a slip in the plugin's shows.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct { uint8_t type; void *parentObj; int rank; union {
    struct { uint64_t seqNumber; const char *func; const void *sendBuff; void *recvBuff; size_t count; int root; const char *datatype; uint8_t nChannels, nWarps; const char *algo, *proto; } coll;
    struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels; } p2p;
    struct { uint8_t channelId; uint64_t pTimer; } kernelCh; }; } descr4;
typedef struct { uint64_t type; void *parentObj; int rank; union {
    struct { bool graphCaptured; int groupDepth; } groupApi;
    struct { const char *func; size_t count; const char *datatype; int root; void *stream; bool graphCaptured; } collApi;
    struct { const char *func; size_t count; const char *datatype; void *stream; bool graphCaptured; } p2pApi;
    struct { uint64_t seqNumber; const char *func; const void *sendBuff; void *recvBuff; size_t count; int root; const char *datatype; uint8_t nChannels, nWarps; const char *algo, *proto; void *parentGroup; } coll;
    struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t nChannels; void *parentGroup; } p2p;
    struct { uint8_t channelId; uint64_t pTimer; } kernelCh;
    struct { uint64_t seqNumber; const char *func; const void *sendBuff; void *recvBuff; size_t count; int root; const char *datatype, *syncStrategy; bool intraBatchSync; uint32_t batchSize, numBatches, ceSeqNum; void *stream; } ceColl; }; } descr;
typedef union { struct { size_t transSize; } proxyStep; struct { uint64_t pTimer; } kernelCh; } args;
typedef struct { const char *name;
    union { int (*v4)(void **, int *, const char *, uint64_t, int, int, int, void *); int (*v5)(void **, uint64_t, int *, const char *, int, int, int, void *); } init;
    int (*start)(void *, void **, void *); int (*stop)(void *); int (*state)(void *, int, args *); int (*finalize)(void *); } profiler;

enum { GROUP = 1, COLL = 2, P2P = 4, PROXY_OP = 8, KERNEL_CH = 64, GROUP_API = 256, COLL_API = 512, P2P_API = 1024, CE_COLL = 4096 };
enum { KERNEL_CH_STOP = 22, CHANNELS = 2 };
#define GPU_BASE 1000000000000ull

static profiler *plugin;
static int version, failures;
static bool is_chained; // a second plugin runs behind this one
static int next_mask;   // what it asks for

#define MUST(what) do { if (!(what)) { failures++; fprintf(stderr, "line %d: %s\n", __LINE__, #what); } } while (0)

static void *open_comm(uint64_t id, int rank, int nranks, const char *name) {
    void *context = (void *)1;
    int mask = -1;
    int result = version == 4 ? plugin->init.v4(&context, &mask, name, id, 2, nranks, rank, NULL)
                              : plugin->init.v5(&context, id, &mask, name, 2, nranks, rank, NULL);
    MUST(result == 0);
    MUST(mask == (next_mask | (getenv("EXPECT_OFF") ? 0 : COLL | P2P | KERNEL_CH | (version >= 6 ? CE_COLL : 0))));
    return context;
}

static void *start(void *context, descr *d) { // version 4 gets its own, smaller structure
    void *handle = (void *)1;
    if (version > 4) {
        MUST(plugin->start(context, &handle, d) == 0);
        return handle;
    }
    if (d->type > 255) return NULL; // NCCL's adapter keeps these from older plugins
    descr4 old;
    memset(&old, 0xee, sizeof old);
    old.type = (uint8_t)d->type; old.parentObj = d->parentObj; old.rank = d->rank;
    if (d->type == COLL) {
        old.coll.seqNumber = d->coll.seqNumber; old.coll.func = d->coll.func; old.coll.count = d->coll.count; old.coll.root = d->coll.root;
        old.coll.datatype = d->coll.datatype; old.coll.nChannels = d->coll.nChannels; old.coll.nWarps = d->coll.nWarps; old.coll.algo = d->coll.algo; old.coll.proto = d->coll.proto;
        old.parentObj = d->coll.parentGroup;
    } else if (d->type == P2P) {
        old.p2p.func = d->p2p.func; old.p2p.datatype = d->p2p.datatype; old.p2p.count = d->p2p.count; old.p2p.peer = d->p2p.peer; old.p2p.nChannels = d->p2p.nChannels;
        old.parentObj = d->p2p.parentGroup;
    } else if (d->type == KERNEL_CH) { old.kernelCh.channelId = d->kernelCh.channelId; old.kernelCh.pTimer = d->kernelCh.pTimer; }
    MUST(plugin->start(context, &handle, &old) == 0);
    return handle;
}

static void *start_coll(void *context, uint64_t seq, uint64_t count, const char *func, int channels) {
    descr group = {.type = GROUP_API}, api = {.type = COLL_API}, d = {.type = COLL};
    void *outer = start(context, &group);
    MUST(outer == NULL || is_chained);
    if (outer) plugin->stop(outer);
    api.parentObj = outer;
    if (is_chained) {
        descr inner = {.type = GROUP, .parentObj = outer};
        d.coll.parentGroup = start(context, &inner);
        if (d.coll.parentGroup) plugin->stop(d.coll.parentGroup);
    }
    api.collApi.func = func; api.collApi.stream = (void *)0x7f00deadb000; api.collApi.graphCaptured = count % 2;
    d.parentObj = start(context, &api);
    plugin->stop(d.parentObj);
    d.coll.seqNumber = seq; d.coll.func = func; d.coll.count = count; d.coll.root = 3; d.coll.datatype = "ncclBfloat16";
    d.coll.nChannels = (uint8_t)channels; d.coll.nWarps = 16; d.coll.algo = "RING"; d.coll.proto = "SIMPLE";
    return start(context, &d);
}

static void *start_p2p(void *context, const char *func, int peer, uint64_t count, int channels) {
    descr api = {.type = P2P_API}, d = {.type = P2P};
    api.p2pApi.func = func; api.p2pApi.stream = NULL;
    d.parentObj = start(context, &api);
    d.p2p.func = func; d.p2p.datatype = "ncclFloat8e4m3"; d.p2p.count = count; d.p2p.peer = peer; d.p2p.nChannels = (uint8_t)channels;
    return start(context, &d);
}

static void *start_channel(void *context, void *parent, int channel, uint64_t gpu_ns) {
    descr d = {.type = KERNEL_CH, .parentObj = parent};
    d.kernelCh.channelId = (uint8_t)channel; d.kernelCh.pTimer = gpu_ns;
    return start(context, &d);
}

static void stop_channel(void *handle, uint64_t gpu_ns) {
    args a = {.kernelCh = {gpu_ns}};
    plugin->state(handle, KERNEL_CH_STOP, &a);
    plugin->stop(handle);
}

static void run_channels(void *context, void *op, uint64_t id, int channels) { // starts at id·100, lasts 50, one later per channel
    void *handles[64];
    for (int c = 0; c < channels; c++) handles[c] = start_channel(context, op, c, GPU_BASE + id * 100 + (uint64_t)c);
    for (int c = 0; c < channels; c++) stop_channel(handles[c], GPU_BASE + id * 100 + 50 + (uint64_t)c);
}

static void whole_coll(void *context, uint64_t id) {
    void *op = start_coll(context, id, id, "AllReduce", CHANNELS);
    plugin->stop(op);
    run_channels(context, op, id, CHANNELS);
}

static void wait_for_reader(void) {
    char line[8];
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(3);
}

static void basic(uint64_t n) {
    void *tp = open_comm(0xabc0000000000001, 1, 2, "tensor parallel"), *dp = open_comm(0xffffffffffffff02, 5, 8, NULL);
    for (uint64_t i = 0; i < n; i++) { whole_coll(tp, i); whole_coll(dp, i); }
    for (uint64_t i = 0; i < 3; i++) {
        void *op = start_p2p(dp, i == 1 ? "Recv" : "Send", (int)i, 1000 + i, 1);
        plugin->stop(op);
        run_channels(dp, op, 5000 + i, 1);
    }
    if (version >= 6) {
        descr d = {.type = CE_COLL};
        d.ceColl.seqNumber = 9; d.ceColl.func = "AllGather"; d.ceColl.count = 77; d.ceColl.datatype = "ncclInt8"; d.ceColl.stream = (void *)0x5000;
        d.ceColl.syncStrategy = "x"; d.ceColl.ceSeqNum = 4;
        plugin->stop(start(dp, &d));
    }
    wait_for_reader();
    plugin->finalize(tp);
    plugin->finalize(dp);
}

// ---- threads: a host thread enqueues, a proxy thread runs the channels, as in NCCL; several communicators at once

enum { LANES = 4, QUEUE = 1024 };
struct lane { void *context; uint64_t n, base; _Atomic uint64_t head, tail; void *queue[QUEUE]; };

static void *enqueue(void *arg) {
    struct lane *lane = arg;
    for (uint64_t i = 0; i < lane->n; i++) {
        while (atomic_load(&lane->head) - atomic_load(&lane->tail) >= QUEUE) usleep(10);
        void *op = start_coll(lane->context, i, lane->base + i, "AllReduce", CHANNELS);
        lane->queue[i % QUEUE] = op;
        atomic_store(&lane->head, i + 1);
        plugin->stop(op); // races with the channels of the same operation
    }
    return NULL;
}

static void *progress(void *arg) {
    struct lane *lane = arg;
    for (uint64_t i = 0; i < lane->n; i++) {
        while (atomic_load(&lane->head) <= i) usleep(10);
        run_channels(lane->context, lane->queue[i % QUEUE], lane->base + i, CHANNELS);
        atomic_store(&lane->tail, i + 1);
    }
    return NULL;
}

static void threads(uint64_t n) {
    static struct lane lanes[LANES];
    pthread_t ids[2 * LANES];
    for (int i = 0; i < LANES; i++) {
        lanes[i].context = open_comm(100 + (uint64_t)i, i, LANES, "lane");
        lanes[i].n = n; lanes[i].base = (uint64_t)i * 1000000;
        pthread_create(&ids[2 * i], NULL, enqueue, &lanes[i]);
        pthread_create(&ids[2 * i + 1], NULL, progress, &lanes[i]);
    }
    for (int i = 0; i < 2 * LANES; i++) pthread_join(ids[i], NULL);
    wait_for_reader();
}

static void *open_late(void *arg) { return open_comm(7000 + (uint64_t)(uintptr_t)arg, 0, 1, "together"); }

static void together(uint64_t n) { // communicators opened by many threads at once make one ring
    pthread_t ids[64];
    for (uintptr_t i = 0; i < n; i++) pthread_create(&ids[i], NULL, open_late, (void *)i);
    for (uintptr_t i = 0; i < n; i++) { void *context; pthread_join(ids[i], &context); MUST(context); whole_coll(context, i); }
    wait_for_reader();
}

// ---- what NCCL should not do

static void odd(uint64_t n) {
    (void)n;
    void *junk[] = {NULL, (void *)1, (void *)0x7fffffffffff, (void *)UINTPTR_MAX, (void *)0xc100000000002000, (void *)0xc1ffffffffffffff, (void *)0xc200000000000000, (void *)0xc400000000000400};
    void *context = open_comm(11, 0, 2, "a name that is far longer than the field which has to hold it, by some characters");
    for (unsigned i = 0; i < sizeof junk / sizeof *junk; i++) {
        args a = {.kernelCh = {5}};
        descr d = {.type = KERNEL_CH, .parentObj = junk[i]};
        plugin->stop(junk[i]);
        plugin->state(junk[i], KERNEL_CH_STOP, &a);
        plugin->state(junk[i], KERNEL_CH_STOP, NULL);
        MUST(start(context, &d) == NULL);
        MUST(start_coll(junk[i], 0, 0, "AllReduce", 1) == NULL);
        if (i) plugin->finalize(junk[i]);
    }
    for (uint64_t type = 0; type < 40; type++) {
        descr d = {.type = type < 32 ? 1ull << type : type};
        memset(&d.coll, 0, sizeof d.coll); // null names
        void *op = start(context, &d);
        plugin->stop(op);
        plugin->stop(op);
        plugin->stop(op);
    }
    if (version > 4) { MUST(plugin->start(context, NULL, NULL) == 0); void *h = (void *)1; MUST(plugin->start(context, &h, NULL) == 0 && !h); }
    void *early = start_coll(context, 1, 901, "AllReduce", 2); // channels before the host's stop
    run_channels(context, early, 901, 2);
    plugin->stop(early);
    plugin->stop(early);
    run_channels(context, early, 902, 2); // after the end: belongs to nobody
    void *extra = start_coll(context, 2, 903, "AllReduce", 1); // more channels than announced, interleaved
    void *c0 = start_channel(context, extra, 0, GPU_BASE + 500), *c1 = start_channel(context, extra, 1, GPU_BASE + 400);
    stop_channel(c0, GPU_BASE + 600);
    plugin->stop(extra);
    stop_channel(c1, GPU_BASE + 700);
    void *untimed = start_coll(context, 3, 904, "AllReduce", 1); // a stop without a time
    plugin->stop(untimed);
    plugin->stop(start_channel(context, untimed, 0, GPU_BASE + 800));
    plugin->stop(start_coll(context, 4, 905, "AllReduce", 0)); // no channels at all: symmetric kernels
    void *twice = start_coll(context, 6, 908, "AllReduce", 2); // a channel stopped twice stands for no other
    plugin->stop(twice);
    c0 = start_channel(context, twice, 0, GPU_BASE + 900);
    stop_channel(c0, GPU_BASE + 910);
    plugin->stop(c0);
    c1 = start_channel(context, twice, 1, GPU_BASE + 905);
    stop_channel(c1, GPU_BASE + 950);
    void *stale = start_coll(context, 7, 909, "AllReduce", 1), *stale_channel; // its place comes round again
    stale_channel = start_channel(context, stale, 0, GPU_BASE + 960);
    plugin->stop(stale);
    stop_channel(stale_channel, GPU_BASE + 970);
    for (uint64_t i = 1; i < 8192; i++) plugin->stop(start_coll(context, i, 1, "AllReduce", 0));
    void *heir = start_coll(context, 8, 910, "AllReduce", 1);
    plugin->stop(stale);
    MUST(start_channel(context, stale, 0, 1) == NULL);
    stop_channel(stale_channel, GPU_BASE * 2);
    run_channels(context, heir, 910, 1);
    plugin->stop(heir);
    start_coll(context, 5, 906, "AllReduce", 2); // never stopped: published when the communicator goes
    plugin->finalize(context);
    plugin->finalize(context);
    MUST(start_coll(context, 6, 907, "AllReduce", 2) == NULL);
    wait_for_reader();
}

static void fork_child(uint64_t n) {
    void *context = open_comm(21, 0, 2, "parent");
    void *open_op = start_coll(context, 0, 0, "AllReduce", CHANNELS);
    for (uint64_t i = 1; i < n; i++) whole_coll(context, i);
    int done[2], go[2]; // the child tells its end, the parent lets it go
    char byte = 0;
    if (pipe(done) || pipe(go)) exit(3);
    pid_t child = fork();
    if (child == 0) {
        for (uint64_t i = 0; i < 100; i++) whole_coll(context, 666000 + i); // must not reach the parent's ring
        plugin->stop(open_op);
        run_channels(context, open_op, 666, CHANNELS);
        plugin->finalize(context);
        void *own = open_comm(22, 1, 2, "child"); // and may have a ring of its own
        whole_coll(own, 777);
        _exit(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1 ? failures : 3);
    }
    int status = 1;
    plugin->stop(open_op);
    run_channels(context, open_op, 0, CHANNELS);
    MUST(read(done[0], &byte, 1) == 1);
    printf("child %d\n", child);
    wait_for_reader();
    MUST(write(go[1], &byte, 1) == 1);
    waitpid(child, &status, 0);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void short_of_channels(uint64_t n) { // announces four channels, runs three: a known habit of small messages
    void *context = open_comm(31, 0, 2, "short");
    for (uint64_t i = 0; i < n; i++) {
        void *op = start_p2p(context, "Send", 1, i, 4);
        plugin->stop(op);
        run_channels(context, op, i, 3);
        if (i == n / 2) usleep(150000); // quiet for long enough that what came before is given up
    }
    wait_for_reader();
    plugin->finalize(context);
    wait_for_reader();
}

static void ending(uint64_t n) { // a barrier, then the end of the communicator before the proxy told of all its channels
    void *context = open_comm(35, 0, 2, "ending");
    for (uint64_t i = 0; i + 1 < n; i++) whole_coll(context, i);
    void *barrier = start_coll(context, n - 1, n - 1, "AllReduce", 3);
    plugin->stop(barrier);
    void *first = start_channel(context, barrier, 0, GPU_BASE + 1000000);
    void *second = start_channel(context, barrier, 1, GPU_BASE + 1000001); // started, its stop is never heard of
    stop_channel(first, GPU_BASE + 1000050);
    plugin->finalize(context);
    stop_channel(second, GPU_BASE + 2000000); // too late: the place may be another's by now
    wait_for_reader();
}

static void flood(uint64_t n) {
    void *context = open_comm(41, 0, 2, "flood");
    for (uint64_t i = 0; i < n; i++) whole_coll(context, i);
    wait_for_reader();
}

static void *loop_forever(void *context) { for (uint64_t i = 0;; i++) whole_coll(context, i); return NULL; }

static void loop(uint64_t n) { // until killed
    pthread_t id;
    for (uint64_t i = 0; i < n; i++) pthread_create(&id, NULL, loop_forever, open_comm(50 + i, 0, 2, "loop"));
    printf("ready\n");
    fflush(stdout);
    pause();
}

static void stuck(uint64_t n) { // channels that never stop hold their places: nothing grows, the rest is counted
    void *context = open_comm(61, 0, 2, "stuck");
    uint64_t refused = 0;
    for (uint64_t i = 0; i < n; i++) {
        void *op = start_coll(context, i, i, "AllReduce", 1);
        plugin->stop(op);
        if (op) start_channel(context, op, 0, GPU_BASE); else refused++;
    }
    printf("refused %llu\n", (unsigned long long)refused);
    wait_for_reader();
    plugin->finalize(context);
    whole_coll(open_comm(62, 0, 2, "after"), 1);
    wait_for_reader();
}

static void hung(uint64_t n) { // one communicator hangs with many operations queued while another goes on
    static void *queued[1000];
    void *slow = open_comm(81, 0, 2, "slow"), *fast = open_comm(82, 0, 2, "fast");
    for (uint64_t i = 0; i < 1000; i++) { queued[i] = start_coll(slow, i, i, "AllReduce", CHANNELS); plugin->stop(queued[i]); }
    for (uint64_t i = 0; i < n; i++) whole_coll(fast, i);
    for (uint64_t i = 0; i < 1000; i++) run_channels(slow, queued[i], i, CHANNELS);
    wait_for_reader();
}

static void comms(uint64_t n) { // opened and closed again and again, then too many at once
    for (uint64_t i = 0; i < 3000; i++) { void *context = open_comm(i, 0, 2, "cycle"); whole_coll(context, i); plugin->finalize(context); }
    uint64_t refused = 0;
    for (uint64_t i = 0; i < n; i++) { void *context = open_comm(10000 + i, 0, 2, "kept"); if (!context) refused++; whole_coll(context, i); }
    printf("refused %llu\n", (unsigned long long)refused);
    wait_for_reader();
}

static double seconds(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }

static int null_start(void *c, void **h, void *d) { (void)c; (void)d; *h = NULL; return 0; }
static int null_stop(void *h) { (void)h; return 0; }
static int null_state(void *h, int s, args *a) { (void)h; (void)s; (void)a; return 0; }

static void bench(uint64_t n) { // the plugin and an empty one, alternated; seconds per operation with two channels
    profiler *real = plugin, empty = *plugin;
    empty.start = null_start; empty.stop = null_stop; empty.state = null_state;
    void *context = open_comm(71, 0, 2, "bench");
    for (int round = 0; round < 20; round++) {
        double at[3] = {seconds()};
        plugin = real;
        for (uint64_t i = 0; i < n; i++) whole_coll(context, i);
        at[1] = seconds();
        plugin = &empty;
        for (uint64_t i = 0; i < n; i++) whole_coll(context, i);
        at[2] = seconds();
        plugin = real;
        printf("%.2f %.2f\n", 1e9 * (at[1] - at[0]) / (double)n, 1e9 * (at[2] - at[1]) / (double)n);
    }
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(uint64_t); } scenarios[] = {
        {"basic", basic}, {"threads", threads}, {"together", together}, {"odd", odd}, {"fork", fork_child}, {"short", short_of_channels}, {"ending", ending},
        {"flood", flood}, {"loop", loop}, {"stuck", stuck}, {"hung", hung}, {"comms", comms}, {"bench", bench}};
    if (argc < 4) return 2;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    char symbol[32];
    version = atoi(argv[2]);
    is_chained = getenv("EXPECT_NEXT");
    next_mask = is_chained ? atoi(getenv("EXPECT_NEXT")) : 0;
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    plugin = dlsym(library, symbol);
    if (!plugin || !plugin->name) { fprintf(stderr, "no %s\n", symbol); return 2; }
    for (unsigned i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        if (!strcmp(scenarios[i].name, argv[3])) {
            scenarios[i].run(argc > 4 ? strtoull(argv[4], NULL, 10) : 100);
            dlclose(library);
            return failures ? 1 : 0;
        }
    return 2;
}
