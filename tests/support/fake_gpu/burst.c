/* Loops in C for the fake libraries: many calls, calls at a steady rate, calls from several threads. */
#include <pthread.h>
#include <stdint.h>
#include <stddef.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
typedef int (*launch_t)(const void *, dim3, dim3, void **, size_t, void *);
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
long burst(void *function, long calls, double per_second) {
  launch_t launch = (launch_t)function;
  double start = now();
  for (long i = 0; i < calls; i++) {
    launch((void *)(uintptr_t)(0x1000 + i), (dim3){1, 2, 3}, (dim3){4, 5, 6}, 0, 0, (void *)0x5eed);
    if (per_second > 0 && (i & 63) == 63) {
      double ahead = (i + 1) / per_second - (now() - start);
      if (ahead > 0) {
        struct timespec t = {0, (long)(ahead * 1e9)};
        nanosleep(&t, 0);
      }
    }
  }
  return (long)((now() - start) * 1e9);
}
struct work { void *function; long calls; };
static void *run(void *raw) { struct work *work = raw; burst(work->function, work->calls, 0); return 0; }
int burst_threads(void *function, long calls, int threads) {
  pthread_t ids[64];
  struct work work = {function, calls};
  for (int i = 0; i < threads; i++)
    pthread_create(&ids[i], 0, run, &work);
  for (int i = 0; i < threads; i++)
    pthread_join(ids[i], 0);
  return 0;
}
#if defined(__x86_64__)
#include <sys/mman.h>
/* Calls a function with six arguments on a stack that ends right above its return address: stack arguments are not there. */
long call_at_edge(void *function) {
  char *pages = mmap(0, 3 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *edge = pages + (2 << 16);
  mprotect(edge, 1 << 16, PROT_NONE);
  register long fifth __asm__("r8") = 30, sixth __asm__("r9") = 40;
  long result;
  __asm__ volatile("mov %%rsp, %%rbx\n mov %2, %%rsp\n call *%1\n mov %%rbx, %%rsp"
                   : "=a"(result) : "r"(function), "r"(edge), "D"(1), "S"(100), "d"(2), "c"(100), "r"(fifth), "r"(sixth)
                   : "rbx", "r10", "r11", "memory", "cc");
  return result;
}
#endif
