/* A CUDA runtime whose wait burns CPU and whose copy reads a disk: what starved processes look like. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile uintptr_t sink;
static int file = -1;

static long cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000000L + now.tv_nsec;
}

__attribute__((visibility("default"))) int cudaStreamSynchronize(void *stream) {
  long end = cpu_ns() + 300000;
  while (cpu_ns() < end)
    sink += (uintptr_t)stream + 1;
  return 0;
}

/* an odd number of bytes reads the disk first, around the page cache */
__attribute__((visibility("default"))) int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  sink += (uintptr_t)to + (uintptr_t)from + kind;
  if (size & 1) {
    if (file < 0)
      file = open(getenv("STARVED_FILE"), O_RDONLY | O_DIRECT);
    static char raw[2 * 65536 + 4096];
    char *buffer = (char *)(((uintptr_t)raw + 4095) & ~(uintptr_t)4095);
    for (int i = 0; i < 20; i++)
      sink += pread(file, buffer, 65536, (off_t)(size / 2 % 50) * 1310720 + i * 65536);
  }
  return 0;
}

__attribute__((visibility("default"))) int cudaLaunchKernel(const void *f) { sink += (uintptr_t)f; return 0; }
