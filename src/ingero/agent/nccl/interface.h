// The part of NCCL's profiler interface that the plugin uses. These fields have the same offsets in versions 4, 5 and 6,
// except that the type is a single byte in version 4. The offsets are asserted below, because NCCL is compiled with its
// own declarations of the same structures.
#ifndef INGERO_INTERFACE_H
#define INGERO_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

enum event_type {
    EVENT_GROUP = 1 << 0,
    EVENT_COLLECTIVE = 1 << 1,
    EVENT_P2P = 1 << 2,
    EVENT_PROXY_OP = 1 << 3,
    EVENT_PROXY_STEP = 1 << 4,
    EVENT_KERNEL_CHANNEL = 1 << 6,
    EVENT_NET_PLUGIN = 1 << 7,
    EVENT_GROUP_API = 1 << 8,
    EVENT_COLLECTIVE_API = 1 << 9,
    EVENT_P2P_API = 1 << 10,
    EVENT_KERNEL_LAUNCH = 1 << 11,
    EVENT_COPY_ENGINE = 1 << 12, // version 6
};

enum event_state { STATE_KERNEL_CHANNEL_STOP = 22 };

struct descriptor {
    union {
        uint8_t type_v4;
        uint64_t type;
    };
    void *parent;
    int rank;
    union {
        struct {
            uint64_t seq;
            const char *func;
            const void *send, *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps; // collectives of the copy engine have other fields from here on
            const char *algo, *proto;
            void *group; // from version 5 on
        } collective;
        struct {
            const char *func;
            const void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
            void *group; // from version 5 on
        } p2p;
        struct {
            uint8_t channel;
            uint64_t gpu_ns;
        } kernel_channel;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            int root;
            void *stream;
            uint8_t captured; // bool, or int in early headers: the low byte either way
        } collective_api;
        struct {
            const char *func;
            size_t count;
            const char *datatype;
            void *stream;
            uint8_t captured;
        } p2p_api;
        struct {
            char shared[80]; // as in collective, up to the datatype
            void *stream;
        } copy_engine;
    };
};

union state_args {
    struct {
        uint64_t gpu_ns;
    } kernel_channel;
};

typedef int start_event(void *context, void **handle, struct descriptor *descriptor);
typedef int stop_event(void *handle);
typedef int record_state(void *handle, int state, union state_args *args);
typedef int finalize(void *context);
typedef int init_v4(void **, int *mask, const char *name, uint64_t comm, int nodes, int nranks, int rank, void *logger);
typedef int init_v5(void **, uint64_t comm, int *mask, const char *name, int nodes, int nranks, int rank, void *logger);

struct profiler_v4 {
    const char *name;
    init_v4 *init;
    start_event *start;
    stop_event *stop;
    record_state *state;
    finalize *finalize;
};

struct profiler_v5 { // and version 6
    const char *name;
    init_v5 *init;
    start_event *start;
    stop_event *stop;
    record_state *state;
    finalize *finalize;
};

#define AT(field, offset) _Static_assert(offsetof(struct descriptor, field) == (offset), #field)
AT(parent, 8);
AT(rank, 16);
AT(collective.seq, 24);
AT(collective.count, 56);
AT(collective.root, 64);
AT(collective.datatype, 72);
AT(collective.channels, 80);
AT(collective.warps, 81);
AT(collective.algo, 88);
AT(collective.proto, 96);
AT(collective.group, 104);
AT(p2p.datatype, 40);
AT(p2p.count, 48);
AT(p2p.peer, 56);
AT(p2p.channels, 60);
AT(p2p.group, 64);
AT(kernel_channel.channel, 24);
AT(kernel_channel.gpu_ns, 32);
AT(collective_api.stream, 56);
AT(collective_api.captured, 64);
AT(p2p_api.stream, 48);
AT(p2p_api.captured, 56);
AT(copy_engine.stream, 104);
#undef AT

#endif
