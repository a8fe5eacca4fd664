// A wall clock that is wrong: preloaded into the processes of one simulated host. $SKEW_NS or set_skew_ns says by how much;
// or the file $SKEW_FILE, whose first eight bytes may change while the processes run.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t own_skew_ns;
static volatile int64_t *skew_ns = &own_skew_ns;

void set_skew_ns(int64_t value) { *skew_ns = value; }

__attribute__((constructor)) static void begin(void) {
    const char *value = getenv("SKEW_NS");
    if (value) *skew_ns = strtoll(value, NULL, 10);
    const char *path = getenv("SKEW_FILE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *shared = mmap(NULL, sizeof *skew_ns, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) skew_ns = shared;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now)) return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        int64_t at = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *skew_ns;
        now->tv_sec = at / 1000000000;
        now->tv_nsec = at % 1000000000;
    }
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
