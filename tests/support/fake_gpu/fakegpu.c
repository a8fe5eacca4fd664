/* CUDA and NCCL entry points with their real names and calling convention, without a GPU.
 * LIBRARY selects which library this file becomes: 1 libcudart, 2 libcuda, 3 libnccl. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define API __attribute__((visibility("default"), noinline))
typedef struct { unsigned x, y, z; } dim3;
API int cudaStreamSynchronize(void *s);
static volatile uint64_t sink;
static void spin(long ns) {
  struct timespec t = {ns / 1000000000L, ns % 1000000000L};
  if (ns)
    nanosleep(&t, 0);
}
static long slow_ns(uint64_t size) { return size == 777 ? 3000000 : 0; } /* a call with this argument takes 3 ms */

#if LIBRARY == 1
#define ARGS(...) __VA_ARGS__
API int cudaSetDevice(int device) { sink += device; return device > 7 ? 101 : 0; }
API int cudaMalloc(void **p, size_t n) { *p = (void *)(uintptr_t)(0x7f0000000000ull + n); sink += n; return n == 13 ? 2 : 0; }
API int cudaMallocManaged(void **p, size_t n, unsigned flags) { *p = (void *)(uintptr_t)(0x7e0000000000ull + n); return (int)(sink += flags) * 0; }
API int cudaFree(void *p) { sink += (uintptr_t)p; return 0; }
API int cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **args, size_t shared, void *stream) {
  sink += (uintptr_t)f + g.x + g.y + g.z + b.x + b.y + b.z + shared + (uintptr_t)stream + (uintptr_t)args;
  spin(slow_ns(shared));
  return 0;
}
API int cudaLaunchKernelExC(const void *config, const void *f, void **args) { sink += (uintptr_t)config + (uintptr_t)f + (uintptr_t)args; return 0; }
API int cudaMemcpy(void *d, const void *s, size_t n, int kind) { sink += (uintptr_t)d + (uintptr_t)s + n + kind; spin(slow_ns(n)); return 0; }
API int cudaMemcpyAsync(void *d, const void *s, size_t n, int kind, void *stream) { sink += (uintptr_t)d + (uintptr_t)s + n + kind + (uintptr_t)stream; return 0; }
API int cudaMemcpyAsync_ptsz(void *d, const void *s, size_t n, int kind, void *stream) { return cudaMemcpyAsync(d, s, n, kind, stream); }
API int cudaMemcpy2D(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int kind) { sink += (uintptr_t)d + dp + (uintptr_t)s + sp + w + h + kind; return 0; }
API int cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int kind, void *stream) { sink += w + h; return 0; } /* leaves the stack alone */
API int cudaStreamSynchronize_ptsz(void *s) { spin(20000000); int ret = cudaStreamSynchronize(s); spin(20000000); return ret + (int)(sink * 0); }
API int cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, void *stream) { sink += (uintptr_t)d + dd + (uintptr_t)s + sd + n + (uintptr_t)stream; return 0; }
API int cudaStreamSynchronize(void *s) { sink += (uintptr_t)s; return 0; }
API int cudaDeviceSynchronize(void) { sink += 1; return 0; }
API int cudaStreamBeginCapture(void *s, int mode) { sink += (uintptr_t)s + mode; return 0; }
API int cudaStreamEndCapture(void *s, void **graph) { *graph = (void *)0x6a0; sink += (uintptr_t)s; return 0; }
API int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) { *exec = (void *)0xe0; sink += (uintptr_t)graph + flags; return 0; }
API int cudaGraphLaunch(void *exec, void *s) { sink += (uintptr_t)exec + (uintptr_t)s; return 0; }
#elif LIBRARY == 2
API int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared, void *stream, void **p, void **x) {
  sink += (uintptr_t)f + a + b + c + d + e + g + shared + (uintptr_t)stream + (uintptr_t)p + (uintptr_t)x;
  return 0;
}
API int cuLaunchKernelEx(const void *config, void *f, void **p, void **x) { sink += (uintptr_t)config + (uintptr_t)f + (uintptr_t)p + (uintptr_t)x; return 0; }
API int cuMemAlloc_v2(uint64_t *p, size_t n) { *p = 0x7d0000000000ull + n; return (int)(sink += n) * 0; }
API int cuMemFree_v2(uint64_t p) { sink += p; return 0; }
API int cuMemcpyHtoDAsync_v2(uint64_t d, const void *s, size_t n, void *stream) { sink += d + (uintptr_t)s + n + (uintptr_t)stream; return 0; }
API int cuStreamSynchronize(void *s) { sink += (uintptr_t)s; return 0; }
API int cuCtxSynchronize(void) { sink += 1; return 0; }
#elif LIBRARY == 3
typedef struct { char internal[128]; } ncclUniqueId;
static void *spare; /* the address of a communicator is used again */
API int ncclCommInitRank(void **comm, int nranks, ncclUniqueId id, int rank) { *comm = spare ? spare : malloc(16); spare = 0; sink += nranks + id.internal[0] + rank; return 0; }
API int ncclCommInitRankConfig(void **comm, int nranks, ncclUniqueId id, int rank, void *config) { *comm = malloc(16); sink += nranks + id.internal[0] + rank + (uintptr_t)config; return 0; }
API int ncclCommInitAll(void **comms, int n, const int *devices) { for (int i = 0; i < n; i++) comms[i] = malloc(16); sink += (uintptr_t)devices; return 0; }
API int ncclCommSplit(void *comm, int color, int key, void **out, void *config) { *out = color < 0 ? 0 : malloc(16); sink += (uintptr_t)comm + color + key + (uintptr_t)config; return 0; }
API int ncclCommUserRank(void *comm, int *rank) { *rank = 5; sink += (uintptr_t)comm; return 0; }
API int ncclCommCount(void *comm, int *count) { *count = 6; sink += (uintptr_t)comm; return 0; }
API int ncclCommDestroy(void *comm) { spare = comm; return 0; }
static pthread_barrier_t *shared_barrier;
API void test_use_barrier(void *barrier) { shared_barrier = barrier; }
API int ncclAllReduce(const void *s, void *r, size_t n, int type, int op, void *comm, void *stream) {
  sink += (uintptr_t)s + (uintptr_t)r + n + type + op + (uintptr_t)comm + (uintptr_t)stream;
  if (shared_barrier)
    pthread_barrier_wait(shared_barrier);
  return n == 666 ? 4 : n == 667 ? 7 : 0; /* an error; in progress */
}
API int ncclAllGather(const void *s, void *r, size_t n, int type, void *comm, void *stream) { sink += (uintptr_t)s + (uintptr_t)r + n + type + (uintptr_t)comm + (uintptr_t)stream; return 0; }
API int ncclReduceScatter(const void *s, void *r, size_t n, int type, int op, void *comm, void *stream) { sink += (uintptr_t)s + (uintptr_t)r + n + type + op + (uintptr_t)comm + (uintptr_t)stream; return 0; }
API int ncclBroadcast(const void *s, void *r, size_t n, int type, int root, void *comm, void *stream) { sink += (uintptr_t)s + (uintptr_t)r + n + type + root + (uintptr_t)comm + (uintptr_t)stream; return 0; }
API int ncclBcast(void *b, size_t n, int type, int root, void *comm, void *stream) { return ncclBroadcast(b, b, n, type, root, comm, stream) + (int)(sink * 0); }
API int ncclReduce(const void *s, void *r, size_t n, int type, int op, int root, void *comm, void *stream) { sink += (uintptr_t)s + (uintptr_t)r + n + type + op + root + (uintptr_t)comm + (uintptr_t)stream; return 0; }
API int ncclSend(const void *s, size_t n, int type, int peer, void *comm, void *stream) { sink += (uintptr_t)s + n + type + peer + (uintptr_t)comm + (uintptr_t)stream; return 0; }
API int ncclRecv(void *r, size_t n, int type, int peer, void *comm, void *stream) { sink += (uintptr_t)r + n + type + peer + (uintptr_t)comm + (uintptr_t)stream; return 0; }
API int ncclGroupStart(void) { sink += 1; return 0; }
API int ncclGroupEnd(void) { sink += 2; return 0; }
#endif
