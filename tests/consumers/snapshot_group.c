/* Tests of the snapshot group in C that the vectors do not hold: bounds and times, tags, a service without a snapshot, and the sockets. */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mdgw_subscriber.h"

#define CHUNKS 3u
#define RECORD_BYTES 16u
#define MS UINT64_C(1000000)
#define WAIT_MS UINT64_C(20000)

static mdgw_receiver *receiver;
static char items[4096];
static uint64_t now, term;
static uint32_t restart;
static const uint8_t *tag_key; /* packets have a tag */

static void check(bool holds, const char *what, unsigned line)
{
    if (holds)
        return;
    fprintf(stderr, "line %u: %s: %s\n", line, what, items);
    exit(1);
}
#define CHECK(what) check(what, #what, __LINE__)

/* Compares the items since the last comparison. */
static void expect_at(unsigned line, const char *expected)
{
    check(strcmp(items, expected) == 0, expected, line);
    items[0] = 0;
}
#define EXPECT(expected) expect_at(__LINE__, expected)

static void add_item(const char *format, ...)
{
    size_t length = strlen(items);
    va_list values;
    va_start(values, format);
    vsnprintf(items + length, sizeof items - length, format, values);
    va_end(values);
}

static void on_item(void *user, const mdgw_item *item)
{
    (void)user;
    switch (item->kind) {
    case MDGW_ITEM_SESSION: add_item("session "); break;
    case MDGW_ITEM_MESSAGE: add_item("m%" PRIu64 " ", item->sequence); break;
    case MDGW_ITEM_REPEATED: add_item("r%" PRIu64 " ", item->sequence); break;
    /* Position, and image and chunk: see records_of. */
    case MDGW_ITEM_SNAPSHOT: add_item("s%" PRIu64 "/%u.%u ", item->sequence, (unsigned)item->body[4], (unsigned)item->body[5]); break;
    case MDGW_ITEM_STATE: add_item("state%u ", (unsigned)item->state); break;
    case MDGW_ITEM_LOST: add_item("lost%" PRIu64 "-%" PRIu64 " ", item->first, item->next); break;
    case MDGW_ITEM_BOOKS: add_item(item->has_right_books ? "right " : "suspect "); break;
    case MDGW_ITEM_END: add_item("end "); break;
    default: add_item("other ");
    }
}

static size_t store(uint8_t *data, uint64_t number, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, number >>= 8)
        data[i] = (uint8_t)number;
    return bytes;
}

static size_t write_frame(uint8_t *frame, unsigned kind, uint64_t sequence, unsigned records, const void *body, size_t bytes)
{
    memset(frame, 0, MDGW_FRAME_HEADER_BYTES);
    store(frame, sequence, 8);
    store(frame + 8, 1000, 8);
    store(frame + 20, bytes, 2);
    store(frame + 22, records, 2);
    frame[24] = (uint8_t)kind;
    frame[25] = MDGW_FIRST_PART | MDGW_LAST_PART;
    memcpy(frame + MDGW_FRAME_HEADER_BYTES, body, bytes);
    return MDGW_FRAME_HEADER_BYTES + bytes;
}

/* The frames are in place. Returns the length of the datagram. */
static size_t write_packet(uint8_t *packet, unsigned flags, uint64_t first, uint64_t next, unsigned frames, size_t frames_bytes)
{
    size_t length = MDGW_PACKET_HEADER_BYTES + frames_bytes;
    memset(packet, 0, MDGW_PACKET_HEADER_BYTES);
    memcpy(packet, "MDGW\1", 5);
    packet[5] = (uint8_t)(flags | (tag_key ? MDGW_TAGGED : 0));
    packet[6] = 1;
    packet[8] = 1;
    store(packet + 10, frames, 2);
    store(packet + 12, frames_bytes, 2);
    store(packet + 16, term << 8 | 1, 8);
    packet[24] = 1;
    store(packet + 28, 20240102, 4);
    store(packet + 32, restart, 4);
    store(packet + 40, first, 8);
    store(packet + 48, next, 8);
    if (!tag_key)
        return length;
    mdgw_tag(tag_key, NULL, packet, length, packet + length);
    return length + MDGW_TAG_BYTES;
}

static size_t write_message(uint8_t *packet, uint64_t sequence)
{
    const uint8_t record[RECORD_BYTES] = {RECORD_BYTES / 4};
    size_t bytes = write_frame(packet + MDGW_PACKET_HEADER_BYTES, MDGW_KIND_MESSAGE, sequence, 1, record, sizeof record);
    return write_packet(packet, 0, sequence, sequence + 1, 1, bytes);
}

typedef struct image {
    uint32_t number;
    uint64_t next;
    uint64_t term; /* 0: that of the lines */
    /* Totals that the chunk claims; 0: the true ones. */
    uint32_t chunk_count;
    uint64_t record_count, record_bytes;
} image;

/* Two records for each chunk. */
static void records_of(const image *image, uint8_t records[CHUNKS][2 * RECORD_BYTES])
{
    memset(records, 0, CHUNKS * 2 * RECORD_BYTES);
    for (unsigned i = 0; i < 2 * CHUNKS; i++) {
        uint8_t *record = records[i / 2] + i % 2 * RECORD_BYTES;
        record[0] = RECORD_BYTES / 4;
        record[4] = (uint8_t)image->number;
        record[5] = (uint8_t)(i / 2);
    }
}

static uint32_t crc32_of(const uint8_t *data, size_t length)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static size_t write_chunk(uint8_t *packet, const image *image, unsigned chunk)
{
    uint8_t records[CHUNKS][2 * RECORD_BYTES], body[48] = {0};
    records_of(image, records);
    store(body, image->number, 4);
    store(body + 4, chunk, 4);
    store(body + 8, image->chunk_count ? image->chunk_count : CHUNKS, 4);
    store(body + 12, crc32_of(records[0], sizeof records), 4);
    store(body + 16, image->record_count ? image->record_count : sizeof records / RECORD_BYTES, 8);
    store(body + 24, image->record_bytes ? image->record_bytes : sizeof records, 8);
    store(body + 40, 1, 4);
    uint8_t *frames = packet + MDGW_PACKET_HEADER_BYTES;
    size_t bytes = write_frame(frames, MDGW_KIND_SNAPSHOT_CHUNK, image->next, 0, body, sizeof body);
    bytes += write_frame(frames + bytes, MDGW_KIND_SNAPSHOT, image->next, 2, records[chunk % CHUNKS], sizeof records[0]);
    uint64_t of_lines = term;
    term = image->term ? image->term : term;
    size_t length = write_packet(packet, MDGW_RETRANSMISSION | MDGW_SNAPSHOT_PACKET, chunk, chunk + 1, 2, bytes);
    term = of_lines;
    return length;
}

/* A receiver that starts with the group, and has no service. */
static mdgw_config group_config(void)
{
    mdgw_config config = mdgw_default_config();
    config.channels_max = 2;
    config.start = MDGW_START_SNAPSHOT;
    config.has_snapshot_group = true;
    config.snapshot_bytes_max = config.rebuild_bytes_max = 1 << 16;
    config.snapshot_wait_ns_max = WAIT_MS * MS;
    return config;
}

static void begin_with(const mdgw_config *config)
{
    mdgw_receiver_free(receiver);
    receiver = mdgw_receiver_new(config, on_item, NULL);
    CHECK(receiver);
    items[0] = 0;
    now = 1000 * MS;
    term = 1;
    restart = 0;
}

static void begin(void)
{
    mdgw_config config = group_config();
    begin_with(&config);
}

static void publish(uint64_t first, uint64_t next)
{
    uint8_t packet[512];
    for (uint64_t sequence = first; sequence < next; sequence++) {
        size_t length = write_message(packet, sequence);
        mdgw_receiver_accept(receiver, 0, 0, packet, length, now);
    }
}

static void announce(unsigned flags, uint64_t next)
{
    uint8_t packet[512];
    size_t length = write_packet(packet, MDGW_HEARTBEAT | flags, next, next, 0, 0);
    mdgw_receiver_accept(receiver, 0, 0, packet, length, now);
}

static mdgw_reason send_chunk(image image, unsigned chunk)
{
    uint8_t packet[512];
    size_t length = write_chunk(packet, &image, chunk);
    return mdgw_receiver_accept_from_snapshot_group(receiver, packet, length, now);
}

static void send_pass(image image)
{
    for (unsigned chunk = 0; chunk < CHUNKS; chunk++)
        send_chunk(image, chunk);
}

/* Lets so many milliseconds pass. No service answers. */
static void run(uint64_t ms)
{
    unsigned service;
    uint8_t request[MDGW_REQUEST_BYTES];
    for (uint64_t until = now + ms * MS; now < until;) {
        uint64_t deadline = mdgw_receiver_next_deadline(receiver);
        now = deadline <= now ? now + 1 : deadline < until ? deadline : until;
        mdgw_receiver_on_deadline(receiver, now);
        while (mdgw_receiver_poll_request(receiver, &service, request)) {
        }
    }
}

static void an_image_waits_for_the_stream(void)
{
    begin();
    CHECK(mdgw_receiver_needs_snapshot_group(receiver));
    publish(10, 11);
    send_pass((image){.number = 5, .next = 12});
    EXPECT("session ");
    CHECK(send_chunk((image){.number = 6, .next = 11}, 0) == MDGW_ANSWER_UNREQUESTED);
    publish(11, 13);
    EXPECT("s12/5.0 s12/5.1 s12/5.2 m12 ");
    CHECK(mdgw_receiver_counts(receiver).messages == 1 && mdgw_receiver_counts(receiver).snapshots == 1);
    CHECK(!mdgw_receiver_needs_snapshot_group(receiver));
    CHECK(send_chunk((image){.number = 6, .next = 13}, 0) == MDGW_USED);
    EXPECT("");
}

static void a_position_that_never_comes_is_given_up_after_10_s(void)
{
    begin();
    publish(10, 11);
    send_pass((image){.number = 5, .next = UINT64_C(1) << 40});
    run(9999);
    CHECK(send_chunk((image){.number = 6, .next = 11}, 0) == MDGW_ANSWER_UNREQUESTED);
    run(2);
    CHECK(send_chunk((image){.number = 5, .next = UINT64_C(1) << 40}, 0) == MDGW_ANSWER_UNREQUESTED);
    send_pass((image){.number = 6, .next = 11});
    EXPECT("session s11/6.0 s11/6.1 s11/6.2 ");
}

static void a_loss_behind_the_position_discards_the_image(void)
{
    /* Some chunks are there. */
    begin();
    publish(10, 12);
    send_chunk((image){.number = 5, .next = 11}, 0);
    send_chunk((image){.number = 5, .next = 11}, 1);
    publish(14, 15);
    run(10);
    CHECK(send_chunk((image){.number = 5, .next = 11}, 2) == MDGW_ANSWER_UNREQUESTED);
    EXPECT("session ");
    CHECK(mdgw_receiver_counts(receiver).lost_messages == 0);
    send_pass((image){.number = 6, .next = 14});
    EXPECT("s14/6.0 s14/6.1 s14/6.2 m14 ");
    /* The image is whole, and the stream has not come to its position. */
    begin();
    publish(10, 11);
    send_pass((image){.number = 5, .next = 12});
    publish(15, 16);
    run(10);
    EXPECT("session ");
    send_pass((image){.number = 6, .next = 16});
    publish(16, 17);
    EXPECT("s16/6.0 s16/6.1 s16/6.2 m16 ");
}

static void messages_are_kept_within_a_bound(void)
{
    mdgw_config config = group_config();
    config.rebuild_bytes_max = 300;
    begin_with(&config);
    publish(10, 100);
    send_pass((image){.number = 5, .next = 50});
    EXPECT("session ");
    send_pass((image){.number = 6, .next = 99});
    EXPECT("s99/6.0 s99/6.1 s99/6.2 m99 ");
}

static void epochs_of_chunks(void)
{
    begin();
    /* The first epoch comes from a line. */
    CHECK(send_chunk((image){.number = 5, .next = 10}, 0) == MDGW_USED);
    publish(10, 11);
    CHECK(send_chunk((image){.number = 5, .next = 10, .term = 5000}, 0) == MDGW_EPOCH_JUMP);
    CHECK(send_chunk((image){.number = 5, .next = 10, .term = 2}, 0) == MDGW_USED);
    CHECK(send_chunk((image){.number = 5, .next = 10, .term = 1}, 1) == MDGW_EPOCH_STALE);
    /* What the former leader published may be read behind the chunk. */
    publish(11, 12);
    term = 2;
    publish(12, 13);
    send_pass((image){.number = 5, .next = 10});
    EXPECT("session s10/5.0 s10/5.1 s10/5.2 m10 m11 m12 ");
}

static void chunks_need_the_tag_of_a_published_packet(void)
{
    static const uint8_t keys[1][MDGW_TAG_KEY_BYTES] = {{7}};
    const uint64_t nonce = 0;
    mdgw_config config = group_config();
    config.tag_keys = keys;
    config.tag_key_count = 1;
    begin_with(&config);
    uint8_t packet[512];
    image image = {.number = 5, .next = 10};
    tag_key = keys[0];
    publish(10, 11);
    size_t length = write_chunk(packet, &image, 0) - MDGW_TAG_BYTES;
    mdgw_tag(keys[0], &nonce, packet, length, packet + length);
    CHECK(mdgw_receiver_accept_from_snapshot_group(receiver, packet, length + MDGW_TAG_BYTES, now) == MDGW_TAG_INVALID);
    tag_key = NULL;
    CHECK(send_chunk(image, 0) == MDGW_TAG_MISSING);
    tag_key = keys[0];
    send_pass(image);
    tag_key = NULL;
    EXPECT("session s10/5.0 s10/5.1 s10/5.2 m10 ");
}

static void a_chunk_larger_than_packets_is_refused(void)
{
    mdgw_config config = group_config();
    config.packet_bytes_max = 128;
    begin_with(&config);
    publish(10, 11);
    CHECK(send_chunk((image){.number = 5, .next = 10}, 0) == MDGW_PROTOCOL_MISMATCH);
}

/* What a chunk claims takes no memory beyond the configured one. */
static void totals_beyond_the_memory_are_refused(void)
{
    mdgw_config config = group_config();
    config.snapshot_bytes_max = 1 << 10;
    begin_with(&config);
    publish(10, 11);
    CHECK(send_chunk((image){.number = 5, .next = 10, .record_bytes = (1 << 10) + 8}, 0) == MDGW_WINDOW_FULL);
    CHECK(send_chunk((image){.number = 5, .next = 10, .chunk_count = 60, .record_count = 60, .record_bytes = 1 << 10}, 59) ==
          MDGW_WINDOW_FULL);
    CHECK(send_chunk((image){.number = 5, .next = 10, .chunk_count = UINT32_MAX}, 0) == MDGW_FIELD_INVALID);
    /* Its chunks have more records than it. */
    image larger = {.number = 5, .next = 10, .chunk_count = 2, .record_count = 3, .record_bytes = 48};
    CHECK(send_chunk(larger, 0) == MDGW_USED && send_chunk(larger, 1) == MDGW_WINDOW_FULL);
    send_pass((image){.number = 6, .next = 10});
    EXPECT("session s10/6.0 s10/6.1 s10/6.2 m10 ");
    /* Such a chunk replaces no image that is being collected. */
    begin_with(&config);
    publish(10, 11);
    send_chunk((image){.number = 5, .next = 10}, 0);
    CHECK(send_chunk((image){.number = 6, .next = 10, .record_bytes = (1 << 10) + 8}, 0) == MDGW_WINDOW_FULL);
    send_chunk((image){.number = 5, .next = 10}, 1);
    send_chunk((image){.number = 5, .next = 10}, 2);
    EXPECT("session s10/5.0 s10/5.1 s10/5.2 m10 ");
}

static void many_images_never_mix(void)
{
    begin();
    publish(10, 11);
    for (uint32_t number = 1; number < 600; number++) {
        CHECK(send_chunk((image){.number = number, .next = 10}, 0) == MDGW_USED);
        /* The table of chunks still has what the first image left there. */
        if (number == 1 || number > 256)
            CHECK(send_chunk((image){.number = number, .next = 10}, 1) == MDGW_USED);
    }
    EXPECT("session ");
    send_pass((image){.number = 7, .next = 10});
    EXPECT("s10/7.0 s10/7.1 s10/7.2 m10 ");
}

static void the_end_of_the_input_delivers_nothing_without_an_image(void)
{
    begin();
    publish(10, 11);
    publish(14, 15);
    mdgw_receiver_finish(receiver);
    EXPECT("session ");
    CHECK(mdgw_receiver_counts(receiver).snapshots_unavailable == 1 && mdgw_receiver_counts(receiver).lost_messages == 0);
}

static void state_and_end_come_behind_the_messages(void)
{
    uint8_t packet[512];
    const uint8_t state[8] = {4};
    begin();
    publish(10, 12);
    size_t bytes = write_frame(packet + MDGW_PACKET_HEADER_BYTES, MDGW_KIND_STATE, 12, 0, state, sizeof state);
    size_t length = write_packet(packet, 0, 12, 12, 1, bytes);
    mdgw_receiver_accept(receiver, 0, 0, packet, length, now);
    announce(MDGW_SESSION_ENDS, 12);
    send_pass((image){.number = 5, .next = 11});
    EXPECT("session s11/5.0 s11/5.1 s11/5.2 m11 state4 end ");
}

static void the_next_session_ends_the_wait(void)
{
    begin();
    publish(10, 11);
    restart = 1;
    CHECK(send_chunk((image){.number = 5, .next = 10}, 0) == MDGW_ANSWER_UNREQUESTED);
    publish(4, 5);
    EXPECT("session session ");
    CHECK(mdgw_receiver_needs_snapshot_group(receiver));
    restart = 0;
    CHECK(send_chunk((image){.number = 5, .next = 10}, 0) == MDGW_SESSION_STALE);
    restart = 2;
    publish(1, 3);
    EXPECT("session m1 m2 ");
    CHECK(!mdgw_receiver_needs_snapshot_group(receiver) && mdgw_receiver_counts(receiver).snapshots_unavailable == 2);
}

static void without_an_image_in_time_the_stream_begins_without(void)
{
    for (int rebuilds = 0; rebuilds < 2; rebuilds++) {
        mdgw_config config = group_config();
        config.rebuilds_books = rebuilds;
        begin_with(&config);
        publish(10, 12);
        run(WAIT_MS - 1);
        EXPECT("session ");
        run(2);
        EXPECT(rebuilds ? "suspect m10 m11 " : "m10 m11 ");
        CHECK(mdgw_receiver_counts(receiver).snapshots_unavailable == 1 && mdgw_receiver_counts(receiver).messages == 2);
        publish(12, 13);
        send_pass((image){.number = 5, .next = 11});
        EXPECT(rebuilds ? "m12 s11/5.0 s11/5.1 s11/5.2 r11 r12 right " : "m12 ");
    }
}

/* The services name no epoch and have no snapshot. After the image nothing of the logs is needed. */
static void the_group_is_used_where_no_service_has_a_snapshot(void)
{
    mdgw_config config = group_config();
    config.services = 1;
    config.epoch_nonce = UINT64_MAX;
    begin_with(&config);
    CHECK(!mdgw_receiver_needs_snapshot_group(receiver));
    publish(10, 11);
    for (unsigned round = 0; round < 10000 && !mdgw_receiver_needs_snapshot_group(receiver); round++)
        run(1);
    publish(11, 12);
    send_pass((image){.number = 5, .next = 11});
    publish(12, 13);
    EXPECT("session s11/5.0 s11/5.1 s11/5.2 m11 m12 ");
    CHECK(mdgw_receiver_counts(receiver).snapshots_unavailable == 0);
    /* Without an image in time the logs are asked. */
    begin_with(&config);
    publish(10, 11);
    run(60000);
    CHECK(!mdgw_receiver_needs_snapshot_group(receiver) && mdgw_receiver_counts(receiver).snapshots_unavailable == 1);
    publish(11, 12);
    EXPECT("session m11 ");
}

/* Whether this host has joined the group, on any interface. */
static bool is_joined(struct in_addr group)
{
    char line[256];
    uint32_t address;
    bool found = false;
    FILE *file = fopen("/proc/net/igmp", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        found |= line[0] == '\t' && sscanf(line, " %" SCNx32, &address) == 1 && address == group.s_addr;
    fclose(file);
    return found;
}

static struct sockaddr_in loopback_address(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof address;
    int probe = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(bind(probe, (struct sockaddr *)&address, bytes) == 0 && getsockname(probe, (struct sockaddr *)&address, &bytes) == 0);
    close(probe);
    return address;
}

static void poll_until(mdgw_subscriber *subscriber, const char *item)
{
    for (unsigned round = 0; round < 1000 && !strstr(items, item); round++)
        CHECK(mdgw_subscriber_poll(subscriber, 10 * MS) >= 0);
    CHECK(strstr(items, item) != NULL);
}

static void the_group_is_joined_while_it_is_needed(void)
{
    uint8_t packet[512];
    struct in_addr loopback = {htonl(INADDR_LOOPBACK)};
    struct sockaddr_in line = loopback_address(), group = loopback_address();
    CHECK(inet_pton(AF_INET, "239.255.201.117", &group.sin_addr) == 1 && !is_joined(group.sin_addr));
    int sender = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(setsockopt(sender, IPPROTO_IP, IP_MULTICAST_IF, &loopback, sizeof loopback) == 0);
    mdgw_config config = group_config();
    config.rebuilds_books = true;
    mdgw_line lines[2] = {{"127.0.0.1", ntohs(line.sin_port), NULL}, {"239.255.201.117", ntohs(group.sin_port), "192.0.2.1"}};
    CHECK(!mdgw_subscriber_open(&config, lines, NULL, NULL, 0, 1 << 16, on_item, NULL));
    lines[1].interface_address = "127.0.0.1";
    mdgw_subscriber *subscriber = mdgw_subscriber_open(&config, lines, NULL, NULL, 0, 1 << 16, on_item, NULL);
    CHECK(subscriber && is_joined(group.sin_addr));
    items[0] = 0;
    term = 1;
    restart = 0;
    for (unsigned pass = 0; pass < 2; pass++) {
        /* The second pass begins behind a loss. */
        uint64_t sequence = pass == 0 ? 10 : 12;
        size_t length = write_message(packet, sequence);
        CHECK(sendto(sender, packet, length, 0, (struct sockaddr *)&line, sizeof line) == (ssize_t)length);
        poll_until(subscriber, pass == 0 ? "session" : "suspect m12");
        CHECK(mdgw_subscriber_poll(subscriber, 0) >= 0 && is_joined(group.sin_addr));
        for (unsigned chunk = 0; chunk < CHUNKS; chunk++) {
            length = write_chunk(packet, &(image){.number = 5 + pass, .next = sequence}, chunk);
            CHECK(sendto(sender, packet, length, 0, (struct sockaddr *)&group, sizeof group) == (ssize_t)length);
        }
        poll_until(subscriber, pass == 0 ? "m10" : "right");
        CHECK(!is_joined(group.sin_addr));
    }
    EXPECT("session s10/5.0 s10/5.1 s10/5.2 m10 lost11-12 suspect m12 s12/6.0 s12/6.1 s12/6.2 r12 right ");
    CHECK(mdgw_receiver_counts(mdgw_subscriber_receiver(subscriber)).snapshot_group_failures == 0);
    mdgw_subscriber_close(subscriber);
    close(sender);
}

int main(void)
{
    an_image_waits_for_the_stream();
    a_position_that_never_comes_is_given_up_after_10_s();
    a_loss_behind_the_position_discards_the_image();
    messages_are_kept_within_a_bound();
    epochs_of_chunks();
    chunks_need_the_tag_of_a_published_packet();
    a_chunk_larger_than_packets_is_refused();
    totals_beyond_the_memory_are_refused();
    many_images_never_mix();
    the_end_of_the_input_delivers_nothing_without_an_image();
    state_and_end_come_behind_the_messages();
    the_next_session_ends_the_wait();
    without_an_image_in_time_the_stream_begins_without();
    the_group_is_used_where_no_service_has_a_snapshot();
    the_group_is_joined_while_it_is_needed();
    mdgw_receiver_free(receiver);
    return 0;
}
