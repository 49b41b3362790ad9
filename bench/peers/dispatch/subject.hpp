// What every subject of `mdgw-bench dispatch` does alike: its sockets, its handler, its report. The Rust subjects do the
// same (`bench/src/scenario/dispatch/subject.rs`, `tokio/src/main.rs`).
//   SUBJECT STYLE SOCKETS THREADS WORK-NS EXPECTED
// It prints the sockets' ports when its threads run, and its counts when it has handled EXPECTED datagrams or its input
// ends; then it waits for the end of its input.
#pragma once
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace subject {

constexpr int BUCKETS = 64 * 32;
constexpr int THREADS_MAX = 64;
constexpr int BUFFER_BYTES = 512 << 20;

inline uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

// One thread's counts. That thread alone writes them.
struct alignas(128) Counts {
    std::atomic<uint64_t> packets{0};
    std::atomic<uint64_t> last_ns{0};
    std::atomic<uint64_t> latency[BUCKETS]{};
};

inline Counts counts[THREADS_MAX];
inline uint64_t work_ns;
inline thread_local Counts *own;

inline void add(std::atomic<uint64_t> &counter, uint64_t count) {
    counter.store(counter.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
}

// Thirty-two buckets for each power of two.
inline int bucket(uint64_t ns) {
    if (ns < 32) return int(ns);
    int power = 63 - __builtin_clzll(ns);
    return (power - 4) * 32 + int((ns >> (power - 5)) & 31);
}

// The handler: a datagram begins with the time at which it was to be sent.
inline void handle(const char *datagram) {
    uint64_t sent_ns;
    memcpy(&sent_ns, datagram, sizeof sent_ns);
    uint64_t begun_ns = now_ns(), now = begun_ns;
    add(own->latency[bucket(begun_ns > sent_ns ? begun_ns - sent_ns : 0)], 1);
    while (now - begun_ns < work_ns) now = now_ns();
    own->last_ns.store(now, std::memory_order_relaxed);
    add(own->packets, 1);
}

struct Arguments {
    bool drains;
    int sockets, threads;
    uint64_t expected;
};

inline Arguments parse(int argc, char **argv) {
    if (argc != 6) exit(2);
    work_ns = strtoull(argv[4], nullptr, 10);
    Arguments arguments{strcmp(argv[1], "drain") == 0, atoi(argv[2]), atoi(argv[3]), strtoull(argv[5], nullptr, 10)};
    if (arguments.threads > THREADS_MAX) exit(2);
    return arguments;
}

// Non-blocking sockets on loopback, each with a port of its own.
inline std::vector<int> open_sockets(int count) {
    std::vector<int> sockets;
    for (int index = 0; index < count; index++) {
        int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (socket < 0 || bind(socket, reinterpret_cast<sockaddr *>(&address), sizeof address)) exit(3);
        if (setsockopt(socket, SOL_SOCKET, SO_RCVBUFFORCE, &BUFFER_BYTES, sizeof BUFFER_BYTES))
            setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &BUFFER_BYTES, sizeof BUFFER_BYTES);
        sockets.push_back(socket);
    }
    return sockets;
}

inline void print_ports(const std::vector<int> &sockets) {
    for (int socket : sockets) {
        sockaddr_in address{};
        socklen_t length = sizeof address;
        if (getsockname(socket, reinterpret_cast<sockaddr *>(&address), &length)) exit(3);
        printf("%d ", ntohs(address.sin_port));
    }
    printf("\n");
    fflush(stdout);
}

// Waits until all datagrams are handled or the input ends, reports, and ends the process at the end of the input.
[[noreturn]] inline void report(const Arguments &arguments) {
    pollfd input{0, POLLIN, 0};
    uint64_t packets = 0, last_ns = 0;
    bool is_over = false;
    while (packets < arguments.expected && !is_over) {
        is_over = poll(&input, 1, 2) > 0;
        packets = 0;
        for (const Counts &thread : counts) packets += thread.packets.load(std::memory_order_relaxed);
    }
    std::vector<uint64_t> latency(BUCKETS);
    for (const Counts &thread : counts) {
        uint64_t last = thread.last_ns.load(std::memory_order_relaxed);
        if (last > last_ns) last_ns = last;
        for (int index = 0; index < BUCKETS; index++) latency[index] += thread.latency[index].load(std::memory_order_relaxed);
    }
    printf("%llu %llu 0", (unsigned long long)packets, (unsigned long long)last_ns);
    for (int index = 0; index < BUCKETS; index++)
        if (latency[index]) printf(" %d:%llu", index, (unsigned long long)latency[index]);
    printf("\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    _exit(0);
}

}  // namespace subject
