/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 * Function calls in libcudart, libcuda and libnccl: entry, return, histogram, record. */
#pragma once
#include "state.h"

enum {
  KIND_CALL,        /* arg0, arg1 as located */
  KIND_OUT,         /* arg1 = what the out-pointer holds after success */
  KIND_ALLOC,       /* KIND_OUT, and remembers the size under the pointer */
  KIND_FREE,        /* arg1 = remembered size */
  KIND_PRODUCT,     /* arg0 = located 0 times located 2 */
  KIND_CONFIG,      /* arg1 = stream inside the launch configuration */
  KIND_SET_DEVICE,  /* remembers the thread's device */
  KIND_COLLECTIVE,
  KIND_P2P,
  KIND_COMM_INIT,
  KIND_COMM_INIT_ALL,
  KIND_COMM_SPLIT,
  KIND_COMM_RANK,   /* ncclCommUserRank: completes what is known of a communicator */
  KIND_COMM_COUNT,
  KIND_COMM_END,
  KIND_GROUP,
};
enum { LOC_PRESENT = 0x40, LOC_32BIT = 0x80 };
enum { FUNC_STACK_ARGS = 1, FUNC_EMIT_STACK = 2 };
enum { REGISTERS = 8, STACK_ARGS = 4, DEPTH = 8, NOT_READY = 600, IN_PROGRESS = 7, DIRECTION_UNKNOWN = 5, LAUNCH_CONFIG_STREAM = 32 };

/* Where arguments are: low 4 bits index `words` of a frame, see agent/ebpf/abi.py. */
struct func { u8 source, op, kind, flags, const1, id_by_value, locs[8], pad[2]; };
const volatile struct func functions[128] = {};

struct frame { u64 start_ns, sp; u32 slot, func, sampled, stack_read; u64 words[REGISTERS + STACK_ARGS], extra; };
struct thread { u32 depth; s32 device; struct frame frames[DEPTH]; };
struct {
  MAP_UINT(type, MAP_TASK_STORAGE); MAP_UINT(map_flags, F_NO_PREALLOC); MAP_TYPE(key, int); MAP_TYPE(value, struct thread);
} threads SEC(".maps");

/* The compiler must not know what branches said about `at`, or it leaves out the mask, and the verifier of kernels before
 * 6.2, which forgets that `depth - 1` is not negative, refuses the program. */
INLINE struct frame *frame_at(struct thread *thread, u32 at) {
  asm volatile("" : "+r"(at));
  return &thread->frames[at & (DEPTH - 1)];
}

struct allocation { u64 tgid, pointer; };
struct {
  MAP_UINT(type, MAP_LRU_HASH); MAP_UINT(max_entries, 16384); MAP_TYPE(key, struct allocation); MAP_TYPE(value, u64);
} allocations SEC(".maps");

INLINE u64 located(struct frame *frame, u8 where) {
  if (!(where & LOC_PRESENT))
    return 0;
  u32 index = where & 15;
  u64 value = index < REGISTERS + STACK_ARGS ? frame->words[index] : 0;
  return where & LOC_32BIT ? (u32)value : value;
}

INLINE void save_arguments(struct pt_regs *ctx, struct frame *frame, const volatile struct func *func) {
#if defined(__TARGET_ARCH_x86)
  frame->words[0] = ctx->di; frame->words[1] = ctx->si; frame->words[2] = ctx->dx;
  frame->words[3] = ctx->cx; frame->words[4] = ctx->r8; frame->words[5] = ctx->r9;
#else
#pragma unroll
  for (int i = 0; i < REGISTERS; i++)
    frame->words[i] = ctx->regs[i];
#endif
  frame->stack_read = 0;
  if (func->id_by_value) /* a large struct passed by value lies on the stack: keep its address */
    frame->words[REGISTERS] = STACK_POINTER(ctx) + FIRST_STACK_ARG;
  else if (func->flags & FUNC_STACK_ARGS && frame->sampled) /* 200 ns, as much as the rest: 0, unread, for other launches */
    frame->stack_read = !read_user(&frame->words[REGISTERS], 8 * STACK_ARGS, (void *)(STACK_POINTER(ctx) + FIRST_STACK_ARG));
  else
    __builtin_memset(&frame->words[REGISTERS], 0, 8 * STACK_ARGS);
}

#include "nccl.h"

INLINE void emit_entry(struct slot *slot, const volatile struct func *func, u64 who) {
  struct event *event = ring_reserve(&calls_ring, sizeof *event, 0);
  if (!event) {
    count_lost(RING_CALLS);
    return;
  }
  fill_who(event, who);
  event->start_ns = event->end_ns = now_ns();
  event->source = func->source; event->op = func->op;
  event->flags = FLAG_NO_END | FLAG_SAMPLED;
  event->ret = 0; event->arg0 = event->arg1 = 0; event->stack = -1; event->gpu = -1;
  ring_submit(event, NO_WAKEUP);
  __sync_fetch_and_add(&slot->emitted, 1);
}

/* A variant that is implemented by another of the same function (_ptsz, _v2) counts once. */
INLINE int inside_same(struct thread *thread, u32 depth, u32 slot) {
  return depth && frame_at(thread, depth - 1)->slot == slot;
}

/* Frames at or below our stack pointer were left without a return (longjmp, exception): drop them. */
INLINE u32 live_depth(struct thread *thread, u64 sp) {
  u32 depth = thread->depth;
#pragma unroll
  for (int i = 0; i < DEPTH; i++) {
    if (!depth || depth > DEPTH || frame_at(thread, depth - 1)->sp > sp)
      break;
    depth--;
  }
  return depth;
}

/* 0: time this call. 1: its return is of no interest (a session then spares the process the return trap). */
INLINE int on_entry(struct pt_regs *ctx) {
  u64 cookie = attach_cookie(ctx), who = pid_tgid();
  u32 index = cookie >> 16, id = cookie & 127;
  struct slot *slot = map_lookup(&slots, &index);
  if (!slot || slot->tgid != who >> 32)
    return 1;
  const volatile struct func *func = &functions[id];
  u64 number = __sync_fetch_and_add(&slot->calls, 1);
  if (slot->mode == MODE_ENTRY) {
    if (slot->sample_every && number % slot->sample_every == 0)
      emit_entry(slot, func, who);
    return 1;
  }
  struct thread *thread = task_storage(&threads, current_task(), 0, 0);
  if (!thread) {
    thread = task_storage(&threads, current_task(), 0, STORAGE_CREATE);
    if (!thread) {
      count_lost(LOST_STATE);
      return 1;
    }
    thread->device = -1;
  }
  u32 depth = live_depth(thread, STACK_POINTER(ctx));
  if (depth >= DEPTH) {
    count_lost(LOST_NESTING);
    return 1;
  }
  if (inside_same(thread, depth, index) || inside_collective(thread, depth, func->kind)) {
    __sync_fetch_and_add(&slot->calls, -1);
    return 1;
  }
  struct frame *frame = frame_at(thread, depth);
  frame->slot = index;
  frame->func = id;
  frame->sampled = slot->sample_every && (slot->sample_every == 1 || number % slot->sample_every == 0);
  frame->sp = STACK_POINTER(ctx);
  save_arguments(ctx, frame, func);
  nccl_entry(func, frame, who);
  thread->depth = depth + 1;
  frame->start_ns = now_ns();
  return 0;
}

INLINE u64 second_argument(const volatile struct func *func, struct frame *frame, s32 ret, u64 who, u64 arg0) {
  u64 value = located(frame, func->locs[1]);
  if (func->const1 != 0xff)
    return func->const1;
  if (func->kind == KIND_PRODUCT && func->flags & FUNC_STACK_ARGS && !frame->stack_read)
    return DIRECTION_UNKNOWN; /* 0 would say host to host */
  if (func->kind == KIND_CONFIG) {
    u64 stream = 0;
    read_user(&stream, 8, (void *)(value + LAUNCH_CONFIG_STREAM));
    return stream;
  }
  if (func->kind == KIND_OUT || func->kind == KIND_ALLOC) {
    u64 out = 0;
    if (ret || read_user(&out, 8, (void *)value))
      return func->kind == KIND_OUT ? value : 0;
    if (func->kind == KIND_ALLOC) {
      struct allocation key = {who >> 32, out};
      map_update(&allocations, &key, &arg0, BPF_ANY);
    }
    return out;
  }
  if (func->kind == KIND_FREE) {
    struct allocation key = {who >> 32, arg0};
    u64 *bytes = map_lookup(&allocations, &key), freed = bytes ? *bytes : 0;
    if (!ret)
      map_delete(&allocations, &key);
    return freed;
  }
  return value;
}

/* A CUDA query that is not ready yet and an NCCL call that goes on by itself have not failed. */
INLINE int has_failed(const volatile struct func *func, s32 ret) {
  return ret && ret != (func->kind >= KIND_COLLECTIVE ? IN_PROGRESS : NOT_READY);
}

INLINE u16 why_emit(struct slot *slot, struct frame *frame, u64 duration, int failed) {
  u16 flags = frame->sampled ? FLAG_SAMPLED : 0;
  if (duration >= slot->slow_ns)
    flags |= FLAG_SLOW;
  if (failed)
    flags |= FLAG_FAILED;
  return flags;
}

INLINE void fill_call(struct pt_regs *ctx, struct event *event, struct thread *thread, struct frame *frame, u64 end, s32 ret, u16 flags, u64 who) {
  const volatile struct func *func = &functions[frame->func & 127];
  fill_who(event, who);
  event->start_ns = frame->start_ns; event->end_ns = end;
  event->source = func->source; event->op = func->op;
  event->flags = flags; event->ret = ret;
  event->gpu = thread->device;
  event->stack = (flags & (FLAG_SLOW | FLAG_FAILED)) && (func->flags & FUNC_EMIT_STACK) ? stack_id(ctx, &stacks, USER_STACK) : -1;
}

/* The frame of this call: normally the newest; older ones on top of it were left without a return. Where every return
 * is watched, a variant inside its own function returns here too: its stack is deeper than that of the call we time. */
INLINE struct frame *find_frame(struct thread *thread, u32 slot, u64 sp) {
  u32 depth = thread->depth;
#pragma unroll
  for (int i = 0; i < DEPTH; i++) {
    if (!depth || depth > DEPTH)
      return 0;
    depth--;
    struct frame *frame = frame_at(thread, depth);
    if (frame->slot == slot && frame->sp + FIRST_STACK_ARG <= sp) {
      thread->depth = depth;
      return frame;
    }
  }
  return 0;
}

INLINE int on_return(struct pt_regs *ctx) {
  u64 end = now_ns(), who = pid_tgid();
  u32 index = attach_cookie(ctx) >> 16;
  struct slot *slot = map_lookup(&slots, &index);
  struct thread *thread = task_storage(&threads, current_task(), 0, 0);
  if (!slot || slot->tgid != who >> 32 || !thread)
    return 0;
  struct frame *frame = find_frame(thread, index, STACK_POINTER(ctx));
  if (!frame)
    return 0;
  const volatile struct func *func = &functions[frame->func & 127];
  s32 ret = (s32)RETURN_VALUE(ctx);
  u64 duration = end - frame->start_ns, arg0 = located(frame, func->locs[0]);
  int failed = has_failed(func, ret);
  measure(slot, duration);
  if (failed)
    __sync_fetch_and_add(&slot->failed, 1);
  if (func->kind == KIND_SET_DEVICE) {
    if (!ret)
      thread->device = (s32)arg0;
    return 0;
  }
  u16 flags = why_emit(slot, frame, duration, failed);
  if (func->kind >= KIND_COLLECTIVE) {
    nccl_return(ctx, thread, frame, slot, end, ret, flags, who);
    return 0;
  }
  if (!flags && func->kind != KIND_ALLOC && func->kind != KIND_FREE)
    return 0; /* most launches end here: counted, timed, not recorded */
  if (func->kind == KIND_PRODUCT)
    arg0 *= located(frame, func->locs[2]);
  u64 arg1 = second_argument(func, frame, ret, who, arg0);
  if (!flags)
    return 0;
  struct event *event = ring_reserve(&calls_ring, sizeof *event, 0);
  if (!event) {
    count_lost(RING_CALLS);
    return 0;
  }
  fill_call(ctx, event, thread, frame, end, ret, flags, who);
  event->arg0 = arg0; event->arg1 = arg1;
  ring_submit(event, NO_WAKEUP);
  __sync_fetch_and_add(&slot->emitted, 1);
  return 0;
}

SEC("uprobe.session") int call_session(struct pt_regs *ctx) { return bpf_session_is_return() ? on_return(ctx) : on_entry(ctx); }
SEC("uprobe.entry") int call_entry(struct pt_regs *ctx) { on_entry(ctx); return 0; }
SEC("uprobe.return") int call_return(struct pt_regs *ctx) { return on_return(ctx); }
