/* Prints a file of test vectors with what the receiver in C makes of it: the lines that begin with "> ". */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdgw_subscriber.h"

static char item_text[1 << 18];
static uint8_t bytes[1 << 17];

/* The value of `name=` in a line of words; NULL if it is not there. */
static const char *setting(const char *line, const char *name)
{
    size_t length = strlen(name);
    for (const char *word = line; word; word = strchr(word, ' ')) {
        word += *word == ' ';
        if (strncmp(word, name, length) == 0 && word[length] == '=')
            return word + length + 1;
    }
    return NULL;
}

static uint64_t number(const char *line, const char *name, uint64_t otherwise)
{
    const char *value = setting(line, name);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

/* Digits up to anything else; "-" is nothing. */
static size_t from_hex(const char *text, uint8_t *out, size_t size)
{
    static const char digits[] = "0123456789abcdef";
    size_t count = 0;
    const char *high, *low;
    while (count < size && *text && (high = strchr(digits, text[0])) && text[1] && (low = strchr(digits, text[1]))) {
        out[count++] = (uint8_t)((high - digits) << 4 | (low - digits));
        text += 2;
    }
    return count;
}

static size_t parse_keys(const char *text, uint8_t keys[][MDGW_TAG_KEY_BYTES])
{
    size_t count = 0;
    while (text && count < MDGW_TAG_KEYS_MAX && from_hex(text, keys[count], MDGW_TAG_KEY_BYTES) == MDGW_TAG_KEY_BYTES) {
        count++;
        text += 2 * MDGW_TAG_KEY_BYTES;
        text = *text == ',' ? text + 1 : NULL;
    }
    return count;
}

static void print_hex(const uint8_t *data, size_t length)
{
    if (length == 0)
        putchar('-');
    for (size_t i = 0; i < length; i++)
        printf("%02x", data[i]);
}

/* Packets */

static void show_packet(const uint8_t *data, size_t length, uint8_t keys[][MDGW_TAG_KEY_BYTES], size_t key_count, const uint64_t *nonce)
{
    mdgw_request request;
    mdgw_packet packet;
    bool is_request = length >= 4 && memcmp(data, "MDGR", 4) == 0;
    mdgw_reason reason = is_request ? mdgw_parse_request(data, length, &request) : mdgw_parse_packet(data, length, &packet);
    if (reason == MDGW_USED && !is_request && key_count > 0) {
        reason = packet.is_tagged ? MDGW_TAG_INVALID : MDGW_TAG_MISSING;
        for (size_t i = 0; i < key_count && packet.is_tagged; i++) {
            uint8_t tag[MDGW_TAG_BYTES];
            mdgw_tag(keys[i], nonce, data, length - MDGW_TAG_BYTES, tag);
            if (memcmp(tag, data + length - MDGW_TAG_BYTES, MDGW_TAG_BYTES) == 0)
                reason = MDGW_USED;
        }
    }
    if (reason != MDGW_USED) {
        printf("> refused %s\n", mdgw_reason_name(reason));
        return;
    }
    if (is_request) {
        uint8_t again[MDGW_REQUEST_BYTES];
        mdgw_write_request(&request, again);
        printf("> request kind=%u group=%u channel=%u feed=%u date=%" PRIu32 " restart=%" PRIu32 " first=%" PRIu64 " next=%" PRIu64
               " nonce=%" PRIu64 "%s\n",
               (unsigned)request.kind, (unsigned)request.group, (unsigned)request.channel, (unsigned)request.session.feed,
               request.session.date, request.session.restart, request.first, request.next, request.nonce,
               memcmp(again, data, sizeof again) == 0 ? "" : " written otherwise");
        return;
    }
    printf("> packet flags=%u tagged=%d group=%u channel=%u epoch=%" PRIu64 " feed=%u date=%" PRIu32 " restart=%" PRIu32 " first=%" PRIu64
           " next=%" PRIu64 " send_time_ns=%" PRIu64 " frames=%u\n",
           (unsigned)packet.flags, packet.is_tagged, (unsigned)packet.group, (unsigned)packet.channel, packet.epoch,
           (unsigned)packet.session.feed, packet.session.date, packet.session.restart, packet.first, packet.next, packet.send_time_ns,
           (unsigned)packet.frame_count);
    mdgw_frame frame;
    for (size_t offset = 0; mdgw_next_frame(packet.frames, packet.frames_bytes, &offset, &frame);) {
        printf("> frame kind=%u sequence=%" PRIu64 " part=%u flags=%u ts_recv=%" PRIu64 " ts_in_delta=%" PRId32 " records=%u ",
               (unsigned)frame.kind, frame.sequence, (unsigned)frame.part, (unsigned)frame.flags, frame.ts_recv, frame.ts_in_delta,
               (unsigned)frame.record_count);
        if (frame.kind == MDGW_KIND_GAP) {
            uint64_t next = 0;
            for (unsigned i = 16; i-- > 8;)
                next = next << 8 | frame.body[i];
            printf("gap_first=%" PRIu64 " gap_next=%" PRIu64, frame.sequence, next);
        } else if (frame.kind == MDGW_KIND_STATE) {
            printf("state=%u", (unsigned)frame.body[0]);
        } else {
            printf("body=");
            print_hex(frame.body, frame.body_bytes);
        }
        putchar('\n');
    }
}

/* Streams */

static mdgw_receiver *receiver;
static bool has_reported_rivals;

static void show_item(void *user, const mdgw_item *item)
{
    (void)user;
    mdgw_describe(item, item_text, sizeof item_text);
    printf("> %s\n", item_text);
}

static void begin_stream(const char *line)
{
    static uint8_t keys[MDGW_TAG_KEYS_MAX][MDGW_TAG_KEY_BYTES];
    mdgw_config config = mdgw_default_config();
    const char *start = setting(line, "start");
    config.lines = (unsigned)number(line, "lines", 1);
    config.services = (unsigned)number(line, "services", 0);
    config.channels_max = 4;
    config.start = MDGW_START_SESSION;
    if (start && strncmp(start, "snapshot", 8) == 0)
        config.start = MDGW_START_SNAPSHOT;
    else if (start && *start != 's')
        config.start = *start == 'd' ? MDGW_START_DAY : MDGW_START_LIVE;
    config.snapshot_bytes_max = (size_t)number(line, "snapshot_bytes_max", 1 << 20);
    config.rebuilds_books = number(line, "rebuild", 0);
    config.rebuild_bytes_max = (size_t)number(line, "rebuild_bytes_max", 1 << 20);
    config.has_snapshot_group = number(line, "snapshot_group", 0);
    config.window_packets = (size_t)number(line, "window", config.window_packets);
    config.attempts_max = (unsigned)number(line, "attempts", config.attempts_max);
    config.messages_per_request_max = number(line, "per_request", config.messages_per_request_max);
    config.message_bytes_max = (size_t)number(line, "message_bytes_max", config.message_bytes_max);
    config.request_nonce = number(line, "request_nonce", 0);
    config.epoch_nonce = number(line, "epoch_nonce", 0);
    config.accepts_untagged = number(line, "accepts_untagged", 0);
    config.tag_key_count = parse_keys(setting(line, "keys"), keys);
    config.tag_keys = (const uint8_t(*)[MDGW_TAG_KEY_BYTES])keys;
    mdgw_receiver_free(receiver);
    receiver = mdgw_receiver_new(&config, show_item, NULL);
    has_reported_rivals = false;
    if (!receiver)
        abort();
}

static void on_deadline(uint64_t now)
{
    unsigned service;
    uint8_t request[MDGW_REQUEST_BYTES];
    mdgw_receiver_on_deadline(receiver, now);
    while (mdgw_receiver_poll_request(receiver, &service, request)) {
        printf("> request %u ", service);
        print_hex(request, sizeof request);
        putchar('\n');
    }
    const mdgw_rivals *rivals = mdgw_receiver_rivals(receiver);
    if (rivals && !has_reported_rivals) {
        has_reported_rivals = true;
        printf("> rivals lowest=%" PRIu64 " highest=%" PRIu64 " contradicted=%d\n", rivals->lowest, rivals->highest, rivals->is_contradicted);
    }
}

static void accept_at(uint64_t now, const char *rest)
{
    char source[16];
    unsigned index = 0;
    int length = 0;
    bool is_group = sscanf(rest, " group %n", &length) == 0 && length > 0;
    if (is_group || sscanf(rest, "%15s %u %n", source, &index, &length) == 2) {
        bool is_line = !is_group && strcmp(source, "line") == 0;
        /* A copy of exactly that length, so that a sanitizer notices a read beyond it. */
        size_t count = from_hex(rest + length, bytes, sizeof bytes);
        uint8_t *data = malloc(count > 0 ? count : 1);
        if (!data)
            abort();
        memcpy(data, bytes, count);
        mdgw_reason reason =
            is_group ? mdgw_receiver_accept_from_snapshot_group(receiver, data, count, now)
                     : mdgw_receiver_accept(receiver, is_line ? index : MDGW_SERVICE_LINE, is_line ? 0 : index, data, count, now);
        free(data);
        if (reason != MDGW_USED && reason != MDGW_DUPLICATE)
            printf("> refused %s\n", mdgw_reason_name(reason));
    }
    on_deadline(now);
}

int main(int argc, char **argv)
{
    static uint8_t keys[MDGW_TAG_KEYS_MAX][MDGW_TAG_KEY_BYTES], records[1 << 16];
    size_t key_count = 0, line_size = 0, length = 0;
    uint64_t nonce = 0, last = 0, now;
    bool has_nonce = false, has_bytes = false;
    char *line = NULL;
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!file)
        return 2;
    for (bool has_line = true; has_line;) {
        ssize_t line_length = getline(&line, &line_size, file);
        has_line = line_length >= 0;
        if (has_line && line[line_length - 1] == '\n')
            line[line_length - 1] = 0;
        if (has_line && strncmp(line, "> ", 2) == 0)
            continue;
        if ((!has_line || *line == 0) && has_bytes) {
            uint8_t *data = malloc(length > 0 ? length : 1);
            if (!data)
                abort();
            memcpy(data, bytes, length);
            show_packet(data, length, keys, key_count, has_nonce ? &nonce : NULL);
            free(data);
            has_bytes = false;
        }
        if (!has_line)
            break;
        bool is_at = sscanf(line, "at %" SCNu64, &now) == 1;
        while (is_at && mdgw_receiver_next_deadline(receiver) < now)
            on_deadline(mdgw_receiver_next_deadline(receiver));
        puts(line);
        if (is_at) {
            accept_at(now, line + 3 + strspn(line + 3, "0123456789"));
        } else if (strncmp(line, "vector ", 7) == 0) {
            key_count = 0;
            has_nonce = false;
        } else if (strncmp(line, "keys ", 5) == 0) {
            key_count = parse_keys(line + 5, keys);
        } else if (strncmp(line, "nonce ", 6) == 0) {
            nonce = strtoull(line + 6, NULL, 10);
            has_nonce = true;
        } else if (strncmp(line, "bytes ", 6) == 0) {
            length = from_hex(line + 6, bytes, sizeof bytes);
            has_bytes = true;
        } else if (strncmp(line, "set", 3) == 0) {
            begin_stream(line);
        } else if (strcmp(line, "finish") == 0) {
            mdgw_receiver_finish(receiver);
        } else if (strncmp(line, "records ", 8) == 0) {
            last = 0;
        } else if (strncmp(line, "item ", 5) == 0) {
            mdgw_item item = {.kind = number(line, "repeated", 0) ? MDGW_ITEM_REPEATED : MDGW_ITEM_MESSAGE,
                              .flags = (uint8_t)number(line, "flags", 0),
                              .ts_recv = number(line, "ts_recv", 0),
                              .ts_in_delta = (int32_t)strtol(setting(line, "ts_in_delta"), NULL, 10),
                              .body = bytes};
            item.body_bytes = from_hex(setting(line, "body"), bytes, sizeof records);
            size_t filled = mdgw_fill_local_times(&item, &last, records);
            printf("> ");
            print_hex(records, filled);
            putchar('\n');
        }
    }
    mdgw_receiver_free(receiver);
    free(line);
    fclose(file);
    return 0;
}
