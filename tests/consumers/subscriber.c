/* Tests of the receiver in C that no vector can hold: limits of its configuration, and its sockets. */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mdgw_subscriber.h"

static uint64_t lost_first, lost_next;

static void on_item(void *user, const mdgw_item *item)
{
    (void)user;
    if (item->kind == MDGW_ITEM_LOST) {
        lost_first = item->first;
        lost_next = item->next;
    }
}

static void check(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void expect_invalid(const mdgw_config *config, const char *what)
{
    errno = 0;
    check(mdgw_receiver_new(config, on_item, NULL) == NULL && errno == EINVAL, what);
}

static void limits_are_checked(void)
{
    mdgw_config config = mdgw_default_config();
    config.message_bytes_max = SIZE_MAX;
    expect_invalid(&config, "message_bytes_max");
    config = mdgw_default_config();
    config.services = 1;
    config.epoch_nonce = UINT64_MAX;
    config.start_bytes_max = SIZE_MAX;
    expect_invalid(&config, "start_bytes_max");
    config = mdgw_default_config();
    config.services = 1;
    config.epoch_nonce = UINT64_MAX;
    config.rebuilds_books = true;
    config.rebuild_bytes_max = SIZE_MAX;
    expect_invalid(&config, "rebuild_bytes_max");
    config = mdgw_default_config();
    config.services = 1;
    expect_invalid(&config, "a service, and no random number");
}

/* A heartbeat: frame_count and payload_bytes are 0. */
static void write_heartbeat(uint8_t first, uint8_t next, uint8_t data[MDGW_PACKET_HEADER_BYTES])
{
    static const uint8_t begin[] = {'M', 'D', 'G', 'W', 1, MDGW_HEARTBEAT, 1, 0, 1};
    static const uint8_t session[] = {1, 0, 0, 0, 0xe6, 0xd6, 0x34, 1};
    memset(data, 0, MDGW_PACKET_HEADER_BYTES);
    memcpy(data, begin, sizeof begin);
    data[17] = 1;
    memcpy(data + 24, session, sizeof session);
    data[40] = first;
    data[48] = next;
}

static void a_flood_does_not_suspend_the_report_of_a_loss(void)
{
    uint8_t heartbeat[MDGW_PACKET_HEADER_BYTES];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    /* A port that is free. */
    int probe = socket(AF_INET, SOCK_DGRAM, 0), sender = socket(AF_INET, SOCK_DGRAM, 0);
    check(bind(probe, (struct sockaddr *)&address, bytes) == 0 && getsockname(probe, (struct sockaddr *)&address, &bytes) == 0, "port");
    close(probe);
    mdgw_config config = mdgw_default_config();
    mdgw_line line = {"127.0.0.1", ntohs(address.sin_port), NULL};
    mdgw_subscriber *subscriber = mdgw_subscriber_open(&config, &line, NULL, NULL, 0, 1 << 20, on_item, NULL);
    check(subscriber && connect(sender, (struct sockaddr *)&address, sizeof address) == 0, "subscriber");
    write_heartbeat(1, 2, heartbeat);
    check(send(sender, heartbeat, sizeof heartbeat, 0) > 0, "send");
    write_heartbeat(5, 5, heartbeat);
    check(send(sender, heartbeat, sizeof heartbeat, 0) > 0, "send");
    for (unsigned round = 0; round < 1000 && lost_next == 0; round++) {
        /* More than a round reads, so that the socket is never empty. */
        for (unsigned i = 0; i < 100; i++)
            check(send(sender, "junk", 4, 0) > 0, "send");
        check(mdgw_subscriber_poll(subscriber, 0) == 64, "the socket was empty");
    }
    check(lost_first == 2 && lost_next == 5, "the loss was not reported");
    mdgw_subscriber_close(subscriber);
    close(sender);
}

int main(void)
{
    limits_are_checked();
    a_flood_does_not_suspend_the_report_of_a_loss();
    return 0;
}
