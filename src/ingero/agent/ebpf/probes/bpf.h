/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
 * The part of the BPF interface the probes use. Helper and map numbers are kernel ABI; nothing here comes from a
 * kernel header, so that the objects build anywhere, for both architectures, without kernel sources. */
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define KSYM __attribute__((section(".ksyms")))
#define MAP_UINT(name, value) int (*name)[value]
#define MAP_TYPE(name, type) __typeof__(type) *name

enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, MAP_STACK_TRACE = 7, MAP_LRU_HASH = 9, MAP_RINGBUF = 27, MAP_TASK_STORAGE = 29 };
enum { F_NO_PREALLOC = 1, F_MMAPABLE = 1 << 10 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1, USER_STACK = 1 << 8, NO_WAKEUP = 1, STORAGE_CREATE = 1 };

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static u64 (*now_ns)(void) = (void *)5;
static u64 (*pid_tgid)(void) = (void *)14;
static long (*current_comm)(void *buffer, u32 size) = (void *)16;
static long (*stack_id)(void *ctx, void *map, u64 flags) = (void *)27;
static u64 (*current_cgroup)(void) = (void *)80;
static long (*read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static void *(*ring_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*ring_submit)(void *record, u64 flags) = (void *)132;
static void *(*task_storage)(void *map, void *task, void *value, u64 flags) = (void *)156;
static void *(*current_task)(void) = (void *)158;
static u64 (*attach_cookie)(void *ctx) = (void *)174;

extern _Bool bpf_session_is_return(void) KSYM;

#if defined(__TARGET_ARCH_x86)
struct pt_regs { u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss; };
#define RETURN_VALUE(ctx) ((ctx)->ax)
#define FIRST_STACK_ARG 8 /* the return address lies below the arguments, and is gone when the call returns */
#define STACK_POINTER(ctx) ((ctx)->sp)
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs { u64 regs[31], sp, pc, pstate; };
#define RETURN_VALUE(ctx) ((ctx)->regs[0])
#define FIRST_STACK_ARG 0
#define STACK_POINTER(ctx) ((ctx)->sp)
#else
#error "build with -D__TARGET_ARCH_x86 or -D__TARGET_ARCH_arm64"
#endif
