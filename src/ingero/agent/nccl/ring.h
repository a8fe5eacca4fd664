// The ring file that the plugin writes and the agent reads. contract/nccl_ring.py describes the same bytes.
// When a field changes, raise RING_VERSION, change the Python side and run `make probes`.
#ifndef INGERO_RING_H
#define INGERO_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define RING_MAGIC 0x4c43434e52474e49ull // the bytes "INGRNCCL"
#define RING_PREFIX "ingero-nccl-"

enum {
    RING_VERSION = 1,
    RING_HEADER_BYTES = 4096,
    RING_COMMS = 1024,
    RING_SLOTS = 16384, // a power of two
    RECORD_WORDS = 20,
};

#define CHECK_WEIGHT(i) (0x9e3779b97f4a7c15ull * (2 * (uint64_t)(i) + 1)) // odd, so that every change of a word changes the sum

enum record_kind { KIND_COLLECTIVE = 1, KIND_P2P = 2, KIND_COPY_ENGINE = 3 };

enum record_flag {
    FLAG_GPU_TIMED = 1, // gpu_start_ns and gpu_stop_ns are the GPU's
    FLAG_PARTIAL = 2,   // published before all announced channels had stopped
    FLAG_STREAM = 4,    // stream is known
    FLAG_GRAPH = 8,     // captured into a CUDA graph
    FLAG_CLOSED = 16,   // partial because its communicator was closed first
};

struct record {
    uint64_t stamp; // index + 1, written last
    uint64_t check; // weighted sum of the other words; shows an incomplete record, whatever the order of the stores
    uint64_t comm;
    uint64_t seq;      // counts collectives of this communicator (point-to-point: its own count)
    uint64_t nccl_seq; // NCCL's number, which counts per function
    uint64_t enqueue_ns;
    uint64_t gpu_start_ns;
    uint64_t gpu_stop_ns;
    uint64_t host_stop_ns; // when the last stop was reported to the host
    uint64_t count;
    uint64_t stream;
    int32_t rank, nranks;
    int32_t peer; // root of a collective, other side of a point-to-point
    uint32_t tid;
    uint8_t kind, channels, channels_done, warps;
    uint32_t flags;
    char op[16], datatype[12], algo[12], proto[8];
};

struct slot {
    _Atomic uint64_t word[RECORD_WORDS];
};

enum comm_state { COMM_FREE, COMM_WRITING, COMM_LIVE, COMM_CLOSED };

struct comm_entry {
    _Atomic uint32_t state;
    uint32_t interface;
    uint64_t comm;
    int32_t rank, nranks, nodes, reserved;
    char name[48];
    uint64_t opened_ns;
    _Atomic uint64_t closed_ns, enqueued, finished, last_enqueue_ns, last_finish_ns;
};

struct header {
    _Atomic uint64_t magic; // written last
    uint32_t version, header_bytes, comm_bytes, comms, record_bytes, slots;
    uint32_t pid, uid;
    uint64_t start_ticks; // start of the process, as in /proc/PID/stat
    uint64_t pid_namespace;
    uint64_t created_ns, created_monotonic_ns;
    int32_t global_rank, local_rank, world_size, reserved; // -1: unknown
    char job[64];
    char plugin[16];
    char pad[1024 - 168];
    // each counter on its own cache line
    _Atomic uint64_t head, pad_head[7];         // records published
    _Atomic uint64_t seen, pad_seen[7];         // operations that NCCL has started
    _Atomic uint64_t dropped, pad_dropped[7];   // operations not recorded, because no place was free
    _Atomic uint64_t partial, pad_partial[7];   // records published before all channels had stopped
    _Atomic uint64_t orphans, pad_orphans[7];   // events without a live operation
    _Atomic uint64_t refused, pad_refused[7];   // communicators without a place in the table
};

struct ring {
    union {
        struct header header;
        char header_room[RING_HEADER_BYTES];
    };
    struct comm_entry comms[RING_COMMS];
    struct slot slots[RING_SLOTS];
};

_Static_assert(sizeof(struct record) == 160 && sizeof(struct slot) == 160, "record layout");
_Static_assert(sizeof(struct comm_entry) == 128, "communicator layout");
_Static_assert(offsetof(struct header, head) == 1024, "counter offset");
_Static_assert(sizeof(struct header) <= RING_HEADER_BYTES, "header layout");
_Static_assert((RING_SLOTS & (RING_SLOTS - 1)) == 0, "slots");
#if !defined(__LP64__)
#error "64-bit Linux only"
#endif

#endif
