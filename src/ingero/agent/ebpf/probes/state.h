/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 * Records, maps and counters that all probes share. `agent/ebpf/layout.py` mirrors the structs; a test compares both. */
#pragma once
#include "bpf.h"

enum { RING_CALLS, RING_NCCL, RING_HOST, RING_CRITICAL, LOST_NESTING, LOST_STATE, COUNTERS };
enum { MODE_FULL, MODE_ENTRY };
enum { FLAG_NO_END = 1, FLAG_SLOW = 2, FLAG_FAILED = 4, FLAG_SAMPLED = 8, FLAG_OTHER = 16 };
enum { BUCKETS = 128, FIRST_OCTAVE = 8 };
enum { SLOTS = 16384 }; /* up to 70 a process: eight ranks with sixteen workers each, which inherit their libraries */

struct event {
  u64 start_ns, end_ns;
  u32 pid, tid;
  u8 source, op;
  u16 flags;
  s32 ret;
  u64 cgroup;
  char comm[16];
  u64 arg0, arg1;
  s32 stack, gpu;
};

/* One function of one process, or one kernel event of one process. The agent maps the array: it reads the counts and
 * writes tgid, mode and thresholds in place, without a system call. tgid is the filter: a slot of another process is
 * never touched. */
struct slot { /* the head is one cache line; how many calls were timed is the sum of the buckets */
  u64 calls, sum, max, failed, emitted, slow_ns;
  u32 tgid, mode, sample_every, pad;
  u64 buckets[BUCKETS];
};

struct target { u32 first_slot; };

#define RING(name, bytes) struct { MAP_UINT(type, MAP_RINGBUF); MAP_UINT(max_entries, bytes); } name SEC(".maps")
RING(calls_ring, 8 << 20);
RING(nccl_ring, 2 << 20);
RING(host_ring, 2 << 20);
RING(critical_ring, 256 << 10);

struct {
  MAP_UINT(type, MAP_ARRAY); MAP_UINT(max_entries, SLOTS); MAP_UINT(map_flags, F_MMAPABLE);
  MAP_TYPE(key, u32); MAP_TYPE(value, struct slot);
} slots SEC(".maps");
struct {
  MAP_UINT(type, MAP_PERCPU_ARRAY); MAP_UINT(max_entries, COUNTERS); MAP_TYPE(key, u32); MAP_TYPE(value, u64);
} lost SEC(".maps");
struct {
  MAP_UINT(type, MAP_HASH); MAP_UINT(max_entries, 4096); MAP_TYPE(key, u32); MAP_TYPE(value, struct target);
} targets SEC(".maps");
struct {
  MAP_UINT(type, MAP_STACK_TRACE); MAP_UINT(max_entries, 16384); MAP_UINT(key_size, 4); MAP_UINT(value_size, 8 * 64);
} stacks SEC(".maps");

INLINE void count_lost(u32 which) {
  u64 *counter = map_lookup(&lost, &which);
  if (counter)
    *counter += 1;
}

INLINE u32 log2_of(u64 value) {
  u32 result = (value > 0xffffffff) << 5, step;
  value >>= result;
  step = (value > 0xffff) << 4; value >>= step; result |= step;
  step = (value > 0xff) << 3; value >>= step; result |= step;
  step = (value > 0xf) << 2; value >>= step; result |= step;
  step = (value > 0x3) << 1; value >>= step; result |= step;
  return result | (value >> 1);
}

/* Four buckets per octave from 256 ns to 18 minutes. */
INLINE u32 bucket_of(u64 value) {
  u32 octave = log2_of(value);
  if (octave < FIRST_OCTAVE)
    return 0;
  u32 bucket = (octave - FIRST_OCTAVE) * 4 + ((value >> (octave - 2)) & 3);
  return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

INLINE void measure(struct slot *slot, u64 value) {
  __sync_fetch_and_add(&slot->sum, value);
  if (value > slot->max)
    slot->max = value; /* two threads may race here: the larger of two simultaneous maxima can be missed */
  __sync_fetch_and_add(&slot->buckets[bucket_of(value) & (BUCKETS - 1)], 1);
}

INLINE void fill_who(struct event *event, u64 who) {
  event->pid = who >> 32;
  event->tid = (u32)who;
  event->cgroup = current_cgroup();
  current_comm(event->comm, sizeof event->comm);
}
