/* Prints what is published, one item on a line. Compile: cc -std=c11 -O2 -o example example.c mdgw_subscriber.c
 *
 * Usage: example GROUP INTERFACE LINE... [--service ADDR:PORT]... [--source ADDR]... [--key FILE] [--start session|day|live|snapshot]
 *                [--channel N] [--snapshot-group ADDR:PORT] [--rebuild] [--trades] [--until-ended]
 * A line is ADDR:PORT. With --rebuild suspect books are rebuilt from a snapshot: it is printed, and the messages behind it once more.
 * --start snapshot and --rebuild take snapshots from the services, or from the gateways' snapshot group, which is joined while one is
 * needed. The memory for them is allocated for each channel, so name the channel. With --trades only trades are printed (mbo records with
 * action T, and trades records). */
#define _POSIX_C_SOURCE 200809L
#include "mdgw_subscriber.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct output {
    bool prints_trades, has_begun;
    bool is_open[65536]; /* sessions, by channel */
    unsigned open_count;
    uint64_t missing;
} output;

static volatile sig_atomic_t is_stopped;

static void stop(int number)
{
    (void)number;
    is_stopped = 1;
}

static uint64_t load(const uint8_t *data, size_t bytes)
{
    uint64_t number = 0;
    while (bytes-- > 0)
        number = number << 8 | data[bytes];
    return number;
}

/* Records are DBN: length in units of four bytes, type, publisher, instrument. Prices are in units of 1e-9. */
static void print_trades(const mdgw_item *item)
{
    for (size_t offset = 0; offset + 16 <= item->body_bytes;) {
        const uint8_t *record = item->body + offset;
        size_t length = (size_t)record[0] * 4;
        bool is_mbo = record[1] == 0xa0 && length >= 56 && record[38] == 'T', is_trade = record[1] == 0x00 && length >= 48;
        if (is_mbo || is_trade)
            printf("%" PRIu64 ": instrument %" PRIu64 ", %" PRIu64 " at %.4f\n", item->sequence, load(record + 4, 4),
                   load(record + (is_mbo ? 32 : 24), 4), (double)(int64_t)load(record + (is_mbo ? 24 : 16), 8) * 1e-9);
        offset += length;
    }
}

static void on_item(void *user, const mdgw_item *item)
{
    static char text[1 << 18];
    output *output = user;
    output->has_begun = true;
    if (item->kind == MDGW_ITEM_SESSION || item->kind == MDGW_ITEM_END) {
        bool is_open = item->kind == MDGW_ITEM_SESSION;
        output->open_count += is_open;
        output->open_count -= output->is_open[item->channel] || !is_open;
        output->is_open[item->channel] = is_open;
    }
    if (item->kind == MDGW_ITEM_GAP || item->kind == MDGW_ITEM_LOST)
        output->missing += item->next - item->first;
    if (output->prints_trades && item->body_bytes > 0) {
        /* Those of a repeated message were printed before. */
        if (item->kind != MDGW_ITEM_REPEATED)
            print_trades(item);
        return;
    }
    mdgw_describe(item, text, sizeof text);
    puts(text);
}

/* Splits ADDR:PORT in place. */
static bool split(char *text, const char **address, uint16_t *port)
{
    char *colon = strrchr(text, ':');
    if (!colon)
        return false;
    *colon = 0;
    *address = text;
    *port = (uint16_t)strtoul(colon + 1, NULL, 10);
    return *port != 0;
}

/* A file of 64 hexadecimal digits that only its owner may read. */
static bool load_key(const char *path, uint8_t key[MDGW_TAG_KEY_BYTES])
{
    struct stat status;
    char digits[2 * MDGW_TAG_KEY_BYTES + 1] = "";
    FILE *file = fopen(path, "r");
    bool is_read = file && fstat(fileno(file), &status) == 0 && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0 &&
                   fread(digits, 1, 2 * MDGW_TAG_KEY_BYTES, file) == 2 * MDGW_TAG_KEY_BYTES;
    if (file)
        fclose(file);
    if (!is_read || strspn(digits, "0123456789abcdefABCDEF") != 2 * MDGW_TAG_KEY_BYTES)
        return false;
    for (unsigned i = 0; i < MDGW_TAG_KEY_BYTES; i++) {
        char byte[3] = {digits[2 * i], digits[2 * i + 1], 0};
        key[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    return true;
}

int main(int argc, char **argv)
{
    mdgw_config config = mdgw_default_config();
    mdgw_line lines[MDGW_LINES_MAX + 1], snapshot_group = {0};
    mdgw_service services[MDGW_SERVICES_MAX];
    const char *sources[16];
    static uint8_t keys[1][MDGW_TAG_KEY_BYTES];
    uint16_t channel;
    size_t source_count = 0;
    bool is_valid = argc >= 4, until_ended = false;
    static output output;
    config.lines = 0;
    config.start = MDGW_START_DAY;
    config.packet_bytes_max = 8972; /* the most that a gateway can be configured to publish */
    if (is_valid)
        config.group = (uint16_t)strtoul(argv[1], NULL, 10);
    for (int i = 3; i < argc && is_valid; i++) {
        if (strcmp(argv[i], "--trades") == 0) {
            output.prints_trades = true;
        } else if (strcmp(argv[i], "--until-ended") == 0) {
            until_ended = true;
        } else if (strcmp(argv[i], "--rebuild") == 0) {
            config.rebuilds_books = true;
        } else if (argv[i][0] != '-') {
            is_valid = config.lines < MDGW_LINES_MAX && split(argv[i], &lines[config.lines].address, &lines[config.lines].port);
            if (is_valid)
                lines[config.lines++].interface_address = argv[2];
        } else if (i + 1 == argc) {
            is_valid = false;
        } else if (strcmp(argv[i], "--service") == 0) {
            is_valid = config.services < MDGW_SERVICES_MAX &&
                       split(argv[++i], &services[config.services].address, &services[config.services].port);
            config.services += is_valid;
        } else if (strcmp(argv[i], "--snapshot-group") == 0) {
            is_valid = split(argv[++i], &snapshot_group.address, &snapshot_group.port);
            snapshot_group.interface_address = argv[2];
            config.has_snapshot_group = true;
        } else if (strcmp(argv[i], "--source") == 0 && source_count < 16) {
            sources[source_count++] = argv[++i];
        } else if (strcmp(argv[i], "--key") == 0) {
            is_valid = load_key(argv[++i], keys[0]);
            config.tag_keys = (const uint8_t(*)[MDGW_TAG_KEY_BYTES])keys;
            config.tag_key_count = 1;
        } else if (strcmp(argv[i], "--start") == 0) {
            i++;
            config.start = strcmp(argv[i], "snapshot") == 0 ? MDGW_START_SNAPSHOT
                           : *argv[i] == 's'                ? MDGW_START_SESSION
                           : *argv[i] == 'd'                ? MDGW_START_DAY
                                                            : MDGW_START_LIVE;
        } else if (strcmp(argv[i], "--channel") == 0) {
            channel = (uint16_t)strtoul(argv[++i], NULL, 10);
            config.channels = &channel;
            config.channels_max = 1;
        } else {
            is_valid = false;
        }
    }
    if (!is_valid || config.lines == 0) {
        fprintf(stderr, "usage: example GROUP INTERFACE LINE... [--service ADDR:PORT]... [--source ADDR]... [--key FILE] "
                        "[--start session|day|live|snapshot] [--channel N] [--snapshot-group ADDR:PORT] [--rebuild] [--trades] "
                        "[--until-ended]\n");
        return 2;
    }
    /* Behind the lines. */
    lines[config.lines] = snapshot_group;
    mdgw_subscriber *subscriber =
        mdgw_subscriber_open(&config, lines, services, sources, source_count, 8 << 20, on_item, &output);
    if (!subscriber) {
        perror("example: cannot receive");
        return 2;
    }
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    fprintf(stderr, "receiving %u lines\n", config.lines);
    int code = 0;
    while (!is_stopped && !(until_ended && output.has_begun && output.open_count == 0)) {
        if (mdgw_subscriber_poll(subscriber, 50000000) < 0) {
            const char *why = errno == EPROTO ? "rival epochs: one of them is forged" : strerror(errno);
            fprintf(stderr, "example: %s\n", why);
            code = 2;
            break;
        }
        fflush(stdout);
    }
    mdgw_receiver_finish(mdgw_subscriber_receiver(subscriber));
    mdgw_counts counts = mdgw_receiver_counts(mdgw_subscriber_receiver(subscriber));
    fprintf(stderr, "%" PRIu64 " messages, %" PRIu64 " missing; %" PRIu64 " datagrams\n", counts.messages, output.missing, counts.packets);
    for (int reason = 1; reason < MDGW_REASONS; reason++)
        if (counts.refused[reason] > 0 && reason != MDGW_DUPLICATE)
            fprintf(stderr, "refused %" PRIu64 " packets: %s\n", counts.refused[reason], mdgw_reason_name((mdgw_reason)reason));
    mdgw_subscriber_close(subscriber);
    return code != 0 ? code : output.missing > 0;
}
