// The minimum cost of passing packets on: what any program over sockets pays that receives each packet and sends it again.
//   resend BUFFER-BYTES INTERFACE-ADDRESS LOOPBACK CORE,CORE... OUT-GROUP:PORT GROUP:PORT[:discard]...
// One pinned thread for each core. Input socket i belongs to thread i modulo the number of threads. A thread spins on
// epoll, reads its ready sockets with recvmmsg until a read is short, and sends each packet with one send. Packets of
// sockets marked `discard` are read and not sent: the second line of a feed. It prints `ready` when it has joined.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64, DATAGRAM_BYTES = 2048, SOCKETS_MAX = 1024, THREADS_MAX = 64, FIXED_ARGUMENTS = 6 };

struct input {
    int socket, discard;
};

static struct input inputs[SOCKETS_MAX];
static int input_count, thread_count, cores[THREADS_MAX], buffer_bytes, loopback;
static const char *interface, *output;

static void fail(const char *action) {
    perror(action);
    exit(2);
}

// Parses GROUP:PORT; returns what follows.
static const char *address_of(const char *text, struct sockaddr_in *address) {
    char group[16];
    const char *colon = strchr(text, ':');
    if (!colon || colon - text >= (long)sizeof group) exit(2);
    memcpy(group, text, colon - text);
    group[colon - text] = 0;
    char *rest;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(strtol(colon + 1, &rest, 10))};
    address->sin_addr.s_addr = inet_addr(group);
    return rest;
}

static void join(struct input *input, const char *text) {
    struct sockaddr_in address;
    input->discard = !strcmp(address_of(text, &address), ":discard");
    struct ip_mreq joined = {address.sin_addr, {inet_addr(interface)}};
    int one = 1, none = 0;
    input->socket = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(input->socket, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(input->socket, IPPROTO_IP, IP_MULTICAST_ALL, &none, sizeof none);
    // The second call is for processes without the privilege of the first.
    if (setsockopt(input->socket, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes))
        setsockopt(input->socket, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
    if (bind(input->socket, (struct sockaddr *)&address, sizeof address)) fail(text);
    if (setsockopt(input->socket, IPPROTO_IP, IP_ADD_MEMBERSHIP, &joined, sizeof joined)) fail(text);
}

static int open_output(void) {
    struct sockaddr_in address;
    address_of(output, &address);
    struct in_addr by = {inet_addr(interface)};
    int out = socket(AF_INET, SOCK_DGRAM, 0);
    if (setsockopt(out, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by)) fail("IP_MULTICAST_IF");
    setsockopt(out, IPPROTO_IP, IP_MULTICAST_LOOP, &loopback, sizeof loopback);
    if (connect(out, (struct sockaddr *)&address, sizeof address)) fail(output);
    return out;
}

static _Noreturn void *run(void *argument) {
    int thread = (int)(long)argument;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(cores[thread], &core);
    if (sched_setaffinity(0, sizeof core, &core)) fail("pin a thread");
    int out = open_output(), set = epoll_create1(0);
    for (int i = thread; i < input_count; i += thread_count) {
        struct epoll_event event = {EPOLLIN | EPOLLET, {.ptr = &inputs[i]}};
        if (epoll_ctl(set, EPOLL_CTL_ADD, inputs[i].socket, &event)) fail("epoll_ctl");
    }
    static __thread char bytes[BATCH][DATAGRAM_BYTES];
    struct iovec places[BATCH];
    struct mmsghdr headers[BATCH];
    memset(headers, 0, sizeof headers);
    for (int row = 0; row < BATCH; row++) {
        places[row] = (struct iovec){bytes[row], DATAGRAM_BYTES};
        headers[row].msg_hdr.msg_iov = &places[row];
        headers[row].msg_hdr.msg_iovlen = 1;
    }
    struct epoll_event events[BATCH];
    for (;;) {
        int ready = epoll_wait(set, events, BATCH, 0);
        for (int event = 0; event < ready; event++) {
            struct input *input = events[event].data.ptr;
            int got;
            do {
                got = recvmmsg(input->socket, headers, BATCH, MSG_DONTWAIT, NULL);
                for (int row = 0; row < got && !input->discard; row++) send(out, bytes[row], headers[row].msg_len, 0);
            } while (got == BATCH);
        }
    }
}

int main(int count, char **words) {
    input_count = count - FIXED_ARGUMENTS;
    if (input_count < 1 || input_count > SOCKETS_MAX) return 2;
    buffer_bytes = atoi(words[1]);
    interface = words[2];
    loopback = atoi(words[3]);
    output = words[5];
    for (char *core = strtok(words[4], ","); core && thread_count < THREADS_MAX; core = strtok(NULL, ","))
        cores[thread_count++] = atoi(core);
    if (!thread_count) return 2;
    for (int i = 0; i < input_count; i++) join(&inputs[i], words[FIXED_ARGUMENTS + i]);
    pthread_t threads[THREADS_MAX];
    for (long thread = 0; thread < thread_count; thread++)
        if (pthread_create(&threads[thread], NULL, run, (void *)thread)) fail("start a thread");
    puts("ready");
    fflush(stdout);
    pthread_join(threads[0], NULL);
}
