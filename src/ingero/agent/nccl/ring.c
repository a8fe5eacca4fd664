// Creates the ring file, once per process and not during a collective.
#define _GNU_SOURCE
#include "plugin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_STALE_FILES = 4096 };

// Returns when a process started, in clock ticks since boot; 0 when there is no such process.
static uint64_t start_ticks(int pid) {
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0) return 0;
    text[size] = 0;
    char *field = strrchr(text, ')'); // the name may contain spaces and brackets
    for (int i = 0; field && i < 20; i++) field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : 0;
}

static int number_from(const char *const *names) {
    for (; *names; names++) {
        const char *value = getenv(*names);
        char *end;
        if (!value || !*value) continue;
        long number = strtol(value, &end, 10);
        if (!*end && number >= 0 && number < 1 << 30) return (int)number;
    }
    return -1;
}

#define NUMBER_FROM(...) number_from((const char *const[]){__VA_ARGS__, NULL})

static const char *job_name(void) {
    static const char *const names[] = {"INGERO_JOB_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && *value && strcmp(value, "none")) return value; // torchrun without an id sets "none"
    }
    return "";
}

static void describe(struct header *header, uint64_t ticks) {
    struct stat namespace;
    header->version = RING_VERSION;
    header->header_bytes = RING_HEADER_BYTES;
    header->comm_bytes = sizeof(struct comm_entry);
    header->comms = RING_COMMS;
    header->record_bytes = sizeof(struct record);
    header->slots = RING_SLOTS;
    header->pid = (uint32_t)getpid();
    header->uid = (uint32_t)geteuid();
    header->start_ticks = ticks;
    header->pid_namespace = stat("/proc/self/ns/pid", &namespace) ? 0 : namespace.st_ino;
    header->created_ns = now_ns();
    header->created_monotonic_ns = clock_ns(CLOCK_MONOTONIC);
    header->global_rank = NUMBER_FROM("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK");
    header->local_rank = NUMBER_FROM("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK");
    header->world_size = NUMBER_FROM("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
    copy_text(header->job, sizeof header->job, job_name());
    copy_text(header->plugin, sizeof header->plugin, SOURCE_DIGEST);
    atomic_store_explicit(&header->magic, RING_MAGIC, memory_order_release);
}

// Reserves all pages, so that a full folder is an error here and not a SIGBUS in the job later.
static struct ring *map_ring(const char *path, uint64_t ticks) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return NULL;
    void *memory = MAP_FAILED;
    int failed, tries = 0;
    do failed = fallocate(fd, 0, 0, sizeof(struct ring));
    while (failed && errno == EINTR && ++tries < 8);
    if (!failed) memory = mmap(NULL, sizeof(struct ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED || madvise(memory, sizeof(struct ring), MADV_DONTFORK)) {
        if (memory != MAP_FAILED) munmap(memory, sizeof(struct ring));
        unlink(path);
        errno = ENOSPC;
        return NULL;
    }
    describe(&((struct ring *)memory)->header, ticks);
    return memory;
}

static struct ring *make_ring_in(const char *folder) {
    char path[512];
    uint64_t ticks = start_ticks(getpid());
    struct ring *ring = NULL;
    for (int copy = 0; ticks && !ring && copy < 4; copy++) {
        // a second copy of this library may have made one already, and anybody may have taken names that can be foreseen
        unsigned long long suffix = now_ns() % 1000000000;
        int size = snprintf(path, sizeof path, copy ? "%s/" RING_PREFIX "%d-%llu-%llu" : "%s/" RING_PREFIX "%d-%llu",
                            folder, getpid(), (unsigned long long)ticks, suffix);
        if (size < 0 || (size_t)size >= sizeof path) return NULL;
        ring = map_ring(path, ticks);
        if (!ring && errno != EEXIST) break;
    }
    return ring;
}

static bool is_dead_ring(const char *path, int pid, uint64_t ticks, const struct header *own) {
    struct stat file;
    struct header header;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    bool is_ours = !fstat(fd, &file) && S_ISREG(file.st_mode) && file.st_uid == own->uid &&
                   pread(fd, &header, sizeof header, 0) == sizeof header && header.magic == RING_MAGIC &&
                   header.version == RING_VERSION && header.pid_namespace == own->pid_namespace;
    close(fd);
    return is_ours && start_ticks(pid) != ticks;
}

// Removes rings of ended processes of the same user. They occupy memory, and without an agent nothing else removes them.
static void remove_dead_rings(const char *folder, const struct header *own) {
    DIR *entries = opendir(folder);
    if (!entries) return;
    struct dirent *entry;
    for (int i = 0; i < MAX_STALE_FILES && (entry = readdir(entries)); i++) {
        char path[512];
        int pid;
        unsigned long long ticks;
        if (sscanf(entry->d_name, RING_PREFIX "%d-%llu", &pid, &ticks) != 2) continue;
        int size = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (size > 0 && (size_t)size < sizeof path && is_dead_ring(path, pid, ticks, own)) unlink(path);
    }
    closedir(entries);
}

struct ring *make_ring(void) {
    const char *folder = getenv("INGERO_NCCL_RING_DIR");
    if (folder && *folder) return make_ring_in(folder); // chosen by the user, so nothing is removed there
    struct ring *ring = make_ring_in("/dev/shm");
    if (ring) remove_dead_rings("/dev/shm", &ring->header);
    return ring;
}
