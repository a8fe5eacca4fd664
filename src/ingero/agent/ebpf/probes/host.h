/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 * Kernel events of traced processes: scheduler, process life, memory, block I/O, TCP. Field offsets are written into
 * .rodata by the loader from the running kernel's BTF; a program whose fields are missing is not loaded. */
#pragma once
#include "state.h"

enum { SOURCE_HOST = 3, SOURCE_IO = 5, SOURCE_TCP = 6 };
enum { OP_SWITCH = 1, OP_OOM = 4, OP_EXEC = 5, OP_EXIT = 6, OP_FORK = 7, OP_RETRANSMIT = 1 };
enum { OFF_PREEMPTED = 1, OFF_SLEPT = 2, OFF_IO = 3 };
enum { SLOT_RUNQUEUE, SLOT_SLEEP, SLOT_IO_WAIT, SLOT_PAGES, SLOT_BLOCK, HOST_SLOTS };
enum { TASK_UNINTERRUPTIBLE = 2, TASK_DEAD = 0x80, TASK_NOLOAD = 0x400, STATE_MASK = 0xff };
enum { AF_INET = 2 };

const volatile u32 page_bytes = 4096;
const volatile u32 switch_has_state = 0, victim_is_task = 0, issue_has_queue = 0;
const volatile u32 off_pid = 0, off_tgid = 0, off_state = 0, off_comm = 0;
const volatile u32 off_cgroups = 0, off_dfl_cgrp = 0, off_kn = 0, off_kn_id = 0;
const volatile u32 off_rq_len = 0, off_rq_sector = 0, off_rq_flags = 0;
const volatile u32 off_daddr = 0, off_saddr = 0, off_dport = 0, off_num = 0, off_family = 0, off_skstate = 0, off_sk_cgroup = 0;
const volatile u64 other_io_slow_ns = 10000000; /* requests of untraced processes are recorded only when this slow */

struct raw_args { u64 args[6]; };
struct off_cpu { u64 since_ns, woken_ns; u32 why, taken_by; };
struct {
  MAP_UINT(type, MAP_LRU_HASH); MAP_UINT(max_entries, 32768); MAP_TYPE(key, u32); MAP_TYPE(value, struct off_cpu);
} off_cpu SEC(".maps");
/* How long the threads of every cgroup wait for a CPU, traced or not: a neighbour is known by comparison. Of processes
 * that are not traced a sample: waits that begin in one of eight windows of 134 ms and end in it or the next. */
struct waits { u64 count, sum, buckets[BUCKETS]; };
const volatile struct waits no_waits = {};
const volatile u32 watch_neighbours = 0;
struct {
  MAP_UINT(type, MAP_LRU_HASH); MAP_UINT(max_entries, 512); MAP_TYPE(key, u64); MAP_TYPE(value, struct waits);
} neighbours SEC(".maps");
struct {
  MAP_UINT(type, MAP_LRU_HASH); MAP_UINT(max_entries, 8192); MAP_TYPE(key, u32); MAP_TYPE(value, u64);
} ready_since SEC(".maps");
struct request { u64 start_ns, cgroup, sector; u32 pid, tid, sectors, op; char comm[16]; };
struct {
  MAP_UINT(type, MAP_LRU_HASH); MAP_UINT(max_entries, 8192); MAP_TYPE(key, u64); MAP_TYPE(value, struct request);
} requests SEC(".maps");

INLINE u32 read32(u64 base, u32 offset) { u32 value = 0; read_kernel(&value, 4, (void *)(base + offset)); return value; }
INLINE u64 read64(u64 base, u32 offset) { u64 value = 0; read_kernel(&value, 8, (void *)(base + offset)); return value; }
INLINE u16 read16(u64 base, u32 offset) { u16 value = 0; read_kernel(&value, 2, (void *)(base + offset)); return value; }
INLINE u8 read8(u64 base, u32 offset) { u8 value = 0; read_kernel(&value, 1, (void *)(base + offset)); return value; }

INLINE u64 cgroup_of(u64 task) {
  if (!off_kn_id)
    return 0;
  u64 node = read64(read64(read64(task, off_cgroups), off_dfl_cgrp), off_kn);
  return node ? read64(node, off_kn_id) : 0;
}

INLINE struct slot *host_slot(struct target *target, u32 tgid, u32 which) {
  u32 index = target->first_slot + which;
  struct slot *slot = target->first_slot ? map_lookup(&slots, &index) : 0;
  return slot && slot->tgid == tgid ? slot : 0;
}

INLINE struct event *host_event(void *ring, u32 which) {
  struct event *event = ring_reserve(ring, sizeof *event, 0);
  if (!event) {
    count_lost(which);
    return 0;
  }
  event->flags = 0; event->ret = 0; event->arg0 = event->arg1 = 0; event->stack = -1; event->gpu = -1;
  return event;
}

INLINE u32 window_of(u64 now) { return (now >> 27) & 7; }

INLINE void other_is_ready(u64 task, u64 now) {
  if (!watch_neighbours || window_of(now))
    return;
  u32 tid = read32(task, off_pid);
  map_update(&ready_since, &tid, &now, BPF_ANY);
}

INLINE void other_runs(u64 task, u64 now) {
  if (!watch_neighbours || window_of(now) > 1)
    return;
  u32 tid = read32(task, off_pid);
  u64 *since = map_lookup(&ready_since, &tid);
  if (!since)
    return;
  u64 waited = now - *since, group = cgroup_of(task);
  map_delete(&ready_since, &tid);
  if (group < 2) /* unknown, or the root where kernel threads live */
    return;
  struct waits *waits = map_lookup(&neighbours, &group);
  if (!waits) {
    map_update(&neighbours, &group, (const void *)&no_waits, BPF_NOEXIST);
    waits = map_lookup(&neighbours, &group);
    if (!waits)
      return;
  }
  __sync_fetch_and_add(&waits->count, 1);
  __sync_fetch_and_add(&waits->sum, waited);
  __sync_fetch_and_add(&waits->buckets[bucket_of(waited) & (BUCKETS - 1)], 1);
}

INLINE void left_cpu(u32 tid, u32 preempted, u32 state, u64 now, u64 next) {
  struct off_cpu off = {now, 0, OFF_SLEPT, read32(next, off_pid)};
  if (!preempted && state & TASK_DEAD)
    return; /* it does not come back; the next thread with its number did not sleep meanwhile */
  if (preempted || !(state & STATE_MASK))
    off.why = OFF_PREEMPTED;
  else if ((state & TASK_UNINTERRUPTIBLE) && !(state & TASK_NOLOAD))
    off.why = OFF_IO;
  map_update(&off_cpu, &tid, &off, BPF_ANY);
}

INLINE void came_back(u64 task, u32 tgid, struct target *target, u64 now, u64 prev) {
  u32 tid = read32(task, off_pid);
  struct off_cpu *off = map_lookup(&off_cpu, &tid);
  if (!off || !off->since_ns)
    return;
  u64 since = off->since_ns, away = now - since, waited = 0;
  if (off->why == OFF_PREEMPTED)
    waited = away;
  else if (off->woken_ns >= since)
    waited = now - off->woken_ns;
  off->since_ns = 0;
  struct slot *queue = host_slot(target, tgid, SLOT_RUNQUEUE);
  struct slot *sleep = host_slot(target, tgid, off->why == OFF_IO ? SLOT_IO_WAIT : SLOT_SLEEP);
  if (!queue || !sleep)
    return;
  __sync_fetch_and_add(&queue->calls, 1);
  measure(queue, waited);
  if (off->why != OFF_PREEMPTED) {
    __sync_fetch_and_add(&sleep->calls, 1);
    measure(sleep, away - waited);
  }
  if (waited < queue->slow_ns && (off->why == OFF_PREEMPTED || away - waited < sleep->slow_ns))
    return;
  struct event *event = host_event(&host_ring, RING_HOST);
  if (!event)
    return;
  event->start_ns = since; event->end_ns = now;
  event->pid = tgid; event->tid = tid;
  event->source = SOURCE_HOST; event->op = OP_SWITCH;
  event->ret = off->why; event->flags = FLAG_SLOW;
  event->cgroup = cgroup_of(task);
  read_kernel(event->comm, sizeof event->comm, (void *)(task + off_comm));
  event->arg0 = waited;
  event->arg1 = off->why == OFF_PREEMPTED ? off->taken_by : read32(prev, off_pid);
  ring_submit(event, NO_WAKEUP);
  __sync_fetch_and_add(&queue->emitted, 1);
}

SEC("raw_tp/sched_switch") int on_sched_switch(struct raw_args *ctx) {
  u64 prev = ctx->args[1], next = ctx->args[2], now = now_ns();
  u32 left = read32(prev, off_tgid), came = read32(next, off_tgid);
  u32 state = switch_has_state ? (u32)ctx->args[3] : read32(prev, off_state);
  if (left && map_lookup(&targets, &left))
    left_cpu(read32(prev, off_pid), ctx->args[0] & 1, state, now, next);
  else if (left && (ctx->args[0] & 1 || !(state & STATE_MASK)))
    other_is_ready(prev, now);
  struct target *target = came ? map_lookup(&targets, &came) : 0;
  if (target)
    came_back(next, came, target, now, prev);
  else if (came)
    other_runs(next, now);
  return 0;
}

SEC("raw_tp/sched_wakeup") int on_sched_wakeup(struct raw_args *ctx) {
  u64 task = ctx->args[0];
  u32 tgid = read32(task, off_tgid), tid;
  if (!map_lookup(&targets, &tgid)) {
    other_is_ready(task, now_ns());
    return 0;
  }
  tid = read32(task, off_pid);
  struct off_cpu *off = map_lookup(&off_cpu, &tid);
  if (off && off->since_ns)
    off->woken_ns = now_ns();
  return 0;
}

INLINE void process_event(u8 op, u64 arg1) {
  struct event *event = host_event(&critical_ring, RING_CRITICAL);
  if (!event)
    return;
  fill_who(event, pid_tgid());
  event->start_ns = event->end_ns = now_ns();
  event->source = SOURCE_HOST; event->op = op;
  event->arg1 = arg1;
  ring_submit(event, NO_WAKEUP);
}

SEC("raw_tp/sched_process_fork") int on_sched_process_fork(struct raw_args *ctx) {
  u32 parent = pid_tgid() >> 32, child = read32(ctx->args[1], off_tgid);
  struct target *target = map_lookup(&targets, &parent), fresh = {};
  if (!target || child == parent) /* a new thread */
    return 0;
  map_update(&targets, &child, &fresh, BPF_NOEXIST);
  process_event(OP_FORK, child);
  return 0;
}

SEC("raw_tp/sched_process_exec") int on_sched_process_exec(struct raw_args *ctx) {
  u32 tgid = pid_tgid() >> 32;
  if (map_lookup(&targets, &tgid))
    process_event(OP_EXEC, 0);
  return 0;
}

SEC("raw_tp/sched_process_exit") int on_sched_process_exit(struct raw_args *ctx) {
  u64 who = pid_tgid();
  u32 tgid = who >> 32, tid = (u32)who;
  if (!map_lookup(&targets, &tgid))
    return 0;
  map_delete(&off_cpu, &tid);
  if (tid == tgid)
    process_event(OP_EXIT, 0);
  return 0;
}

SEC("raw_tp/mm_page_alloc") int on_mm_page_alloc(struct raw_args *ctx) {
  u32 tgid = pid_tgid() >> 32, order = (u32)ctx->args[1];
  struct target *target = map_lookup(&targets, &tgid);
  struct slot *slot = target ? host_slot(target, tgid, SLOT_PAGES) : 0;
  if (!slot)
    return 0;
  __sync_fetch_and_add(&slot->calls, 1);
  measure(slot, (u64)page_bytes << (order & 31));
  return 0;
}

SEC("raw_tp/mark_victim") int on_mark_victim(struct raw_args *ctx) {
  process_event(OP_OOM, victim_is_task ? read32(ctx->args[0], off_tgid) : (u32)ctx->args[0]);
  return 0;
}

INLINE void fill_owner(struct request *request) {
  u64 who = pid_tgid();
  request->pid = who >> 32;
  request->tid = (u32)who;
  request->cgroup = current_cgroup();
  current_comm(request->comm, sizeof request->comm);
}

/* With an I/O scheduler anybody may hand a request to the device; the owner is who put it into the queue. */
SEC("raw_tp/block_rq_insert") int on_block_rq_insert(struct raw_args *ctx) {
  u64 rq = issue_has_queue ? ctx->args[1] : ctx->args[0];
  struct request request = {};
  fill_owner(&request);
  if (map_update(&requests, &rq, &request, BPF_ANY))
    count_lost(LOST_STATE);
  return 0;
}

SEC("raw_tp/block_rq_issue") int on_block_rq_issue(struct raw_args *ctx) {
  u64 rq = issue_has_queue ? ctx->args[1] : ctx->args[0];
  struct request request = {}, *inserted = map_lookup(&requests, &rq);
  if (inserted)
    request = *inserted;
  else
    fill_owner(&request);
  request.start_ns = now_ns();
  request.sector = read64(rq, off_rq_sector);
  request.sectors = read32(rq, off_rq_len) >> 9;
  request.op = read32(rq, off_rq_flags) & 0xff;
  if (map_update(&requests, &rq, &request, BPF_ANY))
    count_lost(LOST_STATE);
  return 0;
}

SEC("raw_tp/block_rq_complete") int on_block_rq_complete(struct raw_args *ctx) {
  u64 rq = ctx->args[0], now = now_ns();
  struct request *request = map_lookup(&requests, &rq);
  if (!request || !request->start_ns)
    return 0;
  u32 tgid = request->pid;
  u64 duration = now - request->start_ns;
  struct target *target = map_lookup(&targets, &tgid);
  struct slot *slot = target ? host_slot(target, tgid, SLOT_BLOCK) : 0;
  if (slot) {
    __sync_fetch_and_add(&slot->calls, 1);
    measure(slot, duration);
  }
  if (target ? slot && duration < slot->slow_ns : duration < other_io_slow_ns)
    goto done;
  struct event *event = host_event(&host_ring, RING_HOST);
  if (!event)
    goto done;
  event->start_ns = request->start_ns; event->end_ns = now;
  event->pid = tgid; event->tid = request->tid;
  event->source = SOURCE_IO;
  event->op = request->op == 0 ? 1 : request->op == 3 ? 3 : 2;
  event->flags = target ? 0 : FLAG_OTHER;
  s32 status = (s32)ctx->args[1]; /* 0 is success; blk_status_t, before 5.16 a negative errno */
  event->ret = status > 0 ? -status : status;
  event->cgroup = request->cgroup;
  __builtin_memcpy(event->comm, request->comm, sizeof event->comm);
  event->arg0 = request->sectors; event->arg1 = request->sector;
  ring_submit(event, NO_WAKEUP);
done:
  map_delete(&requests, &rq);
  return 0;
}

INLINE u64 address_of(u64 sock, u16 family) {
  /* IPv4 addresses as numbers; of IPv6 nothing fits, the ports remain */
  return family == AF_INET ? (u64)__builtin_bswap32(read32(sock, off_saddr)) << 32 | __builtin_bswap32(read32(sock, off_daddr)) : 0;
}

SEC("raw_tp/tcp_retransmit_skb") int on_tcp_retransmit_skb(struct raw_args *ctx) {
  u64 sock = ctx->args[0];
  u16 family = read16(sock, off_family);
  struct event *event = host_event(&host_ring, RING_HOST);
  if (!event)
    return 0;
  event->start_ns = event->end_ns = now_ns();
  event->source = SOURCE_TCP; event->op = OP_RETRANSMIT;
  event->pid = event->tid = 0; /* the timer interrupts anybody: the owner is found by its ports */
  __builtin_memset(event->comm, 0, sizeof event->comm);
  u64 group = off_sk_cgroup ? read64(sock, off_sk_cgroup) : 0, node = group ? read64(group, off_kn) : 0;
  event->cgroup = node ? read64(node, off_kn_id) : 0;
  event->arg0 = address_of(sock, family);
  event->arg1 = (u64)read16(sock, off_num) << 16 | __builtin_bswap16(read16(sock, off_dport));
  event->flags = family == AF_INET ? 0 : FLAG_OTHER;
  event->gpu = read8(sock, off_skstate);
  ring_submit(event, NO_WAKEUP);
  return 0;
}
