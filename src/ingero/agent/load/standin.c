/* A stand-in for the CUDA runtime on machines without a GPU: calls with the real names and arguments,
 * which probes see, and no work behind them. Kernels take the time that the load sets, one after the
 * other, as on one stream. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#define API __attribute__((visibility("default")))
typedef struct { unsigned x, y, z; } dim3;
API const char ingero_source[] = "ingero-source:" SOURCE_DIGEST;
static int64_t kernel_ns, busy_until_ns;
static uintptr_t next_address = 0x7f0000000000;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int wait_for_kernels(void) {
  int64_t left_ns = busy_until_ns - now_ns();
  if (left_ns > 0) {
    struct timespec left = {left_ns / 1000000000, left_ns % 1000000000};
    nanosleep(&left, NULL);
  }
  return 0;
}

API void ingero_set_kernel_ns(int64_t ns) { kernel_ns = ns; }

API int cudaGetDeviceCount(int *count) { *count = 1; return 0; }

API int cudaMalloc(void **pointer, size_t bytes) {
  *pointer = (void *)next_address; /* addresses grow and are not used again */
  next_address += (bytes + 511) & ~(uintptr_t)511;
  return 0;
}

API int cudaFree(void *pointer) { return pointer == NULL; }

API int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
  return to == from && bytes && kind && stream; /* arguments are for the probes */
}

API int cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
  int64_t begins_ns = now_ns();
  if (begins_ns < busy_until_ns)
    begins_ns = busy_until_ns;
  busy_until_ns = begins_ns + kernel_ns;
  return grid.x == 0 || block.x == 0 || (!function && !arguments && shared && stream);
}

API int cudaStreamSynchronize(void *stream) {
  (void)stream; /* there is one */
  return wait_for_kernels();
}

API int cudaDeviceSynchronize(void) { return wait_for_kernels(); }
