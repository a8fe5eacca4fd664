// HTTP/1.1 load over keep-alive connections from one epoll thread.
// rate 0 is a closed loop; otherwise requests have fixed times, and latency counts from the scheduled time, so that a
// server that stalls is charged for everybody it kept waiting.
//
// usage: loadgen PORT CONNECTIONS RATE SECONDS FILE      (FILE: requests, each with its size as 4 bytes before it)
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_REQUESTS = 100000, MAX_EVENTS = 512 };
static const long MAX_SAMPLES = 8000000;

typedef struct {
    int fd;
    double began;
    int held;    // bytes of the reply so far
    int wanted;  // bytes of the whole reply, 0 until its head is complete
    char reply[16384];
} Connection;

static char *requests[MAX_REQUESTS];
static uint32_t sizes[MAX_REQUESTS];
static int request_count;
static long sent, errors;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void read_requests(const char *path) {
    FILE *file = fopen(path, "rb");
    uint32_t size;
    if (!file) { perror(path); exit(1); }
    while (request_count < MAX_REQUESTS && fread(&size, 4, 1, file) == 1) {
        requests[request_count] = malloc(size);
        if (fread(requests[request_count], 1, size, file) != size) break;
        sizes[request_count++] = size;
    }
    fclose(file);
    if (!request_count) { fprintf(stderr, "%s holds no request\n", path); exit(1); }
}

static int open_connection(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (connect(fd, (void *)&address, sizeof address)) { perror("connect"); exit(1); }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void send_request(Connection *connection, double scheduled) {
    int chosen = sent++ % request_count;
    size_t done = 0;
    connection->began = scheduled;
    connection->held = connection->wanted = 0;
    while (done < sizes[chosen]) {
        ssize_t written = write(connection->fd, requests[chosen] + done, sizes[chosen] - done);
        if (written > 0) done += written;
        else if (errno == EAGAIN) usleep(50);
        else { errors++; return; }
    }
}

// 1 when the reply is complete, 0 when more must come, -1 when the connection is gone
static int read_reply(Connection *connection) {
    ssize_t got = read(connection->fd, connection->reply + connection->held,
                       sizeof connection->reply - 1 - connection->held);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) return -1;
    connection->held += got;
    connection->reply[connection->held] = 0;
    if (!connection->wanted) {
        char *end = strstr(connection->reply, "\r\n\r\n");
        if (!end) return 0;
        char *length = strcasestr(connection->reply, "content-length:");
        connection->wanted = end + 4 - connection->reply + (length && length < end ? atoi(length + 15) : 0);
        if (strncmp(connection->reply + 9, "200", 3)) errors++;
    }
    return connection->held >= connection->wanted;
}

int main(int argc, char **argv) {
    if (argc != 6) { fprintf(stderr, "usage: loadgen PORT CONNECTIONS RATE SECONDS FILE\n"); return 2; }
    int port = atoi(argv[1]), count = atoi(argv[2]);
    double rate = atof(argv[3]), seconds = atof(argv[4]);
    signal(SIGPIPE, SIG_IGN);
    read_requests(argv[5]);
    Connection *connections = calloc(count, sizeof *connections);
    int *idle = malloc(sizeof(int) * count), free_count = 0, poller = epoll_create1(0);
    long head = 0, tail = 0, done = 0;
    double *latency = malloc(sizeof(double) * MAX_SAMPLES);
    for (int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        connections[i].fd = open_connection(port);
        epoll_ctl(poller, EPOLL_CTL_ADD, connections[i].fd, &event);
        idle[tail++ % count] = i;
        free_count++;
    }
    double began = now(), end = began + seconds;
    if (rate <= 0)
        for (free_count = 0; free_count < count; free_count++) send_request(&connections[free_count], now());
    struct epoll_event events[MAX_EVENTS];
    for (double t = began; t < end; t = now()) {
        double wait = 0.001;
        if (rate > 0) {
            for (; free_count > 0 && began + sent / rate <= t; free_count--) {
                double due = began + sent / rate;
                send_request(&connections[idle[head++ % count]], due);
            }
            double next = began + sent / rate - now();
            if (free_count > 0 && next < wait) wait = next > 0 ? next : 0;
        }
        struct timespec pause = {0, (long)(wait * 1e9)};
        int ready = epoll_pwait2(poller, events, MAX_EVENTS, &pause, NULL);
        for (int e = 0; e < ready; e++) {
            Connection *connection = &connections[events[e].data.u32];
            int state = read_reply(connection);
            if (state < 0) { errors++; epoll_ctl(poller, EPOLL_CTL_DEL, connection->fd, NULL); continue; }
            if (!state) continue;
            double finished = now();
            if (done < MAX_SAMPLES) latency[done++] = finished - connection->began;
            if (rate > 0) { idle[tail++ % count] = events[e].data.u32; free_count++; }
            else send_request(connection, finished);
        }
    }
    double elapsed = now() - began;
    if (!done) { fprintf(stderr, "no reply came\n"); return 1; }
    qsort(latency, done, sizeof *latency, by_value);
    printf("{\"per_s\":%.0f,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f,\"errors\":%ld,\"done\":%ld}\n", done / elapsed,
           latency[done / 2] * 1e3, latency[(long)(done * .99)] * 1e3, latency[done - 1] * 1e3, errors, done);
    return 0;
}
