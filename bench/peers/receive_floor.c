// The minimum cost of receiving from sockets: reads groups with recvmmsg, as `mdgw capture` does, and discards everything.
//   receive_floor OUT INTERFACE-ADDRESS BUFFER-BYTES NAP-US GROUP:PORT...
// OUT appears when it listens; when it is interrupted, the number of datagrams stands there.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/net_tstamp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64, DATAGRAM_BYTES = 9216, CONTROL_BYTES = 96, GROUPS_MAX = 8 };

static volatile sig_atomic_t stop;

static void interrupted(int signal) {
    (void)signal;
    stop = 1;
}

static int listen_to(const char *group_and_port, const char *interface, int buffer_bytes) {
    char group[64];
    const char *colon = strchr(group_and_port, ':');
    if (!colon || colon - group_and_port >= (long)sizeof group) exit(2);
    memcpy(group, group_and_port, colon - group_and_port);
    group[colon - group_and_port] = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(colon + 1))};
    address.sin_addr.s_addr = inet_addr(group);
    struct ip_mreq joined = {address.sin_addr, {inet_addr(interface)}};
    int one = 1, stamps = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
    int socket_ = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes);
    setsockopt(socket_, SOL_SOCKET, SO_TIMESTAMPING, &stamps, sizeof stamps);
    if (bind(socket_, (struct sockaddr *)&address, sizeof address) ||
        setsockopt(socket_, IPPROTO_IP, IP_ADD_MEMBERSHIP, &joined, sizeof joined)) {
        perror(group_and_port);
        exit(2);
    }
    return socket_;
}

static char bytes[BATCH][DATAGRAM_BYTES], control[BATCH][CONTROL_BYTES] __attribute__((aligned(8)));
static struct sockaddr_in names[BATCH];
static struct iovec places[BATCH];
static struct mmsghdr headers[BATCH];

int main(int count, char **words) {
    struct pollfd sockets[GROUPS_MAX];
    int groups = count - 5;
    if (groups < 1 || groups > GROUPS_MAX) return 2;
    for (int group = 0; group < groups; group++)
        sockets[group] = (struct pollfd){listen_to(words[5 + group], words[2], atoi(words[3])), POLLIN, 0};
    signal(SIGINT, interrupted);
    FILE *out = fopen(words[1], "w");
    if (!out) return 2;
    unsigned long long total = 0;
    while (!stop) {
        int got = 0;
        for (int group = 0; group < groups; group++) {
            int read;
            do {
                for (int row = 0; row < BATCH; row++) {
                    places[row] = (struct iovec){bytes[row], DATAGRAM_BYTES};
                    headers[row].msg_hdr = (struct msghdr){&names[row], sizeof names[row], &places[row], 1,
                                                           control[row], CONTROL_BYTES, 0};
                }
                read = recvmmsg(sockets[group].fd, headers, BATCH, MSG_DONTWAIT, NULL);
                if (read > 0) got += read;
            } while (read == BATCH);
        }
        total += got;
        if (!got) poll(sockets, groups, 50);
        usleep(atoi(words[4]));
    }
    fprintf(out, "%llu\n", total);
    return fclose(out) ? 2 : 0;
}
