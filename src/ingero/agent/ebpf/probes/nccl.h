/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 * NCCL calls: communicators by unique id, sequence numbers, collective records. Included by calls.h. */
#pragma once
enum { ID_WORDS = 16, INIT_ALL_MAX = 16, UNKNOWN = -1 };
/* argument slots of NCCL functions in func.locs */
enum { AT_COUNT, AT_DATATYPE, AT_REDUCE, AT_PEER, AT_COMM, AT_STREAM, AT_RANK, AT_NRANKS };

struct nccl_event {
  struct event event;
  u64 comm, seq, count, stream;
  s32 rank, nranks, datatype, reduce_op, peer;
  u32 pad;
};
struct comm_key { u64 tgid, pointer; };
struct comm { u64 hash, seq, splits; s32 rank, nranks; };
struct peer_key { u64 tgid, comm; u32 peer, op; };
struct {
  MAP_UINT(type, MAP_LRU_HASH); MAP_UINT(max_entries, 8192); MAP_TYPE(key, struct comm_key); MAP_TYPE(value, struct comm);
} comms SEC(".maps");
struct {
  MAP_UINT(type, MAP_LRU_HASH); MAP_UINT(max_entries, 16384); MAP_TYPE(key, struct peer_key); MAP_TYPE(value, u64);
} peers SEC(".maps");

INLINE u64 mix(u64 x) {
  x ^= x >> 30; x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27; x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/* Hash over all 128 bytes of a unique id; 0 when it cannot be read or is all zero. */
INLINE u64 hash_of_id(const void *id) {
  u64 words[ID_WORDS], hash = 0x9e3779b97f4a7c15ull, any = 0;
  if (read_user(words, sizeof words, id))
    return 0;
#pragma unroll
  for (int i = 0; i < ID_WORDS; i++) {
    hash = mix(hash ^ words[i]);
    any |= words[i];
  }
  return any ? hash : 0;
}

/* ncclBcast calls ncclBroadcast, and newer collectives are made of others: only the outermost call is the user's. */
INLINE int inside_collective(struct thread *thread, u32 depth, u8 kind) {
  if ((kind != KIND_COLLECTIVE && kind != KIND_P2P) || !depth)
    return 0;
  u8 outer = functions[frame_at(thread, depth - 1)->func & 127].kind;
  return outer == KIND_COLLECTIVE || outer == KIND_P2P;
}

INLINE struct comm *comm_of(u64 tgid, u64 pointer) {
  struct comm_key key = {tgid, pointer};
  struct comm *comm = map_lookup(&comms, &key);
  if (comm)
    return comm;
  struct comm unknown = {0, 0, 0, UNKNOWN, UNKNOWN}; /* made before we came: counted, but nobody knows its id */
  map_update(&comms, &key, &unknown, BPF_NOEXIST);
  return map_lookup(&comms, &key);
}

/* By the communicator's id where it is known: its address is soon another's, and the count would go on. */
INLINE u64 next_p2p(u64 tgid, u64 pointer, u32 peer, u32 op) {
  struct comm *comm = comm_of(tgid, pointer);
  struct peer_key key = {tgid, comm && comm->hash ? comm->hash : pointer, peer, op};
  u64 zero = 0, *seq = map_lookup(&peers, &key);
  if (!seq) {
    map_update(&peers, &key, &zero, BPF_NOEXIST);
    seq = map_lookup(&peers, &key);
  }
  return seq ? __sync_fetch_and_add(seq, 1) : 0;
}

/* What must be taken before the call runs: the id (it may live on the caller's stack) and the order of collectives. */
INLINE void nccl_entry(const volatile struct func *func, struct frame *frame, u64 who) {
  frame->extra = 0;
  if (func->kind == KIND_COLLECTIVE) {
    struct comm *comm = comm_of(who >> 32, located(frame, func->locs[AT_COMM]));
    frame->extra = comm ? __sync_fetch_and_add(&comm->seq, 1) : 0;
  } else if (func->kind == KIND_P2P) {
    frame->extra = next_p2p(who >> 32, located(frame, func->locs[AT_COMM]), located(frame, func->locs[AT_PEER]), func->op);
  } else if (func->kind == KIND_COMM_INIT) {
    frame->extra = hash_of_id((void *)located(frame, func->locs[AT_COUNT]));
  }
}

INLINE void remember(u64 tgid, u64 pointer, u64 hash, s32 rank, s32 nranks) {
  struct comm_key key = {tgid, pointer};
  struct comm fresh = {hash, 0, 0, rank, nranks};
  map_update(&comms, &key, &fresh, BPF_ANY);
}

INLINE void communicator_made(const volatile struct func *func, struct frame *frame, s32 ret, u64 tgid) {
  u64 pointer = 0, out = located(frame, func->locs[AT_COMM]);
  s32 nranks = located(frame, func->locs[AT_NRANKS]);
  if (ret && ret != IN_PROGRESS)
    return;
  if (func->kind == KIND_COMM_INIT) {
    if (frame->extra && !read_user(&pointer, 8, (void *)out))
      remember(tgid, pointer, frame->extra, located(frame, func->locs[AT_RANK]), nranks);
  } else if (func->kind == KIND_COMM_INIT_ALL) {
    frame->extra = mix(frame->start_ns ^ tgid << 32); /* no id exists: ours is unique on this host */
    u64 hash = frame->extra;
    for (int i = 0; i < INIT_ALL_MAX; i++) {
      if (i >= nranks || read_user(&pointer, 8, (void *)(out + 8 * i)))
        break; /* one way out keeps the verifier's work linear */
      remember(tgid, pointer, hash, i, nranks);
    }
  } else if (func->kind == KIND_COMM_SPLIT) {
    struct comm *parent = comm_of(tgid, located(frame, func->locs[AT_COUNT]));
    u64 color = located(frame, func->locs[AT_PEER]);
    if (!parent)
      return;
    u64 number = __sync_fetch_and_add(&parent->splits, 1);
    if (!parent->hash || read_user(&pointer, 8, (void *)out) || !pointer)
      return;
    frame->extra = mix(mix(parent->hash ^ (number + 1)) ^ color);
    remember(tgid, pointer, frame->extra, UNKNOWN, UNKNOWN);
  }
}

INLINE void communicator_asked(const volatile struct func *func, struct frame *frame, s32 ret, u64 tgid) {
  s32 answer = 0;
  struct comm *comm = comm_of(tgid, located(frame, func->locs[AT_COMM]));
  if (ret || !comm || read_user(&answer, 4, (void *)located(frame, func->locs[AT_COUNT])))
    return;
  if (func->kind == KIND_COMM_RANK)
    comm->rank = answer;
  else
    comm->nranks = answer;
}

INLINE void fill_collective(struct nccl_event *record, const volatile struct func *func, struct frame *frame, u64 tgid) {
  struct comm_key key = {tgid, located(frame, func->locs[AT_COMM])};
  struct comm *comm = map_lookup(&comms, &key);
  int is_init = func->kind >= KIND_COMM_INIT && func->kind <= KIND_COMM_SPLIT;
  record->comm = is_init ? frame->extra : comm ? comm->hash : 0;
  record->rank = is_init ? (func->locs[AT_RANK] ? (s32)located(frame, func->locs[AT_RANK]) : UNKNOWN) : comm ? comm->rank : UNKNOWN;
  record->nranks = is_init ? (func->locs[AT_NRANKS] ? (s32)located(frame, func->locs[AT_NRANKS]) : UNKNOWN) : comm ? comm->nranks : UNKNOWN;
  record->seq = func->kind == KIND_COLLECTIVE || func->kind == KIND_P2P ? frame->extra : 0;
  record->count = is_init ? 0 : located(frame, func->locs[AT_COUNT]);
  record->stream = located(frame, func->locs[AT_STREAM]);
  record->datatype = func->locs[AT_DATATYPE] ? (s32)located(frame, func->locs[AT_DATATYPE]) : UNKNOWN;
  record->reduce_op = func->locs[AT_REDUCE] ? (s32)located(frame, func->locs[AT_REDUCE]) : UNKNOWN;
  record->peer = func->locs[AT_PEER] && !is_init ? (s32)located(frame, func->locs[AT_PEER]) : UNKNOWN;
  record->pad = 0;
}

INLINE void fill_call(struct pt_regs *ctx, struct event *event, struct thread *thread, struct frame *frame, u64 end, s32 ret, u16 flags, u64 who);

INLINE void nccl_return(struct pt_regs *ctx, struct thread *thread, struct frame *frame, struct slot *slot, u64 end, s32 ret, u16 flags, u64 who) {
  const volatile struct func *func = &functions[frame->func & 127];
  u64 tgid = who >> 32;
  if (func->kind >= KIND_COMM_INIT && func->kind <= KIND_COMM_SPLIT)
    communicator_made(func, frame, ret, tgid);
  if (func->kind == KIND_COMM_RANK || func->kind == KIND_COMM_COUNT)
    communicator_asked(func, frame, ret, tgid);
  else if (flags) {
    struct nccl_event *record = ring_reserve(&nccl_ring, sizeof *record, 0);
    if (!record) {
      count_lost(RING_NCCL);
    } else {
      fill_call(ctx, &record->event, thread, frame, end, ret, flags, who);
      record->event.arg0 = record->event.arg1 = 0;
      fill_collective(record, func, frame, tgid);
      ring_submit(record, NO_WAKEUP);
      __sync_fetch_and_add(&slot->emitted, 1);
    }
  }
  if (func->kind == KIND_COMM_END && !ret) {
    struct comm_key key = {tgid, located(frame, func->locs[AT_COMM])};
    map_delete(&comms, &key);
  }
}
