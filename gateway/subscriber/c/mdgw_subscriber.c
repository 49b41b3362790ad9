/* See mdgw_subscriber.h, and ops/guide/output-protocol.md for the protocol. */
#define _GNU_SOURCE /* ip_mreq_source, IP_MULTICAST_ALL, CLOCK_BOOTTIME */
#include "mdgw_subscriber.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Sequences are below 2^47, so that a sequence and its part fit one position: sequence << 16 | part. */
#define SEQUENCE_END (UINT64_C(1) << 47)
#define POSITION_END (UINT64_C(1) << 63)
#define PART_MASK 0xffffu
/* `expected` before the first packet: beyond every position. */
#define NOWHERE UINT64_MAX
#define EPOCH_ANSWER (MDGW_HEARTBEAT | MDGW_RETRANSMISSION | MDGW_SNAPSHOT_PACKET | MDGW_SESSION_ENDS)
#define UNDEFINED_TIME UINT64_MAX
/* After refused epochs, ns: forged packets must not make a receiver flood the services. */
#define EPOCH_QUERY_INTERVAL_NS UINT64_C(1000000000)
#define SOURCES_MAX 16
/* Definitions of one session that a receiver remembers: three times what the largest venue lists. */
#define DEFINITIONS_MAX ((size_t)1 << 15)
#define DATAGRAMS_PER_SOCKET_MAX 64
/* Pause after a failure of the snapshot group's socket, ns. */
#define GROUP_RETRY_NS UINT64_C(1000000000)
/* Rounds in which a socket was not read until it was empty, after which deadlines wait no longer. */
#define UNDRAINED_ROUNDS_MAX 128
/* Chunks in one request, which fit the receive buffer of a host whose limits nobody has raised; images that are begun before the
 * receiver does without; how often a service may answer that the snapshot is being taken; bytes of a chunk's records, on average, at least. */
#define CHUNKS_PER_REQUEST 128u
#define IMAGES_MAX 8u
#define WAITS_MAX 200u
#define CHUNK_BYTES_MIN ((size_t)128)
/* Pause before the first query for a snapshot that makes suspect books right: other losses of the same burst come within it. It doubles
 * with each query. Books that stayed right for the longest pause have the shortest one again. */
#define PAUSE_NS_MIN UINT64_C(500000000)
#define PAUSE_NS_MAX UINT64_C(64000000000)
/* Longest time that a whole image waits for the stream to come to its position; attempts with one service; what a kept message counts
 * beside its records. */
#define COMPLETE_NS_MAX UINT64_C(10000000000)
#define REBUILD_ATTEMPTS_MIN 4u
#define KEPT_MESSAGE_BYTES ((size_t)48)
/* Of message_bytes_max, start_bytes_max, snapshot_bytes_max and rebuild_bytes_max, so that no size of memory wraps. */
#define CONFIGURED_BYTES_MAX ((size_t)1 << 30)

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t plus(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

static uint64_t load(const uint8_t *data, size_t bytes)
{
    uint64_t number = 0;
    while (bytes-- > 0)
        number = number << 8 | data[bytes];
    return number;
}

static void store(uint8_t *data, uint64_t number, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, number >>= 8)
        data[i] = (uint8_t)number;
}

/* --- Formats ---------------------------------------------------------------------------------------------------------- */

const char *mdgw_reason_name(mdgw_reason reason)
{
    static const char *const names[MDGW_REASONS] = {
        "used", "header_truncated", "protocol_mismatch", "length_mismatch", "message_truncated", "message_length",
        "field_invalid", "trailing_bytes", "sequence_invalid", "sequence_jump", "session_stale", "duplicate", "window_full",
        "source_unexpected", "epoch_stale", "epoch_jump", "epoch_unconfirmed", "answer_unrequested", "tag_missing",
        "tag_invalid", "channel_unknown",
    };
    return (unsigned)reason < MDGW_REASONS ? names[reason] : "unknown";
}

static bool is_date(uint32_t date)
{
    static const uint8_t days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    uint32_t year = date / 10000, month = date / 100 % 100, day = date % 100;
    if (year < 1970 || year > 9999 || month < 1 || month > 12)
        return false;
    bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return day >= 1 && day <= days[month - 1] + (month == 2 && is_leap ? 1u : 0u);
}

static bool parse_session(const uint8_t raw[16], mdgw_session *session)
{
    *session = (mdgw_session){(uint16_t)load(raw, 2), (uint32_t)load(raw + 4, 4), (uint32_t)load(raw + 8, 4)};
    return session->feed >= 1 && session->feed <= 5 && load(raw + 2, 2) == 0 && load(raw + 12, 4) == 0 &&
           is_date(session->date);
}

static void write_session(const mdgw_session *session, uint8_t raw[16])
{
    memset(raw, 0, 16);
    store(raw, session->feed, 2);
    store(raw + 4, session->date, 4);
    store(raw + 8, session->restart, 4);
}

static int compare_days(const mdgw_session *a, const mdgw_session *b)
{
    if (a->feed != b->feed)
        return a->feed < b->feed ? -1 : 1;
    return a->date == b->date ? 0 : a->date < b->date ? -1 : 1;
}

static int compare_sessions(const mdgw_session *a, const mdgw_session *b)
{
    int days = compare_days(a, b);
    return days != 0 ? days : a->restart == b->restart ? 0 : a->restart < b->restart ? -1 : 1;
}

bool mdgw_next_frame(const uint8_t *frames, size_t frames_bytes, size_t *offset, mdgw_frame *frame)
{
    if (frames_bytes - *offset < MDGW_FRAME_HEADER_BYTES)
        return false;
    const uint8_t *header = frames + *offset;
    *frame = (mdgw_frame){
        .sequence = load(header, 8),
        .ts_recv = load(header + 8, 8),
        .ts_in_delta = (int32_t)(uint32_t)load(header + 16, 4),
        .body_bytes = (uint16_t)load(header + 20, 2),
        .record_count = (uint16_t)load(header + 22, 2),
        .kind = header[24],
        .flags = header[25],
        .part = (uint16_t)load(header + 26, 2),
        .body = header + MDGW_FRAME_HEADER_BYTES,
    };
    if (frames_bytes - *offset - MDGW_FRAME_HEADER_BYTES < frame->body_bytes)
        return false;
    *offset += MDGW_FRAME_HEADER_BYTES + (size_t)frame->body_bytes;
    return true;
}

/* Whether the body is that many DBN records. The first byte of each is its length in units of four bytes. */
static bool has_records(const uint8_t *body, size_t bytes, unsigned count)
{
    while (bytes > 0) {
        size_t length = (size_t)body[0] * 4;
        if (length < 16 || length % 8 != 0 || length > bytes || count == 0)
            return false;
        body += length;
        bytes -= length;
        count--;
    }
    return count == 0;
}

static bool is_part(const mdgw_frame *frame)
{
    return frame->kind == MDGW_KIND_MESSAGE && (frame->flags & 3) != 3;
}

/* Checks a body against its kind. *next is then the first sequence after the frame's range. */
static mdgw_reason check_body(const mdgw_frame *frame, uint64_t *next)
{
    if (frame->body_bytes % 8 != 0)
        return MDGW_MESSAGE_LENGTH;
    *next = frame->sequence;
    switch (frame->kind) {
    case MDGW_KIND_MESSAGE:
    case MDGW_KIND_SNAPSHOT:
        *next = plus(frame->sequence, 1);
        return has_records(frame->body, frame->body_bytes, frame->record_count) ? MDGW_USED : MDGW_MESSAGE_LENGTH;
    case MDGW_KIND_GAP:
        if (frame->body_bytes != 16)
            return MDGW_MESSAGE_LENGTH;
        *next = load(frame->body + 8, 8);
        return load(frame->body, 8) == frame->sequence && frame->sequence < *next ? MDGW_USED : MDGW_SEQUENCE_INVALID;
    case MDGW_KIND_SNAPSHOT_CHUNK:
        return frame->body_bytes == 48 ? MDGW_USED : MDGW_MESSAGE_LENGTH;
    default:
        return frame->body_bytes == 8 ? MDGW_USED : MDGW_MESSAGE_LENGTH;
    }
}

static mdgw_reason check_frames(mdgw_packet *packet)
{
    if (packet->flags & MDGW_HEARTBEAT && packet->frame_count != 0)
        return MDGW_LENGTH_MISMATCH;
    size_t offset = 0;
    uint64_t position = packet->first;
    for (unsigned i = 0; i < packet->frame_count; i++) {
        mdgw_frame frame;
        if (packet->frames_bytes - offset < MDGW_FRAME_HEADER_BYTES)
            return MDGW_LENGTH_MISMATCH;
        if (!mdgw_next_frame(packet->frames, packet->frames_bytes, &offset, &frame))
            return MDGW_MESSAGE_TRUNCATED;
        if (frame.kind > MDGW_KIND_SNAPSHOT_CHUNK)
            return MDGW_PROTOCOL_MISMATCH;
        uint64_t next;
        mdgw_reason reason = check_body(&frame, &next);
        if (reason != MDGW_USED)
            return reason;
        /* With its part it must fit a position, whatever the kind. */
        if (frame.sequence >= SEQUENCE_END)
            return MDGW_SEQUENCE_INVALID;
        if (frame.kind == MDGW_KIND_MESSAGE && !is_part(&frame) && frame.part != 0)
            return MDGW_FIELD_INVALID;
        /* Snapshots are out of sequence, and a late fill precedes the packet's range by definition. */
        if (frame.kind > MDGW_KIND_GAP || packet->flags & MDGW_SNAPSHOT_PACKET || frame.flags & MDGW_LATE_FILL)
            continue;
        if (frame.sequence < position)
            return MDGW_SEQUENCE_INVALID;
        position = next;
        packet->has_part = is_part(&frame);
        if (packet->has_part) {
            /* A part is alone in its packet, and the packet's range is limited to it. */
            if (packet->frame_count != 1)
                return MDGW_FIELD_INVALID;
            packet->part = frame.part;
            packet->part_sequence = frame.sequence;
            packet->is_last_part = frame.flags & MDGW_LAST_PART;
            position = packet->is_last_part ? next : frame.sequence;
            if (packet->next != position || (frame.part > 0 && packet->first != frame.sequence))
                return MDGW_SEQUENCE_INVALID;
        }
        if (position > packet->next)
            return MDGW_SEQUENCE_INVALID;
    }
    return offset == packet->frames_bytes ? MDGW_USED : MDGW_LENGTH_MISMATCH;
}

mdgw_reason mdgw_parse_packet(const uint8_t *data, size_t length, mdgw_packet *packet)
{
    if (length < MDGW_PACKET_HEADER_BYTES)
        return MDGW_HEADER_TRUNCATED;
    if (memcmp(data, "MDGW\1", 5) != 0 || data[5] > 31 || load(data + 14, 2) != 0)
        return MDGW_PROTOCOL_MISMATCH;
    *packet = (mdgw_packet){
        .flags = (uint8_t)(data[5] & ~MDGW_TAGGED),
        .is_tagged = data[5] & MDGW_TAGGED,
        .group = (uint16_t)load(data + 6, 2),
        .channel = (uint16_t)load(data + 8, 2),
        .frame_count = (uint16_t)load(data + 10, 2),
        .epoch = load(data + 16, 8),
        .first = load(data + 40, 8),
        .next = load(data + 48, 8),
        .send_time_ns = load(data + 56, 8),
        .frames = data + MDGW_PACKET_HEADER_BYTES,
        .frames_bytes = (size_t)load(data + 12, 2),
    };
    if (length != MDGW_PACKET_HEADER_BYTES + packet->frames_bytes + (packet->is_tagged ? MDGW_TAG_BYTES : 0))
        return MDGW_LENGTH_MISMATCH;
    if (!parse_session(data + 24, &packet->session))
        return MDGW_FIELD_INVALID;
    if (packet->first > packet->next || packet->next >= SEQUENCE_END)
        return MDGW_SEQUENCE_INVALID;
    return check_frames(packet);
}

mdgw_reason mdgw_parse_request(const uint8_t *data, size_t length, mdgw_request *request)
{
    static const uint8_t zero[16];
    if (length != MDGW_REQUEST_BYTES)
        return length < MDGW_REQUEST_BYTES ? MDGW_HEADER_TRUNCATED : MDGW_TRAILING_BYTES;
    if (memcmp(data, "MDGR\1", 5) != 0 || data[5] < MDGW_RANGE || data[5] > MDGW_SNAPSHOT_CHUNKS || load(data + 10, 6) != 0)
        return MDGW_PROTOCOL_MISMATCH;
    *request = (mdgw_request){
        .kind = data[5],
        .group = (uint16_t)load(data + 6, 2),
        .channel = (uint16_t)load(data + 8, 2),
        .has_session = memcmp(data + 16, zero, 16) != 0,
        .first = load(data + 32, 8),
        .next = load(data + 40, 8),
        .nonce = load(data + 48, 8),
    };
    if (request->has_session && !parse_session(data + 16, &request->session))
        return MDGW_FIELD_INVALID;
    return request->first <= request->next ? MDGW_USED : MDGW_SEQUENCE_INVALID;
}

void mdgw_write_request(const mdgw_request *request, uint8_t data[MDGW_REQUEST_BYTES])
{
    memset(data, 0, MDGW_REQUEST_BYTES);
    memcpy(data, "MDGR\1", 5);
    data[5] = request->kind;
    store(data + 6, request->group, 2);
    store(data + 8, request->channel, 2);
    if (request->has_session)
        write_session(&request->session, data + 16);
    store(data + 32, request->first, 8);
    store(data + 40, request->next, 8);
    store(data + 48, request->nonce, 8);
}

/* --- Tags: HMAC-SHA-256 (FIPS 180-4, RFC 2104), cut to its first half ------------------------------------------------- */

typedef struct sha256 {
    uint32_t h[8];
    uint64_t total;
    uint8_t block[64];
} sha256;

static uint32_t rotate(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }

static void sha256_block(uint32_t h[8], const uint8_t *block)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
        0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
        0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
        0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
        0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
        0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };
    uint32_t w[64];
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < 64; i++) {
        uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    memcpy(v, h, sizeof v);
    for (unsigned i = 0; i < 64; i++) {
        uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (unsigned i = 0; i < 8; i++)
        h[i] += v[i];
}

static void sha256_begin(sha256 *hash)
{
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->h, initial, sizeof initial);
    hash->total = 0;
}

static void sha256_add(sha256 *hash, const uint8_t *data, size_t length)
{
    while (length > 0) {
        size_t used = hash->total % 64, room = 64 - used, part = length < room ? length : room;
        memcpy(hash->block + used, data, part);
        hash->total += part;
        data += part;
        length -= part;
        if (part == room)
            sha256_block(hash->h, hash->block);
    }
}

static void sha256_end(sha256 *hash, uint8_t digest[32])
{
    static const uint8_t padding[64] = {0x80};
    uint8_t bits[8];
    for (unsigned i = 0; i < 8; i++)
        bits[i] = (uint8_t)(hash->total * 8 >> (56 - 8 * i));
    sha256_add(hash, padding, 1 + (119 - hash->total % 64) % 64);
    sha256_add(hash, bits, 8);
    for (unsigned i = 0; i < 32; i++)
        digest[i] = (uint8_t)(hash->h[i / 4] >> (24 - 8 * (i % 4)));
}

/* A key, with its padding already hashed. */
typedef struct tag_key {
    sha256 inner, outer;
} tag_key;

static void tag_key_begin(tag_key *key, const uint8_t raw[MDGW_TAG_KEY_BYTES])
{
    uint8_t padded[64];
    sha256 *hashes[2] = {&key->inner, &key->outer};
    static const uint8_t pads[2] = {0x36, 0x5c};
    for (unsigned i = 0; i < 2; i++) {
        memset(padded, pads[i], sizeof padded);
        for (unsigned j = 0; j < MDGW_TAG_KEY_BYTES; j++)
            padded[j] ^= raw[j];
        sha256_begin(hashes[i]);
        sha256_add(hashes[i], padded, sizeof padded);
    }
}

static void make_tag(const tag_key *key, const uint64_t *nonce, const uint8_t *packet, size_t length, uint8_t tag[MDGW_TAG_BYTES])
{
    sha256 inner = key->inner, outer = key->outer;
    uint8_t digest[32];
    sha256_add(&inner, (const uint8_t *)(nonce ? "mdgw answer    1" : "mdgw packet    1"), 16);
    if (nonce) {
        uint8_t raw[8];
        store(raw, *nonce, 8);
        sha256_add(&inner, raw, 8);
    }
    sha256_add(&inner, packet, length);
    sha256_end(&inner, digest);
    sha256_add(&outer, digest, 32);
    sha256_end(&outer, digest);
    memcpy(tag, digest, MDGW_TAG_BYTES);
}

void mdgw_tag(const uint8_t raw[MDGW_TAG_KEY_BYTES], const uint64_t *nonce, const uint8_t *packet, size_t length,
              uint8_t tag[MDGW_TAG_BYTES])
{
    tag_key key;
    tag_key_begin(&key, raw);
    make_tag(&key, nonce, packet, length, tag);
}

/* --- State of a receiver ---------------------------------------------------------------------------------------------- */

/* A query to the services, repeated until it is answered or given up. */
typedef struct query {
    bool is_active, is_due;
    uint64_t attempt, deadline;
} query;

/* What a service's log has of a session: [first, next). */
typedef struct extent {
    bool is_reported, is_final; /* final: the service knows that the session ended at `next` */
    uint64_t first, next;
} extent;

/* Positions [from, until) of the held packet in `slot`. */
typedef struct fragment {
    uint64_t from, until, gap_since;
    uint32_t slot;
} fragment;

typedef struct slot {
    uint32_t frames_bytes, fragments;
} slot;

typedef struct jump {
    bool is_set;
    unsigned confirmations;
    uint64_t next, arrival;
} jump;

typedef struct gap {
    uint64_t first, next, due;
} gap;

/* See the phases' diagram in the specification. */
typedef enum phase {
    IDLE,
    QUERY_SESSIONS,
    QUERY_DEFINITIONS,
    QUERY_SNAPSHOT,
    /* Messages are kept until the snapshot group has sent a whole image, and nothing is delivered. */
    AWAIT_GROUP_IMAGE,
    QUERY_EXTENT,
    RUNNING,
    CLOSING
} phase;

/* What all chunks of an image have in common. */
typedef struct image {
    uint32_t number, chunk_count, checksum, instrument_count;
    uint64_t record_count, record_bytes, order_count;
    uint64_t next; /* position: the first message that is not part of the state */
    bool is_suspect;
} image;

/* `begin` is where the records of the chunk are. */
typedef struct chunk {
    uint8_t generation; /* that of the assembly if the chunk has arrived */
    uint8_t flags;
    uint16_t body_bytes, record_count;
    int32_t ts_in_delta;
    uint32_t begin;
    uint64_t ts_recv;
} chunk;

/* The image of which chunks are collected: complete or nothing. */
typedef struct assembly {
    bool has_image;
    uint8_t generation; /* another one for each image, since writing to each chunk of a forged image would take too long; never 0 */
    image image;
    chunk *chunks;
    uint8_t *records; /* in the order of arrival */
    uint64_t record_bytes, record_count;
    uint32_t missing_count, first_missing;
} assembly;

/* The snapshot of one session, from the service that first offered an acceptable one. */
typedef struct snapshot {
    assembly assembly;
    bool has_asked;
    bool has_progress; /* a chunk arrived since the last request */
    bool leaves_image; /* the answer to the last request is an image that was left for another one */
    bool is_rebuild;   /* only an image without suspect books is taken, of rebuilt_from or later; a start takes any in the end */
    uint64_t rebuilt_from;
    unsigned service, asked_service, attempts, waits, images_left;
} snapshot;

/* An image that the snapshot group sends: nothing is requested, and a chunk that was lost comes again with the next pass. */
typedef struct group_image {
    assembly assembly;
    bool is_complete; /* all chunks are there: they wait until `until` for the stream to come to their position */
    uint64_t until;
    bool has_left; /* of the image before, chunks that arrive late change nothing */
    image left;
} group_image;

/* Messages since the books became suspect, or since a start waits for an image of the snapshot group, in a ring. Each lies whole in it:
 * `wrap` is the end of those before its end. */
typedef struct kept_messages {
    bool are_books_suspect; /* at such a start too */
    uint64_t from; /* messages from this one on are here, or produced nothing */
    uint8_t *ring;
    size_t ring_bytes, begin, end, wrap, count, cost;
} kept_messages;

typedef struct kept_message {
    uint64_t sequence, ts_recv;
    int32_t ts_in_delta;
    uint32_t body_bytes;
    uint16_t record_count;
    uint8_t flags;
} kept_message;
_Static_assert(sizeof(kept_message) <= KEPT_MESSAGE_BYTES, "the ring has room for all messages within the limit");

typedef enum rebuild_stage {
    BOOKS_RIGHT,
    REBUILD_WAITING, /* the next query begins at `until` */
    REBUILD_QUERYING,
    REBUILD_COMPLETE /* all chunks are there: they wait until `until` for the stream to come to their position */
} rebuild_stage;

typedef struct rebuild {
    rebuild_stage stage;
    query query;
    uint64_t until, pause_ns, right_since;
    bool was_rebuilt; /* at right_since */
} rebuild;

typedef struct channel {
    struct mdgw_receiver *receiver;
    uint16_t number;
    phase phase;
    query query;
    bool is_end_known;
    bool has_next_session, has_oldest, has_previous_session, has_skipped;
    mdgw_session next_session, sessions_from, oldest, previous_session;
    /* Each log has indices of its own, so each service is asked from index 0 on. Until one answers, any may. */
    bool has_definitions_service;
    unsigned definitions_service;
    uint64_t next_definition, requested_from, skipped_first, skipped_next;
    uint64_t *definitions; /* delivered at the start of the session, ascending */
    size_t definition_count;
    extent extents[MDGW_SERVICES_MAX];
    snapshot snapshot; /* of a start, or of a rebuild */
    group_image group;
    uint64_t group_start_until; /* in AWAIT_GROUP_IMAGE: the start waits no longer */
    bool withholds;             /* what is received now is not delivered */
    rebuild rebuild;
    kept_messages kept;
    /* Stream of items. */
    bool has_session, has_state, has_snapshot, has_session_end, has_reported_end;
    mdgw_session session;
    uint64_t reported_through, session_end, snapshot_sequence;
    uint16_t snapshot_part;
    uint8_t state;
    /* The message being joined. */
    bool has_parts, is_broken;
    mdgw_frame whole;
    unsigned next_part;
    uint8_t *message;
    size_t message_bytes;
    /* Arbitration: next position to deliver, and the first one not known to exist. */
    uint64_t expected, frontier, trailing_gap_since;
    uint64_t arrivals[MDGW_SERVICE_LINE + 1];
    jump jumps[MDGW_SERVICE_LINE + 1];
    fragment *fragments; /* ascending and disjoint */
    size_t fragment_count;
    slot *slots;
    uint32_t *free_slots;
    size_t free_count;
    uint8_t *held; /* frames of the held packets, one stride for each slot */
    /* The request in flight. Everything missing before requested_through has been requested or given up. */
    bool has_request, is_unsent;
    uint64_t request_first, request_next, attempt, request_deadline;
    uint64_t requested_through, given_up_at;
    gap current_gap;
} channel;

typedef struct selection {
    bool is_range, has_last;
    uint16_t channel;
    unsigned service;
    uint8_t kind;
    mdgw_session session;
    uint64_t first;
} selection;

/* Which epoch is believed, see the specification. */
typedef enum epoch_phase { EPOCH_IDLE, ASKING, WATCHING, VOUCHED, FAILED } epoch_phase;

struct mdgw_receiver {
    mdgw_config config;
    uint16_t *channel_filter;
    mdgw_deliver *deliver;
    void *user;
    tag_key keys[MDGW_TAG_KEYS_MAX];
    mdgw_counts counts;
    uint64_t jump_max, request_max;
    channel *channels;
    size_t channel_count, turn;
    selection *selections;
    size_t selection_count, selections_max;
    void *blocks[15];
    size_t block_count;
    /* Epochs. */
    epoch_phase epoch_phase;
    bool has_highest, has_vouched, is_released, has_span;
    uint64_t highest, vouched, asked_at, until, last_accepted, nonce, lowest_held, highest_held, last_arrival;
    query epoch_query;
    uint16_t query_channel;
    mdgw_session query_session;
    uint8_t *start; /* held packets: line, length (4 bytes), datagram */
    size_t start_bytes, start_data_bytes;
    uint64_t start_packets;
    mdgw_rivals rivals;
    uint64_t group_epoch; /* the highest one of a chunk of the snapshot group */
};

enum { START_ENTRY_BYTES = 5 };

/* --- Queries and extents ---------------------------------------------------------------------------------------------- */

static query new_query(const mdgw_receiver *receiver, uint64_t now)
{
    return (query){true, true, 1, plus(now, receiver->config.request_timeout_ns)};
}

static bool take_due(query *query)
{
    bool is_due = query->is_active && query->is_due;
    if (is_due)
        query->is_due = false;
    return is_due;
}

static void ask_next(const mdgw_receiver *receiver, query *query, uint64_t now)
{
    query->attempt++;
    query->deadline = plus(now, receiver->config.request_timeout_ns);
    query->is_due = true;
}

/* The answer ended early: asks the same service for the rest. */
static void request_next_piece(const mdgw_receiver *receiver, query *query, uint64_t now)
{
    query->deadline = plus(now, receiver->config.request_timeout_ns);
    query->is_due = true;
}

/* Returns false if the query is given up. */
static bool query_on_deadline(const mdgw_receiver *receiver, query *query, uint64_t now)
{
    if (query->deadline <= now)
        ask_next(receiver, query, now);
    return query->attempt <= max_u64(receiver->config.attempts_max, 1);
}

/* Part of the answer arrived: the rest gets new attempts. */
static void on_progress(const mdgw_receiver *receiver, query *query, uint64_t now)
{
    query->attempt = 1;
    query->deadline = plus(now, receiver->config.request_timeout_ns);
}

static bool has_asked_enough(const mdgw_receiver *receiver, const query *query)
{
    return query->attempt > (uint64_t)receiver->config.unanswered_rounds_max * receiver->config.services;
}

static void clear_extents(channel *channel) { memset(channel->extents, 0, sizeof channel->extents); }

/* Returns whether it is the service's first report. */
static bool report_extent(channel *channel, unsigned service, extent reported)
{
    if (service >= channel->receiver->config.services)
        return false;
    bool is_first = !channel->extents[service].is_reported;
    channel->extents[service] = reported;
    return is_first;
}

static bool any_final(const channel *channel)
{
    for (unsigned i = 0; i < channel->receiver->config.services; i++)
        if (channel->extents[i].is_reported && channel->extents[i].is_final)
            return true;
    return false;
}

static unsigned reported_count(const channel *channel)
{
    unsigned count = 0;
    for (unsigned i = 0; i < channel->receiver->config.services; i++)
        count += channel->extents[i].is_reported;
    return count;
}

/* From the first to the last sequence in any log. Returns how many logs have any. */
static unsigned extent_range(const channel *channel, uint64_t *first, uint64_t *next)
{
    unsigned count = 0;
    *first = UINT64_MAX;
    *next = 0;
    for (unsigned i = 0; i < channel->receiver->config.services; i++) {
        const extent *reported = &channel->extents[i];
        if (reported->is_reported && reported->next >= 1) {
            *first = min_u64(*first, reported->first);
            *next = max_u64(*next, reported->next);
            count++;
        }
    }
    return count;
}

/* The last packet of an answer about sessions or messages: the log's extent in the session. */
static bool is_end_of_answer(const mdgw_packet *packet)
{
    return packet->flags & MDGW_HEARTBEAT && !(packet->flags & MDGW_SNAPSHOT_PACKET);
}

static extent extent_of(const mdgw_packet *packet)
{
    return (extent){true, packet->flags & MDGW_SESSION_ENDS, packet->first, packet->next};
}

/* --- Stream of items -------------------------------------------------------------------------------------------------- */

static mdgw_item item_of(const channel *channel, mdgw_item_kind kind)
{
    return (mdgw_item){.kind = kind, .channel = channel->number, .session = channel->session};
}

/* Delivers and counts. A start that waits for an image of the snapshot group delivers nothing of what is received. */
static void emit(const channel *channel, const mdgw_item *item)
{
    mdgw_receiver *receiver = channel->receiver;
    if (channel->withholds)
        return;
    receiver->counts.messages += item->kind == MDGW_ITEM_MESSAGE;
    receiver->counts.gap_messages += item->kind == MDGW_ITEM_GAP ? item->next - item->first : 0;
    receiver->counts.lost_messages += item->kind == MDGW_ITEM_LOST ? item->next - item->first : 0;
    receiver->deliver(receiver->user, item);
}

static void emit_records(const channel *channel, mdgw_item_kind kind, const mdgw_frame *frame, const uint8_t *body, size_t bytes)
{
    mdgw_item item = item_of(channel, kind);
    item.flags = frame->flags;
    item.record_count = frame->record_count;
    item.ts_in_delta = frame->ts_in_delta;
    item.sequence = frame->sequence;
    item.ts_recv = frame->ts_recv;
    item.body = body;
    item.body_bytes = bytes;
    emit(channel, &item);
}

static bool watches_books(const channel *channel)
{
    const mdgw_config *config = &channel->receiver->config;
    return (config->rebuilds_books && (config->services > 0 || config->has_snapshot_group)) || channel->phase == AWAIT_GROUP_IMAGE;
}

static void forget_messages(kept_messages *kept)
{
    kept->begin = kept->end = kept->count = kept->cost = 0;
    kept->wrap = kept->ring_bytes;
}

static void emit_books(const channel *channel, bool are_right)
{
    mdgw_item item = item_of(channel, MDGW_ITEM_BOOKS);
    item.has_right_books = are_right;
    emit(channel, &item);
}

/* The books may be wrong: what happened before `next` is not known, or not to the gateway. */
static void suspect_books_before(channel *channel, uint64_t next)
{
    if (!watches_books(channel))
        return;
    bool were_right = !channel->kept.are_books_suspect;
    forget_messages(&channel->kept);
    channel->kept.are_books_suspect = true;
    channel->kept.from = next;
    if (were_right)
        emit_books(channel, false);
}

/* The kept message at *at. *at is then the place of the next one. */
static kept_message read_kept(const kept_messages *kept, size_t *at, const uint8_t **body)
{
    kept_message message;
    memcpy(&message, kept->ring + *at, sizeof message);
    *body = kept->ring + *at + sizeof message;
    *at += sizeof message + message.body_bytes;
    if (*at == kept->wrap)
        *at = 0;
    return message;
}

static void forget_oldest(kept_messages *kept)
{
    const uint8_t *body;
    size_t before = kept->begin;
    kept_message message = read_kept(kept, &kept->begin, &body);
    if (kept->begin < before)
        kept->wrap = kept->ring_bytes;
    kept->count--;
    kept->cost -= KEPT_MESSAGE_BYTES + message.body_bytes;
    kept->from = message.sequence + 1;
}

/* A message was delivered, or is withheld. The ring is longer than the limit by the longest message, so it always has room: what is left
 * free at its end is less than that. */
static void keep_message(channel *channel, const mdgw_frame *frame, const uint8_t *body, size_t bytes)
{
    kept_messages *kept = &channel->kept;
    if (!kept->are_books_suspect)
        return;
    size_t limit = channel->receiver->config.rebuild_bytes_max, needed = sizeof(kept_message) + bytes;
    while (kept->count > 0 && kept->cost + KEPT_MESSAGE_BYTES + bytes > limit)
        forget_oldest(kept);
    if (KEPT_MESSAGE_BYTES + bytes > limit) {
        kept->from = frame->sequence + 1;
        return;
    }
    if (kept->count == 0)
        forget_messages(kept);
    if (kept->ring_bytes - kept->end < needed) {
        kept->wrap = kept->end;
        kept->end = 0;
    }
    kept_message message = {.sequence = frame->sequence,
                            .ts_recv = frame->ts_recv,
                            .ts_in_delta = frame->ts_in_delta,
                            .body_bytes = (uint32_t)bytes,
                            .record_count = frame->record_count,
                            .flags = frame->flags};
    memcpy(kept->ring + kept->end, &message, sizeof message);
    if (bytes > 0)
        memcpy(kept->ring + kept->end + sizeof message, body, bytes);
    kept->end += needed;
    kept->count++;
    kept->cost += KEPT_MESSAGE_BYTES + bytes;
}

static void begin_stream(channel *channel, mdgw_session session)
{
    channel->session = session;
    channel->has_session = true;
    channel->has_parts = channel->has_state = channel->has_snapshot = false;
    channel->has_session_end = channel->has_reported_end = false;
    channel->reported_through = 0;
    channel->kept.are_books_suspect = false;
    mdgw_item item = item_of(channel, MDGW_ITEM_SESSION);
    emit(channel, &item);
}

static void report_lost(channel *channel, uint64_t first, uint64_t next)
{
    first = max_u64(first, channel->reported_through);
    if (first >= next)
        return;
    channel->reported_through = next;
    mdgw_item item = item_of(channel, MDGW_ITEM_LOST);
    item.first = first;
    item.next = next;
    emit(channel, &item);
    suspect_books_before(channel, next);
}

static uint64_t message_after(uint64_t position) { return (position >> 16) + ((position & PART_MASK) != 0); }

static void report_end_if_reached(channel *channel)
{
    if (channel->has_reported_end || !channel->has_session_end || channel->expected == NOWHERE ||
        channel->expected < channel->session_end)
        return;
    channel->has_reported_end = true;
    mdgw_item item = item_of(channel, MDGW_ITEM_END);
    emit(channel, &item);
}

/* Frames that are not a function of the input: delivered when their content is new, whichever gateway sent them. */
static void on_out_of_sequence(channel *channel, const mdgw_frame *frame)
{
    if (frame->kind == MDGW_KIND_STATE) {
        bool is_new = !channel->has_state || channel->state != frame->body[0];
        channel->has_state = true;
        channel->state = frame->body[0];
        if (is_new && channel->state <= 6) {
            mdgw_item item = item_of(channel, MDGW_ITEM_STATE);
            item.state = channel->state;
            emit(channel, &item);
        }
    } else if (frame->kind == MDGW_KIND_SNAPSHOT) {
        bool is_old = channel->has_snapshot && (frame->sequence < channel->snapshot_sequence ||
                                                (frame->sequence == channel->snapshot_sequence && frame->part <= channel->snapshot_part));
        if (is_old)
            return;
        channel->has_snapshot = true;
        channel->snapshot_sequence = frame->sequence;
        channel->snapshot_part = frame->part;
        emit_records(channel, MDGW_ITEM_SNAPSHOT, frame, frame->body, frame->body_bytes);
    }
}

/* Adds a part. Returns whether the message is whole; *is_broken if its last part came and it is not. */
static bool join_part(channel *channel, const mdgw_frame *frame, bool *is_broken)
{
    if (frame->part == 0) {
        channel->whole = *frame;
        channel->whole.record_count = 0;
        channel->has_parts = true;
        channel->is_broken = false;
        channel->next_part = 0;
        channel->message_bytes = 0;
    }
    if (channel->has_parts && channel->whole.sequence == frame->sequence && frame->part == channel->next_part) {
        channel->next_part++;
        channel->whole.flags |= frame->flags;
        channel->whole.record_count = (uint16_t)min_u64((uint64_t)channel->whole.record_count + frame->record_count, UINT16_MAX);
        if (channel->message_bytes + frame->body_bytes > channel->receiver->config.message_bytes_max) {
            channel->is_broken = true;
        } else {
            memcpy(channel->message + channel->message_bytes, frame->body, frame->body_bytes);
            channel->message_bytes += frame->body_bytes;
        }
    } else {
        channel->is_broken = true;
    }
    *is_broken = false;
    if (!(frame->flags & MDGW_LAST_PART))
        return false;
    *is_broken = !channel->has_parts || channel->is_broken;
    channel->has_parts = false;
    channel->whole.flags |= MDGW_FIRST_PART | MDGW_LAST_PART;
    return !*is_broken;
}

static void on_message(channel *channel, const mdgw_frame *frame)
{
    const mdgw_frame *whole = frame;
    const uint8_t *body = frame->body;
    size_t bytes = frame->body_bytes;
    if (frame->sequence < channel->reported_through)
        return;
    if (is_part(frame)) {
        bool is_broken;
        if (!join_part(channel, frame, &is_broken)) {
            if (is_broken)
                report_lost(channel, frame->sequence, frame->sequence + 1);
            return;
        }
        whole = &channel->whole;
        body = channel->message;
        bytes = channel->message_bytes;
    }
    emit_records(channel, MDGW_ITEM_MESSAGE, whole, body, bytes);
    keep_message(channel, whole, body, bytes);
    channel->reported_through = frame->sequence + 1;
    if (whole->flags & MDGW_SUSPECT)
        suspect_books_before(channel, channel->reported_through);
}

/* The rest of a message in parts will not come. */
static void abandon_message(channel *channel)
{
    channel->has_parts = false;
    report_lost(channel, channel->whole.sequence, channel->whole.sequence + 1);
}

/* Something after a message is delivered, and its last part did not come: gateways with different packet sizes number the parts
 * differently. What follows must not be delivered before the loss is reported. */
static void abandon_message_before(channel *channel, uint64_t next)
{
    if (channel->has_parts && channel->whole.sequence < next)
        abandon_message(channel);
}

/* Delivers positions [from, until) of a packet. */
static void deliver_frames(channel *channel, const uint8_t *frames, size_t frames_bytes, uint64_t from, uint64_t until)
{
    size_t offset = 0;
    mdgw_frame frame;
    while (mdgw_next_frame(frames, frames_bytes, &offset, &frame)) {
        uint64_t position = frame.sequence << 16 | frame.part;
        if (frame.flags & MDGW_LATE_FILL)
            continue;
        if (frame.kind == MDGW_KIND_MESSAGE) {
            if (from <= position && position < until) {
                abandon_message_before(channel, frame.sequence);
                on_message(channel, &frame);
            }
        } else if (frame.kind == MDGW_KIND_GAP) {
            uint64_t first = max_u64(max_u64(load(frame.body, 8), from >> 16), channel->reported_through);
            uint64_t next = min_u64(load(frame.body + 8, 8), message_after(until));
            if (first >= next)
                continue;
            abandon_message_before(channel, first);
            channel->has_parts = false;
            channel->reported_through = next;
            mdgw_item item = item_of(channel, MDGW_ITEM_GAP);
            item.first = first;
            item.next = next;
            emit(channel, &item);
            suspect_books_before(channel, next);
        } else if (from <= position && position <= until) {
            on_out_of_sequence(channel, &frame);
        }
    }
    if ((until & PART_MASK) != 0)
        return;
    abandon_message_before(channel, until >> 16);
    /* Messages without output are covered by the range alone. */
    channel->reported_through = max_u64(channel->reported_through, until >> 16);
}

/* --- Arbitration: a reorder window of fixed size ---------------------------------------------------------------------- */

/* Positions restart with a session. */
static void begin_at(channel *channel, uint64_t expected)
{
    channel->expected = channel->frontier = expected;
    channel->fragment_count = 0;
    channel->free_count = channel->receiver->config.window_packets;
    for (size_t i = 0; i < channel->free_count; i++)
        channel->free_slots[i] = (uint32_t)i;
    memset(channel->jumps, 0, sizeof channel->jumps);
    channel->trailing_gap_since = 0;
    channel->has_request = false;
    channel->requested_through = channel->given_up_at = 0;
    channel->current_gap = (gap){0, 0, 0};
}

/* Index of the first fragment that ends after the position. */
static size_t index_of(const channel *channel, uint64_t position)
{
    size_t low = 0, high = channel->fragment_count;
    if (high > 0 && channel->fragments[high - 1].until <= position)
        return high;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (channel->fragments[middle].until <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first position from there on that is not held. *index: the fragment after it, or fragment_count. */
static uint64_t first_missing_from(const channel *channel, uint64_t position, size_t *index)
{
    for (*index = index_of(channel, position); *index < channel->fragment_count; ++*index) {
        if (channel->fragments[*index].from > position)
            return position;
        position = channel->fragments[*index].until;
    }
    return position;
}

static void deliver_front(channel *channel)
{
    fragment front = channel->fragments[0];
    memmove(channel->fragments, channel->fragments + 1, --channel->fragment_count * sizeof front);
    slot *slot = &channel->slots[front.slot];
    channel->expected = front.until;
    deliver_frames(channel, channel->held + front.slot * channel->receiver->config.packet_bytes_max, slot->frames_bytes, front.from,
                   front.until);
    if (--slot->fragments == 0)
        channel->free_slots[channel->free_count++] = front.slot;
}

static void deliver_connected(channel *channel)
{
    while (channel->fragment_count > 0 && channel->fragments[0].from == channel->expected)
        deliver_front(channel);
    channel->frontier = max_u64(channel->frontier, channel->expected);
}

/* Delivers a packet that begins at or before the expected position, with all connected held ones. */
static bool merge(channel *channel, const mdgw_packet *packet, uint64_t next, uint64_t now)
{
    bool is_any_new = false;
    while (channel->expected < next) {
        uint64_t until = channel->fragment_count > 0 ? min_u64(channel->fragments[0].from, next) : next;
        if (channel->expected < until) {
            uint64_t from = channel->expected;
            channel->expected = until;
            channel->frontier = max_u64(channel->frontier, until);
            is_any_new = true;
            deliver_frames(channel, packet->frames, packet->frames_bytes, from, until);
        }
        if (channel->fragment_count > 0 && channel->fragments[0].from == channel->expected && channel->expected < next)
            deliver_front(channel);
    }
    deliver_connected(channel);
    if (channel->fragment_count > 0)
        channel->fragments[0].gap_since = now;
    else
        channel->trailing_gap_since = now;
    return is_any_new;
}

/* Holds what is not held yet of a packet that begins after the expected position. The window has a free slot, or holds all of
 * the packet. Every border of a fragment is a border of a held packet, so n packets make at most 2n - 1 fragments. */
static bool hold(channel *channel, const mdgw_packet *packet, uint64_t first, uint64_t next, uint64_t now)
{
    uint64_t position = first;
    size_t index = index_of(channel, first);
    if (channel->free_count == 0)
        return false;
    uint32_t number = channel->free_slots[channel->free_count - 1];
    slot *slot = &channel->slots[number];
    slot->fragments = 0;
    while (position < next) {
        fragment *fragments = channel->fragments;
        uint64_t hole_end = index < channel->fragment_count ? min_u64(fragments[index].from, next) : next;
        if (position < hole_end) {
            if (index < channel->fragment_count)
                fragments[index].gap_since = now;
            memmove(fragments + index + 1, fragments + index, (channel->fragment_count++ - index) * sizeof *fragments);
            fragments[index++] = (fragment){position, hole_end, now, number};
            slot->fragments++;
            position = hole_end;
        }
        if (index >= channel->fragment_count || fragments[index].from >= next)
            break;
        position = max_u64(position, min_u64(fragments[index++].until, next));
    }
    bool is_any_new = slot->fragments > 0;
    if (is_any_new) {
        channel->free_count--;
        slot->frames_bytes = (uint32_t)packet->frames_bytes;
        memcpy(channel->held + number * channel->receiver->config.packet_bytes_max, packet->frames, packet->frames_bytes);
        if (channel->fragments[channel->fragment_count - 1].until == next)
            channel->trailing_gap_since = now;
    }
    channel->frontier = max_u64(channel->frontier, next);
    return is_any_new;
}

static void raise_frontier(channel *channel, uint64_t next, uint64_t now)
{
    uint64_t end = channel->fragment_count > 0 ? channel->fragments[channel->fragment_count - 1].until : channel->expected;
    if (end >= channel->frontier)
        channel->trailing_gap_since = now;
    channel->frontier = next;
}

/* The gap that blocks delivery; returns false if there is none. */
static bool front_gap(const channel *channel, gap *gap)
{
    gap->first = channel->expected;
    gap->next = channel->fragment_count > 0 ? channel->fragments[0].from : channel->frontier;
    uint64_t since = channel->fragment_count > 0 ? channel->fragments[0].gap_since : channel->trailing_gap_since;
    gap->due = plus(since, channel->receiver->config.gap_timeout_ns);
    return gap->first < gap->next;
}

/* Reports a gap that begins at the expected position as lost, and delivers what follows it. */
static void declare(channel *channel, uint64_t first, uint64_t next)
{
    channel->expected = next;
    /* Parts of a message at either end of the gap are useless without the missing ones. */
    channel->has_parts = false;
    report_lost(channel, first >> 16, message_after(next));
    deliver_connected(channel);
    if (channel->has_request && channel->request_next <= channel->expected)
        channel->has_request = false;
    channel->requested_through = max_u64(channel->requested_through, channel->expected);
}

static void declare_missing_before(channel *channel, uint64_t next, uint64_t now)
{
    gap gap;
    if (channel->expected == NOWHERE || next >= POSITION_END || next <= channel->expected)
        return;
    if (next > channel->frontier)
        raise_frontier(channel, next, now);
    while (front_gap(channel, &gap) && gap.first < next)
        declare(channel, gap.first, min_u64(gap.next, next));
}

/* A packet far ahead needs two more that continue it, on its line. One forged sequence must not make a gap. */
static bool is_jump(channel *channel, unsigned line, uint64_t first, uint64_t next)
{
    uint64_t known = max_u64(channel->frontier, channel->expected);
    if (first <= known || first - known <= channel->receiver->jump_max)
        return false;
    jump *jump = &channel->jumps[line];
    bool is_continued = jump->is_set && jump->next == first && jump->arrival + 1 == channel->arrivals[line];
    unsigned confirmations = is_continued ? jump->confirmations + 1 : 1;
    *jump = (struct jump){confirmations < 3, confirmations, next, channel->arrivals[line]};
    return confirmations < 3;
}

/* --- Requests for missing messages: one at a time --------------------------------------------------------------------- */

static bool has_space(const channel *channel)
{
    return channel->free_count >= channel->receiver->config.window_packets / 2;
}

/* The first gap from there on, and when its wait for another line ends. */
static bool pending_gap_from(const channel *channel, uint64_t position, gap *gap)
{
    size_t index;
    gap->first = first_missing_from(channel, max_u64(position, channel->expected), &index);
    bool is_trailing = index >= channel->fragment_count;
    gap->next = is_trailing ? channel->frontier : channel->fragments[index].from;
    gap->due = plus(is_trailing ? channel->trailing_gap_since : channel->fragments[index].gap_since,
                    channel->receiver->config.gap_timeout_ns);
    return gap->first < gap->next;
}

static bool first_gap_in(const channel *channel, uint64_t first, uint64_t next, gap *gap)
{
    if (!pending_gap_from(channel, first, gap))
        return false;
    gap->next = min_u64(gap->next, next);
    return gap->first < gap->next;
}

/* The next piece to request, and whether it continues a large gap. */
typedef struct planned {
    gap gap;
    uint64_t piece_next, due;
    bool is_continuation;
} planned;

static bool next_planned(const channel *channel, planned *planned)
{
    if (channel->has_request || !pending_gap_from(channel, channel->requested_through, &planned->gap))
        return false;
    planned->is_continuation = planned->gap.first < channel->current_gap.next;
    uint64_t bound = planned->is_continuation ? min_u64(planned->gap.next, channel->current_gap.next) : planned->gap.next;
    planned->piece_next = min_u64(plus(planned->gap.first, channel->receiver->request_max), bound);
    planned->due = planned->is_continuation ? channel->current_gap.due : planned->gap.due;
    return true;
}

static void issue(channel *channel, uint64_t first, uint64_t next, uint64_t attempt, uint64_t now)
{
    channel->has_request = channel->is_unsent = true;
    channel->request_first = first;
    channel->request_next = next;
    channel->attempt = attempt;
    channel->request_deadline = plus(now, channel->receiver->config.request_timeout_ns);
}

static void request_piece(channel *channel, const planned *planned, uint64_t now)
{
    if (!planned->is_continuation)
        channel->current_gap = (gap){planned->gap.first, planned->gap.next, now};
    issue(channel, planned->gap.first, planned->piece_next, 1, now);
    channel->requested_through = planned->piece_next;
}

static void request_continuations(channel *channel, uint64_t now)
{
    planned planned;
    if (next_planned(channel, &planned) && planned.is_continuation)
        request_piece(channel, &planned, now);
}

static void continue_request(channel *channel, bool is_end, uint64_t now)
{
    gap rest;
    if (!first_gap_in(channel, channel->request_first, channel->request_next, &rest))
        channel->has_request = false;
    else if (is_end && rest.first > channel->request_first)
        /* The answer brought something: the rest is requested at once. Otherwise the deadline decides. */
        issue(channel, rest.first, channel->request_next, 1, now);
}

static void requests_on_arrival(channel *channel, uint64_t first, uint64_t next, uint64_t now)
{
    size_t index;
    if (!channel->has_request && channel->requested_through >= channel->current_gap.next)
        return;
    channel->requested_through = first_missing_from(channel, max_u64(channel->requested_through, channel->expected), &index);
    if (channel->has_request && first < channel->request_next && channel->request_first < next)
        continue_request(channel, false, now);
    request_continuations(channel, now);
}

static void retry(channel *channel, uint64_t now)
{
    gap rest, behind;
    uint64_t first = channel->request_first, next = channel->request_next;
    if (!first_gap_in(channel, first, next, &rest)) {
        channel->has_request = false;
        return;
    }
    if (!has_space(channel) && rest.first > channel->expected) {
        /* An answer would be refused. */
        channel->request_deadline = plus(now, max_u64(channel->receiver->config.request_timeout_ns, 1));
        return;
    }
    uint64_t attempt = rest.first > first ? 1 : channel->attempt + 1;
    if (attempt <= max_u64(channel->receiver->config.attempts_max, 1)) {
        issue(channel, rest.first, next, attempt, now);
        return;
    }
    channel->given_up_at = now;
    if (first_gap_in(channel, rest.next, next, &behind)) {
        /* A later message has arrived, so the services answer. Other missing parts have their own attempts. */
        issue(channel, behind.first, next, 1, now);
        return;
    }
    channel->has_request = false;
    if (first >= channel->current_gap.first && rest.next >= next)
        channel->requested_through = max_u64(channel->requested_through, channel->current_gap.next);
}

/* The part of the first gap that nobody is left to fill. */
static bool given_up(const channel *channel, gap *gap)
{
    if (gap->first >= channel->requested_through)
        return false;
    if (!channel->has_request || channel->request_next <= gap->first)
        return true;
    gap->next = min_u64(gap->next, channel->request_first);
    return channel->request_first > gap->first;
}

static void requests_on_deadline(channel *channel, uint64_t now)
{
    planned planned;
    if (channel->has_request && channel->request_deadline <= now)
        retry(channel, now);
    while (next_planned(channel, &planned) && planned.due <= now)
        request_piece(channel, &planned, now);
}

static uint64_t gap_deadline(const channel *channel)
{
    gap gap;
    planned planned;
    if (channel->expected == channel->frontier || !front_gap(channel, &gap))
        return MDGW_NEVER;
    if (channel->receiver->config.services == 0)
        return gap.due;
    if (given_up(channel, &gap))
        return channel->given_up_at;
    uint64_t deadline = channel->has_request ? channel->request_deadline : MDGW_NEVER;
    return next_planned(channel, &planned) ? min_u64(deadline, planned.due) : deadline;
}

static void gaps_on_deadline(channel *channel, uint64_t now)
{
    gap gap;
    bool has_services = channel->receiver->config.services > 0;
    if (has_services)
        requests_on_deadline(channel, now);
    while (front_gap(channel, &gap) && (has_services ? given_up(channel, &gap) : gap.due <= now)) {
        declare(channel, gap.first, gap.next);
        if (has_services)
            requests_on_deadline(channel, now);
    }
}

static mdgw_reason arbitrate(channel *channel, unsigned line, const mdgw_packet *packet, uint64_t first, uint64_t next, uint64_t now)
{
    bool has_services = channel->receiver->config.services > 0;
    bool is_sized = next - first <= channel->receiver->jump_max;
    gap front;
    size_t index;
    channel->arrivals[line]++;
    if (first == channel->expected && channel->frontier == channel->expected && next < POSITION_END && is_sized) {
        channel->expected = channel->frontier = next;
        deliver_frames(channel, packet->frames, packet->frames_bytes, first, next);
        return MDGW_USED;
    }
    if (first == 0 || next >= POSITION_END)
        return MDGW_SEQUENCE_INVALID;
    if (!is_sized)
        return MDGW_LENGTH_MISMATCH;
    if (channel->expected == NOWHERE)
        channel->expected = channel->frontier = first;
    if (next <= channel->expected)
        return MDGW_DUPLICATE;
    if (is_jump(channel, line, first, next))
        return MDGW_SEQUENCE_JUMP;
    while (first > channel->expected && channel->free_count == 0 && first_missing_from(channel, first, &index) < next) {
        if (has_services || !front_gap(channel, &front)) {
            /* The service has it. */
            raise_frontier(channel, max_u64(next, channel->frontier), now);
            return MDGW_WINDOW_FULL;
        }
        declare(channel, front.first, min_u64(front.next, first));
    }
    if (next <= channel->expected)
        return MDGW_DUPLICATE;
    bool is_any_new = first > channel->expected ? hold(channel, packet, first, next, now) : merge(channel, packet, next, now);
    if (has_services)
        requests_on_arrival(channel, first, next, now);
    return is_any_new ? MDGW_USED : MDGW_DUPLICATE;
}

/* All positions before `next` exist. */
static mdgw_reason announce(channel *channel, unsigned line, uint64_t next, uint64_t now)
{
    channel->arrivals[line]++;
    if (next == 0 || next >= POSITION_END)
        return MDGW_SEQUENCE_INVALID;
    if (channel->expected == NOWHERE) {
        channel->expected = channel->frontier = next;
        return MDGW_USED;
    }
    /* At the start, and where a session that is left has ended, the services are asked for what may be far ahead. */
    bool is_asked_for = line == MDGW_SERVICE_LINE && channel->phase != RUNNING && channel->phase != AWAIT_GROUP_IMAGE;
    if (!is_asked_for && is_jump(channel, line, next, next))
        return MDGW_SEQUENCE_JUMP;
    if (next > channel->frontier)
        raise_frontier(channel, next, now);
    if (line == MDGW_SERVICE_LINE) {
        if (channel->has_request)
            continue_request(channel, true, now);
        request_continuations(channel, now);
    }
    return MDGW_USED;
}

/* --- Sessions and the start ------------------------------------------------------------------------------------------- */

static bool on_newer_session(channel *channel, mdgw_session session, const uint64_t *first, uint64_t now);

static void discard_image(snapshot *snapshot)
{
    snapshot->assembly.has_image = snapshot->has_progress = false;
}

static void reset_snapshot(snapshot *snapshot)
{
    discard_image(snapshot);
    snapshot->attempts = snapshot->waits = snapshot->images_left = 0;
    snapshot->leaves_image = snapshot->is_rebuild = false;
}

static void clear_group_image(group_image *group)
{
    group->assembly.has_image = group->is_complete = group->has_left = false;
}

static void clear_rebuild(channel *channel)
{
    reset_snapshot(&channel->snapshot);
    clear_group_image(&channel->group);
    channel->rebuild = (rebuild){.stage = BOOKS_RIGHT, .pause_ns = PAUSE_NS_MIN};
}

static void forget_kept(kept_messages *kept)
{
    forget_messages(kept);
    kept->are_books_suspect = false;
}

/* Before and after a start waits for an image of the group. */
static void forget_kept_and_images(channel *channel)
{
    forget_kept(&channel->kept);
    clear_rebuild(channel);
}

static void finish_channel(channel *channel)
{
    gap gap;
    if (channel->phase == AWAIT_GROUP_IMAGE) {
        /* No image came: nothing of the session is delivered. */
        forget_kept_and_images(channel);
        channel->receiver->counts.snapshots_unavailable++;
        return;
    }
    while (front_gap(channel, &gap))
        declare(channel, gap.first, gap.next);
    if (channel->has_parts)
        abandon_message(channel);
    report_end_if_reached(channel);
}

/* Whether the venue restarted within the trading date being followed. The session then has a first message. */
static bool is_same_day_restart(const channel *channel)
{
    return channel->has_previous_session && compare_days(&channel->previous_session, &channel->session) == 0;
}

static void start_at(channel *channel, uint64_t first)
{
    first = max_u64(first, 1);
    begin_at(channel, first << 16);
    channel->reported_through = first;
}

/* Behind the session's first message, the books before it are not known. */
static void start_without_state(channel *channel, uint64_t first)
{
    start_at(channel, first);
    if (first > 1)
        suspect_books_before(channel, first);
}

/* Ends the current session and begins the next one. */
static void switch_to(channel *channel, mdgw_session session)
{
    finish_channel(channel);
    if (channel->has_skipped && channel->expected == NOWHERE)
        report_lost(channel, channel->skipped_first, channel->skipped_next);
    channel->has_skipped = false;
    clear_extents(channel);
    clear_rebuild(channel);
    channel->has_previous_session = channel->has_session;
    channel->previous_session = channel->session;
    begin_stream(channel, session);
}

static void set_phase(channel *channel, phase phase, bool has_query, uint64_t now)
{
    channel->phase = phase;
    channel->query = (query){0};
    if (has_query)
        channel->query = new_query(channel->receiver, now);
}

/* Only the first session that a receiver follows: it receives the later ones from their beginning. */
static bool starts_with_snapshot(const channel *channel)
{
    return channel->receiver->config.start == MDGW_START_SNAPSHOT && !channel->has_previous_session;
}

/* Keeps messages from now on, until the snapshot group has sent a whole image. */
static void await_group_image(channel *channel, uint64_t now)
{
    forget_kept_and_images(channel);
    /* An image has what was skipped, or is of no use. */
    channel->has_skipped = false;
    set_phase(channel, AWAIT_GROUP_IMAGE, false, now);
    channel->group_start_until = plus(now, channel->receiver->config.snapshot_wait_ns_max);
}

/* Nothing of the session was delivered, and it begins anew. */
static void forget_group_start(channel *channel)
{
    forget_kept_and_images(channel);
    channel->has_parts = channel->has_state = channel->has_reported_end = false;
    channel->reported_through = 0;
    begin_at(channel, NOWHERE);
}

static void begin_session(channel *channel, mdgw_session session, const uint64_t *first, uint64_t now)
{
    switch_to(channel, session);
    begin_at(channel, NOWHERE);
    channel->has_next_session = false;
    bool is_from_start = first != NULL && *first <= 1;
    if (channel->receiver->config.services > 0 && !is_from_start) {
        set_phase(channel, QUERY_DEFINITIONS, true, now);
        channel->has_definitions_service = false;
        channel->next_definition = channel->requested_from = 0;
        channel->definition_count = 0;
        return;
    }
    if (is_from_start || is_same_day_restart(channel)) {
        start_at(channel, 1);
    } else if (channel->receiver->config.has_snapshot_group && starts_with_snapshot(channel)) {
        await_group_image(channel, now);
        return;
    }
    set_phase(channel, RUNNING, false, now);
}

/* The first packet of a session was observed. Earlier sessions in the logs are delivered before it. */
static void advance_to(channel *channel, mdgw_session session, const uint64_t *first, uint64_t now)
{
    mdgw_session from = channel->has_session ? channel->session : session;
    bool has_from = channel->has_session ? from.restart < UINT32_MAX : channel->receiver->config.start == MDGW_START_DAY;
    from.restart = channel->has_session ? from.restart + 1 : 0;
    if (channel->receiver->config.services == 0 || !has_from || compare_sessions(&from, &session) >= 0) {
        begin_session(channel, session, first, now);
        return;
    }
    clear_extents(channel);
    set_phase(channel, QUERY_SESSIONS, true, now);
    channel->sessions_from = from;
    channel->has_oldest = false;
    channel->next_session = session;
    channel->has_next_session = true;
}

/* Moves to the next session once all messages of the current one have arrived or been given up. */
static void close_when_complete(channel *channel, uint64_t now)
{
    if (channel->phase == CLOSING && channel->is_end_known && channel->expected == channel->frontier)
        advance_to(channel, channel->next_session, NULL, now);
}

/* The start is complete. A newer session observed meanwhile is next. */
static void start_running(channel *channel, uint64_t now)
{
    bool has_next = channel->has_next_session;
    channel->has_next_session = false;
    set_phase(channel, RUNNING, false, now);
    /* Nothing has checked the end that was received before the start: a log that goes further refutes it. */
    if (channel->expected != NOWHERE && channel->session_end < channel->frontier)
        channel->has_session_end = false;
    if (has_next)
        on_newer_session(channel, channel->next_session, NULL, now);
}

/* --- Snapshots: starts, and suspect books ----------------------------------------------------------------------------- */

static uint32_t add_to_crc32(uint32_t crc, const uint8_t *data, size_t length)
{
    static const uint32_t table[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                       0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    crc = ~crc;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

static bool is_there(const assembly *assembly, uint32_t number)
{
    return assembly->chunks[number].generation == assembly->generation;
}

/* The first missing chunks. Image 0 before the first chunk. A receiver that runs asks for one chunk first, since that says whether the
 * image is good enough. */
static void request_chunks(snapshot *snapshot, mdgw_request *request)
{
    assembly *assembly = &snapshot->assembly;
    snapshot->has_progress = snapshot->leaves_image = false;
    request->kind = MDGW_SNAPSHOT_CHUNKS;
    request->first = 0;
    request->next = snapshot->is_rebuild ? 1 : CHUNKS_PER_REQUEST;
    if (!assembly->has_image)
        return;
    while (assembly->first_missing < assembly->image.chunk_count && is_there(assembly, assembly->first_missing))
        assembly->first_missing++;
    uint32_t next = (uint32_t)min_u64((uint64_t)assembly->first_missing + CHUNKS_PER_REQUEST, assembly->image.chunk_count);
    /* Chunks behind the last one missing in the range have arrived. */
    while (next > assembly->first_missing && is_there(assembly, next - 1))
        next--;
    request->first = (uint64_t)assembly->image.number << 32 | assembly->first_missing;
    request->next = (uint64_t)assembly->image.number << 32 | next;
}

static mdgw_reason parse_chunk(const mdgw_packet *packet, image *image, uint32_t *number, mdgw_frame *frame)
{
    mdgw_frame head, surplus;
    size_t offset = 0;
    if (packet->flags != (MDGW_RETRANSMISSION | MDGW_SNAPSHOT_PACKET) ||
        !mdgw_next_frame(packet->frames, packet->frames_bytes, &offset, &head) ||
        !mdgw_next_frame(packet->frames, packet->frames_bytes, &offset, frame) ||
        mdgw_next_frame(packet->frames, packet->frames_bytes, &offset, &surplus) || head.kind != MDGW_KIND_SNAPSHOT_CHUNK ||
        frame->kind != MDGW_KIND_SNAPSHOT)
        return MDGW_PROTOCOL_MISMATCH;
    const uint8_t *body = head.body;
    *number = (uint32_t)load(body + 4, 4);
    *image = (struct image){
        .number = (uint32_t)load(body, 4),
        .chunk_count = (uint32_t)load(body + 8, 4),
        .checksum = (uint32_t)load(body + 12, 4),
        .record_count = load(body + 16, 8),
        .record_bytes = load(body + 24, 8),
        .order_count = load(body + 32, 8),
        .instrument_count = (uint32_t)load(body + 40, 4),
        .next = head.sequence,
        .is_suspect = head.flags & MDGW_SUSPECT,
    };
    bool is_empty = image->record_count == 0 && image->record_bytes == 0 && image->chunk_count == 1;
    bool is_sound = image->number != 0 && image->next > 0 && *number < image->chunk_count &&
                    (image->record_count >= image->chunk_count || is_empty) && image->record_bytes / 16 >= image->record_count &&
                    image->order_count <= image->record_count;
    /* Only an image without records has a chunk without records. */
    is_sound &= frame->body_bytes > 0 || image->record_bytes == 0;
    if (!is_sound || frame->sequence != head.sequence || packet->first != *number || packet->next != (uint64_t)*number + 1)
        return MDGW_FIELD_INVALID;
    return MDGW_USED;
}

static bool is_same_image(const image *a, const image *b)
{
    return a->number == b->number && a->chunk_count == b->chunk_count && a->checksum == b->checksum &&
           a->instrument_count == b->instrument_count && a->record_count == b->record_count && a->record_bytes == b->record_bytes &&
           a->order_count == b->order_count && a->next == b->next && a->is_suspect == b->is_suspect;
}

static size_t chunks_max(const mdgw_config *config) { return config->snapshot_bytes_max / CHUNK_BYTES_MIN + 1; }

static bool is_too_large(const mdgw_config *config, const image *image)
{
    return image->record_bytes > config->snapshot_bytes_max || image->chunk_count > chunks_max(config);
}

/* Discards what was collected, and begins with that image if it is not too large. */
static mdgw_reason begin_assembly(const mdgw_config *config, assembly *assembly, const image *image)
{
    assembly->has_image = false;
    if (is_too_large(config, image))
        return MDGW_WINDOW_FULL;
    if (++assembly->generation == 0) {
        memset(assembly->chunks, 0, chunks_max(config) * sizeof *assembly->chunks);
        assembly->generation = 1;
    }
    assembly->has_image = true;
    assembly->image = *image;
    assembly->record_bytes = assembly->record_count = 0;
    assembly->first_missing = 0;
    assembly->missing_count = image->chunk_count;
    return MDGW_USED;
}

/* Each service is asked for a snapshot without suspect books first. */
static mdgw_reason begin_image(channel *channel, const image *image, unsigned service)
{
    const mdgw_config *config = &channel->receiver->config;
    snapshot *snapshot = &channel->snapshot;
    bool is_left = snapshot->is_rebuild
                       ? image->is_suspect || image->next < snapshot->rebuilt_from
                       : image->is_suspect && (snapshot->leaves_image || snapshot->images_left + 1 < config->services);
    if (is_left) {
        /* Once per answer: its other chunks are refused too. */
        snapshot->images_left += !snapshot->leaves_image;
        snapshot->leaves_image = true;
        return MDGW_ANSWER_UNREQUESTED;
    }
    snapshot->attempts++;
    snapshot->service = service;
    return begin_assembly(config, &snapshot->assembly, image);
}

static mdgw_reason add_chunk(assembly *assembly, uint32_t number, const mdgw_frame *frame)
{
    if (is_there(assembly, number))
        return MDGW_DUPLICATE;
    if (assembly->record_bytes + frame->body_bytes > assembly->image.record_bytes)
        return MDGW_WINDOW_FULL;
    chunk *chunk = &assembly->chunks[number];
    *chunk = (struct chunk){.generation = assembly->generation,
                            .flags = frame->flags,
                            .body_bytes = frame->body_bytes,
                            .record_count = frame->record_count,
                            .ts_in_delta = frame->ts_in_delta,
                            .begin = (uint32_t)assembly->record_bytes,
                            .ts_recv = frame->ts_recv};
    memcpy(assembly->records + assembly->record_bytes, frame->body, frame->body_bytes);
    assembly->record_bytes += frame->body_bytes;
    assembly->record_count += frame->record_count;
    assembly->missing_count--;
    return MDGW_USED;
}

/* All chunks are there: whether they agree with the totals and the checksum. */
static bool is_whole(const assembly *assembly)
{
    uint32_t checksum = 0;
    for (uint32_t i = 0; i < assembly->image.chunk_count; i++)
        checksum = add_to_crc32(checksum, assembly->records + assembly->chunks[i].begin, assembly->chunks[i].body_bytes);
    return assembly->record_bytes == assembly->image.record_bytes && assembly->record_count == assembly->image.record_count &&
           checksum == assembly->image.checksum;
}

static void accept_snapshot_end(channel *channel, const mdgw_packet *packet, query *query, uint64_t now)
{
    snapshot *snapshot = &channel->snapshot;
    bool has_more = packet->first < packet->next;
    if (snapshot->assembly.has_image && snapshot->has_progress) {
        request_next_piece(channel->receiver, query, now);
    } else if (snapshot->assembly.has_image && !has_more && packet->next == 0) {
        /* The service has lost the image, as after a restart. */
        discard_image(snapshot);
        if (snapshot->attempts < IMAGES_MAX)
            request_next_piece(channel->receiver, query, now);
    } else if (!snapshot->assembly.has_image && has_more && packet->first == 0 && snapshot->waits < WAITS_MAX) {
        /* Not a chunk was sent: the service is about to take the snapshot. */
        snapshot->waits++;
        on_progress(channel->receiver, query, now);
    }
}

static void leave_group_image(group_image *group)
{
    group->left = group->assembly.image;
    group->has_left = true;
    group->assembly.has_image = group->is_complete = false;
}

/* Adds a chunk of the snapshot group. The image of which chunks were collected is left for another one: the rest of it comes no more. */
static mdgw_reason add_group_chunk(channel *channel, const image *image, uint32_t number, const mdgw_frame *frame, uint64_t now)
{
    group_image *group = &channel->group;
    assembly *assembly = &group->assembly;
    /* Nothing brings the messages between an older position and the first message kept. */
    if (image->is_suspect || image->next < channel->kept.from || (group->has_left && is_same_image(image, &group->left)))
        return MDGW_ANSWER_UNREQUESTED;
    if (assembly->has_image && !is_same_image(image, &assembly->image)) {
        /* A complete image needs nothing more. Another image has another number. */
        if (group->is_complete || image->number == assembly->image.number)
            return MDGW_ANSWER_UNREQUESTED;
        /* An image that can never be collected must not discard one that can. */
        if (is_too_large(&channel->receiver->config, image))
            return MDGW_WINDOW_FULL;
        leave_group_image(group);
    }
    mdgw_reason reason = assembly->has_image ? MDGW_USED : begin_assembly(&channel->receiver->config, assembly, image);
    if (reason == MDGW_USED)
        reason = add_chunk(assembly, number, frame);
    if (reason != MDGW_USED || assembly->missing_count > 0)
        return reason;
    if (!is_whole(assembly)) {
        /* Its next pass may be sound. */
        assembly->has_image = false;
        return MDGW_FIELD_INVALID;
    }
    group->is_complete = true;
    group->until = plus(now, COMPLETE_NS_MAX);
    return MDGW_USED;
}

/* Whether an image of the group is whole, and everything before its position was received. An image is discarded if not all messages
 * from its position on are kept any more, or if the stream has not come to its position in time. */
static bool is_group_image_ready(channel *channel, uint64_t now)
{
    group_image *group = &channel->group;
    const assembly *assembly = &group->assembly;
    if (!channel->kept.are_books_suspect || !assembly->has_image)
        return false;
    if (assembly->image.next < channel->kept.from || (group->is_complete && group->until <= now)) {
        leave_group_image(group);
        return false;
    }
    return group->is_complete && assembly->image.next <= channel->reported_through;
}

static void emit_snapshot(const channel *channel, const assembly *assembly)
{
    for (uint32_t i = 0; i < assembly->image.chunk_count; i++) {
        const chunk *chunk = &assembly->chunks[i];
        bool is_last = i + 1 == assembly->image.chunk_count;
        mdgw_frame frame = {.sequence = assembly->image.next,
                            .ts_recv = chunk->ts_recv,
                            .ts_in_delta = chunk->ts_in_delta,
                            .record_count = chunk->record_count,
                            .kind = MDGW_KIND_SNAPSHOT,
                            .flags = (uint8_t)((chunk->flags & ~(MDGW_FIRST_PART | MDGW_LAST_PART)) | (i == 0 ? MDGW_FIRST_PART : 0) |
                                               (is_last ? MDGW_LAST_PART : 0))};
        emit_records(channel, MDGW_ITEM_SNAPSHOT, &frame, assembly->records + chunk->begin, chunk->body_bytes);
    }
    channel->receiver->counts.snapshots++;
}

/* All chunks are there: delivers them, and continues with the message at their position. */
static void finish_snapshot(channel *channel, uint64_t now)
{
    uint64_t next = channel->snapshot.assembly.image.next;
    bool is_suspect = channel->snapshot.assembly.image.is_suspect, has_skipped = channel->has_skipped;
    emit_snapshot(channel, &channel->snapshot.assembly);
    reset_snapshot(&channel->snapshot);
    channel->has_skipped = false;
    start_at(channel, next);
    if (is_suspect)
        suspect_books_before(channel, next);
    /* What was published meanwhile is requested. A refusal shows as a loss when the session is left. */
    if (has_skipped && channel->skipped_next > next)
        announce(channel, MDGW_SERVICE_LINE, channel->skipped_next << 16, now);
    start_running(channel, now);
}

/* Processes a packet of an answer to the query. *is_complete: all chunks are there. */
static mdgw_reason add_snapshot_answer(channel *channel, const mdgw_packet *packet, unsigned service, query *query, uint64_t now,
                                       bool *is_complete)
{
    snapshot *snapshot = &channel->snapshot;
    assembly *assembly = &snapshot->assembly;
    *is_complete = false;
    if ((assembly->has_image && snapshot->service != service) || !(packet->flags & MDGW_SNAPSHOT_PACKET))
        return MDGW_ANSWER_UNREQUESTED;
    if (packet->flags & MDGW_HEARTBEAT) {
        accept_snapshot_end(channel, packet, query, now);
        return MDGW_USED;
    }
    image image;
    uint32_t number;
    mdgw_frame frame;
    mdgw_reason reason = parse_chunk(packet, &image, &number, &frame);
    if (reason == MDGW_USED && !assembly->has_image)
        reason = begin_image(channel, &image, service);
    if (reason == MDGW_USED)
        reason = is_same_image(&image, &assembly->image) ? add_chunk(assembly, number, &frame) : MDGW_ANSWER_UNREQUESTED;
    if (reason != MDGW_USED)
        return reason;
    if (assembly->missing_count > 0) {
        snapshot->has_progress = true;
        on_progress(channel->receiver, query, now);
        return MDGW_USED;
    }
    *is_complete = is_whole(assembly);
    if (*is_complete)
        return MDGW_USED;
    discard_image(snapshot);
    if (snapshot->attempts < IMAGES_MAX)
        request_next_piece(channel->receiver, query, now);
    return MDGW_FIELD_INVALID;
}

static mdgw_reason accept_snapshot_answer(channel *channel, const mdgw_packet *packet, unsigned service, uint64_t now)
{
    bool is_complete;
    mdgw_reason reason = add_snapshot_answer(channel, packet, service, &channel->query, now, &is_complete);
    if (is_complete)
        finish_snapshot(channel, now);
    return reason;
}

/* No service went on with its snapshot: another one is asked, or the session is delivered from the logs. */
static void restart_snapshot(channel *channel, uint64_t now)
{
    bool had_image = channel->snapshot.assembly.has_image;
    discard_image(&channel->snapshot);
    if (had_image && channel->snapshot.attempts < IMAGES_MAX) {
        set_phase(channel, QUERY_SNAPSHOT, true, now);
        return;
    }
    if (channel->receiver->config.has_snapshot_group && !channel->has_next_session) {
        await_group_image(channel, now);
        return;
    }
    channel->receiver->counts.snapshots_unavailable++;
    clear_extents(channel);
    set_phase(channel, QUERY_EXTENT, true, now);
}

/* Delivers the messages kept, from that one on. */
static void emit_kept(const channel *channel, mdgw_item_kind kind, uint64_t first)
{
    size_t at = channel->kept.begin;
    for (size_t i = 0; i < channel->kept.count; i++) {
        const uint8_t *body;
        kept_message message = read_kept(&channel->kept, &at, &body);
        mdgw_frame frame = {.sequence = message.sequence,
                            .ts_recv = message.ts_recv,
                            .ts_in_delta = message.ts_in_delta,
                            .record_count = message.record_count,
                            .flags = message.flags};
        if (message.sequence >= first)
            emit_records(channel, kind, &frame, body, message.body_bytes);
    }
}

/* What a program must know besides messages, after a start that delivered nothing. */
static void emit_state_and_end(const channel *channel)
{
    mdgw_item item = item_of(channel, MDGW_ITEM_STATE);
    item.state = channel->state;
    if (channel->has_state && channel->state <= 6)
        emit(channel, &item);
    item = item_of(channel, MDGW_ITEM_END);
    if (channel->has_reported_end)
        emit(channel, &item);
}

/* Delivers the image of the snapshot group and the messages behind it, if the image is whole. Without one in time, a receiver with a
 * service reads the session from the logs. One without begins with the oldest message kept. */
static void start_with_group_image(channel *channel, uint64_t now)
{
    const mdgw_config *config = &channel->receiver->config;
    kept_messages *kept = &channel->kept;
    if (is_group_image_ready(channel, now)) {
        emit_snapshot(channel, &channel->group.assembly);
        emit_kept(channel, MDGW_ITEM_MESSAGE, channel->group.assembly.image.next);
        forget_kept_and_images(channel);
    } else if (now < channel->group_start_until) {
        return;
    } else if (config->services > 0) {
        channel->receiver->counts.snapshots_unavailable++;
        forget_group_start(channel);
        clear_extents(channel);
        set_phase(channel, QUERY_EXTENT, true, now);
        return;
    } else {
        bool are_suspect = config->rebuilds_books && kept->are_books_suspect && kept->from > 1;
        channel->receiver->counts.snapshots_unavailable++;
        clear_rebuild(channel);
        if (are_suspect)
            emit_books(channel, false);
        emit_kept(channel, MDGW_ITEM_MESSAGE, 0);
        if (!are_suspect)
            forget_kept(kept);
    }
    emit_state_and_end(channel);
    start_running(channel, now);
}

/* Suspect books of a receiver that runs. Messages are delivered all the time.
 *
 *   loss, gap, suspect message at s          image without suspect books, position p >= s
 *         |                                              |
 *   right +-> suspect --pause--> one chunk is requested --+-> all chunks --> complete --delivered up to p--> right
 *                ^                     | suspect, too old, no answer                |
 *                +---- pause x 2 <-----+------------ lost, or another loss <--------+
 *
 * An image of the snapshot group is collected at the same time, without a request. Whichever image is whole first is used.
 */
static mdgw_reason accept_rebuild_answer(channel *channel, const mdgw_packet *packet, unsigned service, uint64_t now)
{
    rebuild *rebuild = &channel->rebuild;
    bool is_complete;
    if (channel->phase != RUNNING || rebuild->stage != REBUILD_QUERYING)
        return MDGW_DUPLICATE; /* what was requested before */
    mdgw_reason reason = add_snapshot_answer(channel, packet, service, &rebuild->query, now, &is_complete);
    if (is_complete) {
        rebuild->stage = REBUILD_COMPLETE;
        rebuild->until = plus(now, COMPLETE_NS_MAX);
    }
    return reason;
}

static uint64_t rebuild_deadline(const channel *channel)
{
    const rebuild *rebuild = &channel->rebuild;
    uint64_t group_deadline = channel->group.is_complete ? channel->group.until : MDGW_NEVER;
    if (channel->phase == AWAIT_GROUP_IMAGE)
        return min_u64(group_deadline, channel->group_start_until);
    if (channel->phase != RUNNING)
        return MDGW_NEVER;
    if (rebuild->stage == BOOKS_RIGHT)
        return group_deadline;
    return min_u64(group_deadline, rebuild->stage == REBUILD_QUERYING ? rebuild->query.deadline : rebuild->until);
}

static void pause_rebuild(channel *channel, uint64_t now)
{
    rebuild *rebuild = &channel->rebuild;
    channel->receiver->counts.rebuilds_refused++;
    reset_snapshot(&channel->snapshot);
    rebuild->stage = REBUILD_WAITING;
    rebuild->until = plus(now, rebuild->pause_ns);
    rebuild->pause_ns = min_u64(2 * rebuild->pause_ns, PAUSE_NS_MAX);
}

/* Delivers the snapshot, and the messages behind it that were delivered before. */
static void finish_rebuild(channel *channel, const assembly *assembly, uint64_t now)
{
    rebuild *rebuild = &channel->rebuild;
    emit_snapshot(channel, assembly);
    emit_kept(channel, MDGW_ITEM_REPEATED, assembly->image.next);
    channel->kept.are_books_suspect = false;
    channel->receiver->counts.books_rebuilt++;
    emit_books(channel, true);
    reset_snapshot(&channel->snapshot);
    clear_group_image(&channel->group);
    /* The pause stays longer for a while: a loss that recurs at once must not cause a snapshot each time. */
    rebuild->pause_ns = min_u64(2 * rebuild->pause_ns, PAUSE_NS_MAX);
    rebuild->stage = BOOKS_RIGHT;
    rebuild->was_rebuilt = true;
    rebuild->right_since = now;
}

/* Follows the stream and the clock: after each packet and each deadline, but not while a session is left. */
static void advance_rebuild(channel *channel, uint64_t now)
{
    rebuild *rebuild = &channel->rebuild;
    snapshot *snapshot = &channel->snapshot;
    const mdgw_config *config = &channel->receiver->config;
    /* Each service twice: those without right books are asked again after the pause. */
    uint64_t attempts_max = min_u64(max_u64(2 * (uint64_t)config->services, REBUILD_ATTEMPTS_MIN), max_u64(config->attempts_max, 1));
    if (!channel->kept.are_books_suspect || channel->phase != RUNNING)
        return;
    if (is_group_image_ready(channel, now)) {
        finish_rebuild(channel, &channel->group.assembly, now);
        return;
    }
    if (config->services == 0)
        return;
    /* Another loss behind the image, or too many messages since. */
    if (snapshot->assembly.has_image && snapshot->assembly.image.next < channel->kept.from)
        pause_rebuild(channel, now);
    switch (rebuild->stage) {
    case BOOKS_RIGHT:
        if (rebuild->was_rebuilt && now >= plus(rebuild->right_since, PAUSE_NS_MAX))
            rebuild->pause_ns = PAUSE_NS_MIN;
        rebuild->stage = REBUILD_WAITING;
        rebuild->until = plus(now, rebuild->pause_ns);
        break;
    case REBUILD_WAITING:
        if (rebuild->until > now)
            break;
        reset_snapshot(snapshot);
        snapshot->is_rebuild = true;
        snapshot->rebuilt_from = channel->kept.from;
        rebuild->stage = REBUILD_QUERYING;
        rebuild->query = new_query(channel->receiver, now);
        break;
    case REBUILD_QUERYING:
        if (rebuild->query.deadline <= now)
            ask_next(channel->receiver, &rebuild->query, now);
        if (rebuild->query.attempt > attempts_max)
            pause_rebuild(channel, now);
        break;
    case REBUILD_COMPLETE:
        if (snapshot->assembly.image.next <= channel->reported_through)
            finish_rebuild(channel, &snapshot->assembly, now);
        else if (rebuild->until <= now)
            /* The stream does not come to the image's position, be it that no such position exists. */
            pause_rebuild(channel, now);
        break;
    }
}

static void after_definitions(channel *channel, uint64_t now)
{
    const mdgw_config *config = &channel->receiver->config;
    if (config->services > 0 && starts_with_snapshot(channel)) {
        reset_snapshot(&channel->snapshot);
        set_phase(channel, QUERY_SNAPSHOT, true, now);
        return;
    }
    if (channel->has_previous_session || channel->receiver->config.start != MDGW_START_LIVE) {
        clear_extents(channel);
        set_phase(channel, QUERY_EXTENT, true, now);
    } else {
        channel->has_skipped = false;
        start_running(channel, now);
    }
}

static bool is_query_satisfied(const channel *channel)
{
    /* The chunks of a snapshot say when it is complete. */
    if (!channel->query.is_active || channel->phase == QUERY_SNAPSHOT)
        return false;
    if (channel->phase == QUERY_SESSIONS && !channel->has_oldest && channel->has_session && !any_final(channel))
        return false;
    /* A session is left only when a service knows where it ended. */
    if (channel->phase == CLOSING && !any_final(channel))
        return false;
    unsigned reported = reported_count(channel);
    return reported == channel->receiver->config.services || (reported > 0 && has_asked_enough(channel->receiver, &channel->query));
}

/* Continues with the answers received, if any. */
static void finish_query(channel *channel, uint64_t now)
{
    if (channel->phase == QUERY_SNAPSHOT) {
        restart_snapshot(channel, now);
        return;
    }
    mdgw_counts *counts = &channel->receiver->counts;
    uint64_t first, next;
    bool is_final = any_final(channel);
    counts->starts_unanswered += reported_count(channel) == 0;
    counts->definitions_incomplete += channel->phase == QUERY_DEFINITIONS && reported_count(channel) < channel->receiver->config.services;
    unsigned known = extent_range(channel, &first, &next);
    switch (channel->phase) {
    case QUERY_SESSIONS:
        if (!channel->has_oldest) {
            counts->sessions_incomplete += channel->has_session && !is_final;
            begin_session(channel, channel->next_session, NULL, now);
            break;
        }
        switch_to(channel, channel->oldest);
        start_without_state(channel, is_same_day_restart(channel) || known == 0 ? 1 : first);
        set_phase(channel, CLOSING, !is_final, now);
        channel->is_end_known = is_final;
        announce(channel, MDGW_SERVICE_LINE, (known == 0 ? 1 : next) << 16, now);
        break;
    case QUERY_DEFINITIONS:
        after_definitions(channel, now);
        break;
    case QUERY_EXTENT:
        if (is_same_day_restart(channel))
            start_without_state(channel, 1);
        else if (known > 0)
            start_without_state(channel, first);
        /* A refusal shows as a loss when the session is left, and live packets carry the same range. */
        if (known > 0)
            announce(channel, MDGW_SERVICE_LINE, next << 16, now);
        start_running(channel, now);
        break;
    case CLOSING:
        counts->sessions_incomplete += !is_final;
        set_phase(channel, CLOSING, false, now);
        channel->is_end_known = true;
        break;
    case IDLE:
    case QUERY_SNAPSHOT:
    case AWAIT_GROUP_IMAGE:
    case RUNNING:
        break;
    }
    close_when_complete(channel, now);
}

static void on_extent_reported(channel *channel, bool is_first_report, uint64_t now)
{
    if (is_query_satisfied(channel))
        finish_query(channel, now);
    else if (channel->query.is_active && is_first_report)
        ask_next(channel->receiver, &channel->query, now);
}

/* A packet of a newer session arrived, at *first if it begins a message. Returns whether the session begins here. */
static bool on_newer_session(channel *channel, mdgw_session session, const uint64_t *first, uint64_t now)
{
    bool is_newest = !channel->has_next_session || compare_sessions(&session, &channel->next_session) > 0;
    bool has_more = channel->expected != NOWHERE && !channel->has_reported_end;
    switch (channel->phase) {
    case QUERY_DEFINITIONS:
    case QUERY_SNAPSHOT:
    case QUERY_EXTENT:
    case CLOSING:
        if (is_newest)
            channel->next_session = session;
        channel->has_next_session = true;
        close_when_complete(channel, now);
        break;
    case AWAIT_GROUP_IMAGE:
        /* Images of the present session come no more, and nothing of it was delivered. */
        channel->receiver->counts.snapshots_unavailable++;
        forget_group_start(channel);
        if (channel->receiver->config.services > 0) {
            clear_extents(channel);
            set_phase(channel, QUERY_EXTENT, true, now);
            channel->next_session = session;
            channel->has_next_session = true;
            break;
        }
        set_phase(channel, IDLE, false, now);
        channel->has_session = false;
        begin_session(channel, session, first, now);
        break;
    case RUNNING:
        if (channel->receiver->config.services > 0 && has_more) {
            clear_extents(channel);
            /* If the end was received, only the messages missing before it are requested. */
            channel->is_end_known = channel->has_session_end;
            set_phase(channel, CLOSING, !channel->is_end_known, now);
            channel->next_session = session;
            channel->has_next_session = true;
            break;
        }
        advance_to(channel, session, first, now);
        break;
    default:
        advance_to(channel, session, first, now);
    }
    return channel->has_session && compare_sessions(&channel->session, &session) == 0;
}

/* Processes an answer about sessions. The oldest ended session before the next one is delivered first. */
static void accept_session_answer(channel *channel, const mdgw_packet *packet, unsigned service, uint64_t now)
{
    const mdgw_session *session = &packet->session;
    /* Any other packet answers an earlier query. */
    if (!is_end_of_answer(packet) || compare_sessions(session, &channel->sessions_from) < 0)
        return;
    bool is_before_next = compare_sessions(session, &channel->next_session) < 0;
    bool is_in_log = is_before_next && packet->next >= 1;
    if (is_in_log && (!channel->has_oldest || compare_sessions(session, &channel->oldest) < 0)) {
        /* The services that reported before hold nothing of this session. */
        for (unsigned i = 0; i < MDGW_SERVICES_MAX; i++)
            channel->extents[i] = (extent){.is_reported = channel->extents[i].is_reported};
        channel->oldest = *session;
        channel->has_oldest = true;
    }
    extent reported = {.is_reported = true};
    if (is_in_log && compare_sessions(session, &channel->oldest) == 0) {
        reported = extent_of(packet);
    } else {
        /* A log that has the next session has nothing in between. Restart counts follow each other, so on the same day it
         * lacks a session that exists. */
        bool lacks_session = compare_days(&channel->sessions_from, &channel->next_session) == 0;
        reported.is_final = !channel->has_oldest && !is_before_next && !lacks_session;
    }
    bool is_first_report = report_extent(channel, service, reported);
    on_extent_reported(channel, is_first_report, now);
}

/* Each log may lack definitions that another one has. Those beyond the number remembered may come again. */
static bool is_new_definition(channel *channel, uint64_t sequence)
{
    size_t low = 0, high = channel->definition_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (channel->definitions[middle] < sequence)
            low = middle + 1;
        else
            high = middle;
    }
    uint64_t *place = channel->definitions + low;
    if (low < channel->definition_count && *place == sequence)
        return false;
    if (channel->definition_count < DEFINITIONS_MAX) {
        memmove(place + 1, place, (channel->definition_count++ - low) * sizeof *place);
        *place = sequence;
    }
    return true;
}

static void accept_start_answer(channel *channel, const mdgw_packet *packet, unsigned service, uint64_t now)
{
    bool is_snapshot = packet->flags & MDGW_SNAPSHOT_PACKET;
    if (channel->phase == QUERY_EXTENT) {
        if (is_end_of_answer(packet)) {
            bool is_first_report = report_extent(channel, service, extent_of(packet));
            on_extent_reported(channel, is_first_report, now);
        }
    } else if (service >= channel->receiver->config.services || channel->extents[service].is_reported ||
               (channel->has_definitions_service && channel->definitions_service != service)) {
        /* An answer of another service than the one that is asked, or of one that has sent everything. */
    } else if (is_snapshot && packet->flags & MDGW_HEARTBEAT) {
        if (packet->first == packet->next && packet->first <= channel->next_definition) {
            channel->has_definitions_service = false;
            channel->next_definition = channel->requested_from = 0;
            bool is_first_report = report_extent(channel, service, (extent){.is_reported = true});
            on_extent_reported(channel, is_first_report, now);
        } else if (channel->next_definition > channel->requested_from) {
            /* A limit shortened the answer, or a part was lost: the next piece. Without progress the deadline decides. */
            request_next_piece(channel->receiver, &channel->query, now);
        }
    } else if (is_snapshot && packet->first == channel->next_definition && packet->next - packet->first == packet->frame_count) {
        /* Another order, or a duplicate, is resolved by the index of the next request. */
        size_t offset = 0;
        mdgw_frame frame;
        channel->has_definitions_service = true;
        channel->definitions_service = service;
        channel->next_definition = packet->next;
        channel->query.deadline = plus(now, channel->receiver->config.request_timeout_ns);
        while (mdgw_next_frame(packet->frames, packet->frames_bytes, &offset, &frame)) {
            if (!is_new_definition(channel, frame.sequence))
                continue;
            /* A service that only ever sends its beginning must not be asked for ever. */
            channel->query.attempt = 1;
            emit_records(channel, MDGW_ITEM_DEFINITION, &frame, frame.body, frame.body_bytes);
        }
    }
}

static mdgw_reason accept_running(channel *channel, const mdgw_packet *packet, unsigned line, unsigned service, uint64_t now)
{
    bool is_answer = line == MDGW_SERVICE_LINE, is_snapshot = packet->flags & MDGW_SNAPSHOT_PACKET;
    if (is_answer && is_snapshot)
        return accept_rebuild_answer(channel, packet, service, now);
    uint64_t first = packet->first << 16, next = packet->next << 16;
    if (packet->has_part) {
        uint64_t own = packet->part_sequence << 16 | packet->part;
        first = packet->part > 0 ? own : first;
        if (!packet->is_last_part) {
            if (packet->part == UINT16_MAX)
                return MDGW_FIELD_INVALID;
            next = own + 1;
        }
    }
    if (is_snapshot && first != next)
        return MDGW_SEQUENCE_INVALID;
    bool is_answer_end = is_answer && is_end_of_answer(packet), is_first_report = false;
    if (is_answer_end && !channel->query.is_active && !channel->has_request)
        return MDGW_DUPLICATE; /* nobody asked, or what was asked for has arrived meanwhile */
    if (is_answer_end) {
        uint64_t oldest, newest;
        is_first_report = report_extent(channel, service, extent_of(packet));
        if (packet->next == 0) {
            /* That log has nothing of the session, so there is no position to announce. */
            on_extent_reported(channel, is_first_report, now);
            close_when_complete(channel, now);
            return MDGW_USED;
        }
        /* No service can deliver an earlier sequence. A log that is empty may still receive entries. Only what is known to exist
         * is lost: whether there is more, a single answer does not say. */
        if (extent_range(channel, &oldest, &newest) == channel->receiver->config.services)
            declare_missing_before(channel, min_u64(oldest << 16, channel->frontier), now);
    }
    /* A late joiner cannot begin in the middle of a message. */
    if (channel->expected == NOWHERE) {
        uint64_t begin = message_after(first) << 16;
        begin_at(channel, begin);
        channel->reported_through = begin >> 16;
        if (begin >> 16 > 1 || channel->phase == AWAIT_GROUP_IMAGE)
            suspect_books_before(channel, begin >> 16);
    }
    mdgw_reason reason;
    if (first < next && !is_answer_end) {
        reason = arbitrate(channel, line, packet, first, next, now);
    } else {
        reason = announce(channel, line, next, now);
        size_t offset = 0;
        mdgw_frame frame;
        if (reason == MDGW_USED && channel->expected != NOWHERE && channel->expected <= next)
            while (mdgw_next_frame(packet->frames, packet->frames_bytes, &offset, &frame))
                on_out_of_sequence(channel, &frame);
    }
    /* A refused packet ends nothing, and neither does one that others have passed. The end of an answer says that its service knows
     * the session's end, not that the venue has ended the session. */
    bool is_used = reason == MDGW_USED || reason == MDGW_DUPLICATE;
    if (packet->flags & MDGW_SESSION_ENDS && !is_answer_end && is_used && packet->next << 16 >= channel->frontier) {
        channel->has_session_end = true;
        channel->session_end = packet->next << 16;
    }
    report_end_if_reached(channel);
    if (is_answer_end)
        on_extent_reported(channel, is_first_report, now);
    close_when_complete(channel, now);
    return reason;
}

static mdgw_reason accept_packet(channel *channel, const mdgw_packet *packet, unsigned line, unsigned service, uint64_t now)
{
    bool is_answer = line == MDGW_SERVICE_LINE;
    if (channel->phase == QUERY_SESSIONS) {
        if (is_answer)
            accept_session_answer(channel, packet, service, now);
        else if (compare_sessions(&packet->session, &channel->next_session) > 0)
            channel->next_session = packet->session;
        return MDGW_USED;
    }
    if (!channel->has_session || compare_sessions(&channel->session, &packet->session) != 0) {
        if (is_answer)
            return MDGW_ANSWER_UNREQUESTED;
        if (channel->has_session && compare_sessions(&packet->session, &channel->session) < 0)
            return MDGW_SESSION_STALE;
        bool is_uncut = !packet->has_part || packet->part == 0;
        if (!on_newer_session(channel, packet->session, is_uncut ? &packet->first : NULL, now))
            return MDGW_USED;
    }
    if (channel->phase == AWAIT_GROUP_IMAGE) {
        channel->withholds = true;
        mdgw_reason reason = accept_running(channel, packet, line, service, now);
        channel->withholds = false;
        start_with_group_image(channel, now);
        return reason;
    }
    if (channel->phase == RUNNING || channel->phase == CLOSING) {
        mdgw_reason reason = accept_running(channel, packet, line, service, now);
        advance_rebuild(channel, now);
        return reason;
    }
    if ((channel->phase == QUERY_DEFINITIONS || channel->phase == QUERY_EXTENT) && is_answer) {
        accept_start_answer(channel, packet, service, now);
        return MDGW_USED;
    }
    if (channel->phase == QUERY_SNAPSHOT && is_answer)
        return accept_snapshot_answer(channel, packet, service, now);
    if (packet->flags & MDGW_SESSION_ENDS) {
        channel->has_session_end = true;
        channel->session_end = packet->next << 16;
    }
    channel->skipped_first = channel->has_skipped ? min_u64(channel->skipped_first, packet->first) : packet->first;
    channel->skipped_next = channel->has_skipped ? max_u64(channel->skipped_next, packet->next) : packet->next;
    channel->has_skipped = true;
    return MDGW_USED;
}

/* Whether chunks of the snapshot group are of use now. */
static bool collects_group_image(const channel *channel)
{
    return (channel->phase == AWAIT_GROUP_IMAGE || channel->phase == RUNNING) && channel->receiver->config.has_snapshot_group &&
           channel->kept.are_books_suspect;
}

/* Whether the snapshot group is needed now, or will be when the first packet of the channel comes. */
static bool needs_group(const channel *channel)
{
    const mdgw_config *config = &channel->receiver->config;
    bool will_start_with_it = channel->phase == IDLE && config->start == MDGW_START_SNAPSHOT && config->services == 0;
    return will_start_with_it || channel->phase == AWAIT_GROUP_IMAGE || collects_group_image(channel);
}

/* Processes a chunk of the snapshot group whose epoch is believed. */
static mdgw_reason accept_group_chunk(channel *channel, const mdgw_session *session, const image *image, uint32_t number,
                                      const mdgw_frame *frame, uint64_t now)
{
    int order = compare_sessions(session, &channel->session);
    /* The lines say when a session begins. */
    if (order != 0)
        return order < 0 ? MDGW_SESSION_STALE : MDGW_ANSWER_UNREQUESTED;
    mdgw_reason reason = add_group_chunk(channel, image, number, frame, now);
    if (reason == MDGW_USED && channel->phase == AWAIT_GROUP_IMAGE)
        start_with_group_image(channel, now);
    else if (reason == MDGW_USED)
        advance_rebuild(channel, now);
    return reason;
}

static uint64_t channel_deadline(const channel *channel)
{
    uint64_t query = channel->query.is_active ? channel->query.deadline : rebuild_deadline(channel);
    return min_u64(gap_deadline(channel), query);
}

static void channel_on_deadline(channel *channel, uint64_t now)
{
    channel->withholds = channel->phase == AWAIT_GROUP_IMAGE;
    gaps_on_deadline(channel, now);
    report_end_if_reached(channel);
    channel->withholds = false;
    if (channel->phase == AWAIT_GROUP_IMAGE) {
        start_with_group_image(channel, now);
        return;
    }
    bool is_given_up = channel->query.is_active && !query_on_deadline(channel->receiver, &channel->query, now);
    if (is_given_up || is_query_satisfied(channel))
        finish_query(channel, now);
    close_when_complete(channel, now);
    advance_rebuild(channel, now);
}

static bool channel_request(channel *channel, mdgw_request *request)
{
    *request = (mdgw_request){
        .kind = MDGW_RANGE, .channel = channel->number, .has_session = channel->has_session, .session = channel->session};
    if (take_due(&channel->query)) {
        if (channel->phase == QUERY_SNAPSHOT) {
            request_chunks(&channel->snapshot, request);
            return true;
        }
        request->first = channel->expected == NOWHERE ? 0 : channel->expected >> 16;
        if (channel->phase == QUERY_SESSIONS) {
            request->kind = MDGW_SESSIONS;
            request->has_session = true;
            request->session = channel->sessions_from;
            request->first = 0;
        } else if (channel->phase == QUERY_DEFINITIONS) {
            request->kind = MDGW_DEFINITIONS;
            /* Without progress the next service is asked, from its first definition on. */
            if (channel->next_definition == channel->requested_from) {
                channel->has_definitions_service = false;
                channel->next_definition = 0;
            }
            request->first = channel->requested_from = channel->next_definition;
        }
        request->next = request->first;
        return true;
    }
    if (channel->phase == RUNNING && channel->rebuild.stage == REBUILD_QUERYING && take_due(&channel->rebuild.query)) {
        request_chunks(&channel->snapshot, request);
        return true;
    }
    if (!channel->has_request || !channel->is_unsent)
        return false;
    channel->is_unsent = false;
    request->first = channel->request_first >> 16;
    request->next = message_after(channel->request_next);
    return true;
}

/* --- Epochs ----------------------------------------------------------------------------------------------------------- */

static bool are_rivals(const mdgw_receiver *receiver, uint64_t one, uint64_t other)
{
    one >>= 8;
    other >>= 8;
    return (one > other ? one - other : other - one) > receiver->config.epoch_jump_max;
}

/* Whether an epoch is within a bounded step of the highest accepted or the vouched one. */
static mdgw_reason check_epoch(const mdgw_receiver *receiver, uint64_t epoch)
{
    if (receiver->has_highest && epoch < receiver->highest)
        return MDGW_EPOCH_STALE;
    if (receiver->has_highest || receiver->has_vouched) {
        uint64_t known = max_u64(receiver->has_highest ? receiver->highest : 0, receiver->has_vouched ? receiver->vouched : 0);
        if (are_rivals(receiver, known, epoch))
            return epoch < known ? MDGW_EPOCH_STALE : MDGW_EPOCH_JUMP;
    }
    return MDGW_USED;
}

static mdgw_reason filter_epoch(mdgw_receiver *receiver, uint64_t epoch)
{
    mdgw_reason reason = check_epoch(receiver, epoch);
    if (reason == MDGW_USED) {
        receiver->has_highest = true;
        receiver->highest = epoch;
    }
    return reason;
}

/* Lines and services show epochs before anything else is believed. */
static bool has_believed_epoch(const mdgw_receiver *receiver)
{
    return receiver->epoch_phase == WATCHING || receiver->epoch_phase == VOUCHED;
}

static void fail_epochs(mdgw_receiver *receiver, uint64_t one, uint64_t other, bool is_contradicted)
{
    if (receiver->epoch_phase == ASKING)
        receiver->counts.refused[MDGW_EPOCH_UNCONFIRMED] += receiver->start_packets;
    receiver->epoch_phase = FAILED;
    receiver->epoch_query.is_active = false;
    receiver->rivals = (mdgw_rivals){min_u64(one, other), max_u64(one, other), is_contradicted};
}

/* Without room a packet is refused. The service has it: it is requested like any missing packet. */
static mdgw_reason hold_start(mdgw_receiver *receiver, uint64_t epoch, unsigned line, const uint8_t *data, size_t length, uint64_t now)
{
    receiver->last_arrival = now;
    receiver->lowest_held = receiver->has_span ? min_u64(receiver->lowest_held, epoch) : epoch;
    receiver->highest_held = receiver->has_span ? max_u64(receiver->highest_held, epoch) : epoch;
    receiver->has_span = true;
    size_t needed = START_ENTRY_BYTES + length;
    /* The limit counts datagrams alone, and the memory has room for the entries of the smallest ones. */
    if (receiver->start_data_bytes + length > receiver->config.start_bytes_max)
        return MDGW_WINDOW_FULL;
    uint8_t *entry = receiver->start + receiver->start_bytes;
    /* The packet may lie in the same memory, at or behind its new place: see release_held. */
    memmove(entry + START_ENTRY_BYTES, data, length);
    entry[0] = (uint8_t)line;
    store(entry + 1, length, 4);
    receiver->start_bytes += needed;
    receiver->start_data_bytes += length;
    receiver->start_packets++;
    return MDGW_USED;
}

static mdgw_reason ask_and_hold(mdgw_receiver *receiver, const mdgw_packet *packet, unsigned line, const uint8_t *data, size_t length,
                                uint64_t now, bool *is_held)
{
    receiver->epoch_phase = ASKING;
    receiver->epoch_query = new_query(receiver, now);
    receiver->query_channel = packet->channel;
    receiver->query_session = packet->session;
    receiver->has_span = receiver->is_released = false;
    receiver->start_bytes = receiver->start_data_bytes = 0;
    receiver->start_packets = 0;
    *is_held = true;
    return hold_start(receiver, packet->epoch, line, data, length, now);
}

/* A packet of the published lines. */
static mdgw_reason admit(mdgw_receiver *receiver, const mdgw_packet *packet, unsigned line, const uint8_t *data, size_t length,
                         uint64_t now, bool *is_held)
{
    mdgw_reason reason;
    *is_held = false;
    switch (receiver->epoch_phase) {
    case EPOCH_IDLE:
        if (receiver->config.services > 0)
            return ask_and_hold(receiver, packet, line, data, length, now, is_held);
        receiver->epoch_phase = WATCHING;
        receiver->until = plus(now, receiver->config.start_window_ns);
        receiver->last_accepted = now;
        return filter_epoch(receiver, packet->epoch);
    case ASKING:
        *is_held = true;
        return hold_start(receiver, packet->epoch, line, data, length, now);
    case WATCHING:
        reason = filter_epoch(receiver, packet->epoch);
        if (reason == MDGW_USED) {
            receiver->last_accepted = now;
            return reason;
        }
        bool is_watched = now <= receiver->until || now - receiver->last_accepted >= receiver->config.start_window_ns;
        if (!receiver->has_highest || !are_rivals(receiver, receiver->highest, packet->epoch) || !is_watched)
            return reason;
        if (receiver->config.services > 0)
            return ask_and_hold(receiver, packet, line, data, length, now, is_held);
        fail_epochs(receiver, receiver->highest, packet->epoch, false);
        return MDGW_EPOCH_UNCONFIRMED;
    case VOUCHED:
        reason = filter_epoch(receiver, packet->epoch);
        /* The receiver may have been cut off for many terms. */
        if (reason == MDGW_EPOCH_JUMP && !receiver->epoch_query.is_active && now - receiver->asked_at >= EPOCH_QUERY_INTERVAL_NS) {
            receiver->epoch_query = new_query(receiver, now);
            receiver->asked_at = now;
            receiver->query_channel = packet->channel;
            receiver->query_session = packet->session;
        }
        return reason;
    default:
        return MDGW_EPOCH_UNCONFIRMED;
    }
}

/* A service names the highest epoch that it knows. */
static mdgw_reason on_epoch_answer(mdgw_receiver *receiver, const mdgw_packet *packet, uint64_t now)
{
    if (packet->first != receiver->nonce || packet->next != receiver->nonce || packet->epoch == 0)
        return MDGW_FIELD_INVALID;
    if (receiver->epoch_phase == EPOCH_IDLE || receiver->epoch_phase == FAILED)
        return MDGW_FIELD_INVALID;
    if (receiver->epoch_phase != VOUCHED && receiver->has_highest && are_rivals(receiver, receiver->highest, packet->epoch)) {
        fail_epochs(receiver, receiver->highest, packet->epoch, true);
        return MDGW_EPOCH_UNCONFIRMED;
    }
    receiver->vouched = receiver->has_vouched ? max_u64(receiver->vouched, packet->epoch) : packet->epoch;
    receiver->has_vouched = true;
    if (receiver->epoch_phase == ASKING) {
        receiver->is_released = true;
    } else {
        receiver->epoch_phase = VOUCHED;
        receiver->epoch_query.is_active = false;
        receiver->asked_at = now;
    }
    return MDGW_USED;
}

static bool held_rivals(const mdgw_receiver *receiver, uint64_t *lowest, uint64_t *highest)
{
    if (!receiver->has_span)
        return false;
    uint64_t accepted = receiver->has_highest ? receiver->highest : receiver->lowest_held;
    *lowest = min_u64(receiver->lowest_held, accepted);
    *highest = max_u64(receiver->highest_held, accepted);
    return are_rivals(receiver, *lowest, *highest);
}

static void epochs_on_deadline(mdgw_receiver *receiver, uint64_t now)
{
    query *query = &receiver->epoch_query;
    uint64_t lowest, highest;
    if (!query->is_active || query->deadline > now)
        return;
    bool is_given_up = !query_on_deadline(receiver, query, now);
    if (receiver->epoch_phase == VOUCHED) {
        query->is_active = !is_given_up;
    } else if (!held_rivals(receiver, &lowest, &highest)) {
        receiver->is_released = is_given_up || has_asked_enough(receiver, query);
    } else if (is_given_up) {
        fail_epochs(receiver, lowest, highest, false);
    }
}

/* --- Receiver --------------------------------------------------------------------------------------------------------- */

mdgw_config mdgw_default_config(void)
{
    return (mdgw_config){
        .group = 1,
        .channels_max = 64,
        .lines = 1,
        .packet_bytes_max = 1472,
        .window_packets = 256,
        .gap_timeout_ns = 2000000,
        .request_timeout_ns = 50000000,
        .attempts_max = 10,
        .unanswered_rounds_max = 2,
        .messages_per_request_max = 10000,
        .epoch_jump_max = 1000,
        .start_window_ns = UINT64_C(3000000000),
        .start_bytes_max = (size_t)16 << 20,
        .sequence_jump_max = UINT64_C(1) << 24,
        .message_bytes_max = (size_t)1 << 16,
        .snapshot_bytes_max = (size_t)64 << 20,
        .rebuild_bytes_max = (size_t)32 << 20,
        .snapshot_wait_ns_max = UINT64_C(120000000000),
    };
}

static void *allocate(mdgw_receiver *receiver, size_t count, size_t bytes)
{
    void *memory = calloc(count > 0 ? count : 1, bytes);
    if (memory)
        receiver->blocks[receiver->block_count++] = memory;
    return memory;
}

static void begin_channel(mdgw_receiver *receiver, size_t index, uint16_t number)
{
    channel *channel = &receiver->channels[index];
    channel->number = number;
    begin_at(channel, NOWHERE);
    clear_rebuild(channel);
}

mdgw_receiver *mdgw_receiver_new(const mdgw_config *config, mdgw_deliver *deliver, void *user)
{
    if (config->lines < 1 || config->lines > MDGW_LINES_MAX || config->services > MDGW_SERVICES_MAX || config->channels_max < 1 ||
        config->channels_max > 65536 || config->window_packets < 64 || config->window_packets > 32768 ||
        config->tag_key_count > MDGW_TAG_KEYS_MAX || config->packet_bytes_max < MDGW_PACKET_HEADER_BYTES ||
        config->packet_bytes_max > 65535 || config->message_bytes_max > CONFIGURED_BYTES_MAX ||
        config->start_bytes_max > CONFIGURED_BYTES_MAX || config->snapshot_bytes_max > CONFIGURED_BYTES_MAX ||
        config->rebuild_bytes_max > CONFIGURED_BYTES_MAX ||
        /* Anybody could forge the answer about the epoch. */
        (config->services > 0 && config->epoch_nonce >> 18 == 0)) {
        errno = EINVAL;
        return NULL;
    }
    mdgw_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return NULL;
    size_t channels = config->channels_max, packets = config->window_packets;
    receiver->config = *config;
    receiver->deliver = deliver;
    receiver->user = user;
    receiver->jump_max = min_u64(max_u64(config->sequence_jump_max, 1), UINT64_C(1) << 40) << 16;
    receiver->request_max = min_u64(max_u64(config->messages_per_request_max, 1), UINT64_C(1) << 40) << 16;
    receiver->nonce = config->epoch_nonce >> 18;
    receiver->selections_max = 2 * (channels + 1);
    size_t start_bytes = config->services > 0 ? config->start_bytes_max : 0;
    start_bytes += start_bytes / MDGW_PACKET_HEADER_BYTES * START_ENTRY_BYTES + START_ENTRY_BYTES;
    uint8_t *held = allocate(receiver, channels * packets, config->packet_bytes_max);
    uint8_t *messages = allocate(receiver, channels, config->message_bytes_max + 1);
    fragment *fragments = allocate(receiver, channels * packets * 2, sizeof *fragments);
    slot *slots = allocate(receiver, channels * packets, sizeof *slots);
    uint32_t *free_slots = allocate(receiver, channels * packets, sizeof *free_slots);
    receiver->channels = allocate(receiver, channels, sizeof *receiver->channels);
    receiver->selections = allocate(receiver, receiver->selections_max, sizeof *receiver->selections);
    receiver->start = allocate(receiver, start_bytes, 1);
    receiver->channel_filter = allocate(receiver, channels, sizeof *receiver->channel_filter);
    uint64_t *definitions = allocate(receiver, config->services > 0 ? channels * DEFINITIONS_MAX : 0, sizeof *definitions);
    bool takes_images = config->rebuilds_books || config->start == MDGW_START_SNAPSHOT;
    bool requests_images = takes_images && config->services > 0, collects_images = takes_images && config->has_snapshot_group;
    /* An image of the group is collected beside one that is requested. */
    size_t record_bytes = requests_images ? config->snapshot_bytes_max + 1 : 1, chunk_count = requests_images ? chunks_max(config) : 0;
    size_t group_bytes = collects_images ? config->snapshot_bytes_max + 1 : 1, group_chunk_count = collects_images ? chunks_max(config) : 0;
    uint8_t *records = allocate(receiver, channels, record_bytes), *group_records = allocate(receiver, channels, group_bytes);
    chunk *chunks = allocate(receiver, channels * chunk_count, sizeof *chunks);
    chunk *group_chunks = allocate(receiver, channels * group_chunk_count, sizeof *group_chunks);
    /* Longer than the limit by the longest message, see keep_message. */
    size_t longest = sizeof(kept_message) + (size_t)max_u64(config->message_bytes_max, config->packet_bytes_max);
    bool keeps_messages = collects_images || (config->rebuilds_books && config->services > 0);
    size_t ring_bytes = keeps_messages ? config->rebuild_bytes_max + longest : 1;
    uint8_t *rings = allocate(receiver, channels, ring_bytes);
    if (receiver->block_count < sizeof receiver->blocks / sizeof receiver->blocks[0]) {
        mdgw_receiver_free(receiver);
        errno = ENOMEM;
        return NULL;
    }
    for (size_t i = 0; i < channels; i++) {
        channel *channel = &receiver->channels[i];
        channel->receiver = receiver;
        channel->held = held + i * packets * config->packet_bytes_max;
        channel->message = messages + i * (config->message_bytes_max + 1);
        channel->fragments = fragments + i * packets * 2;
        channel->slots = slots + i * packets;
        channel->free_slots = free_slots + i * packets;
        channel->snapshot.assembly.records = records + i * record_bytes;
        channel->snapshot.assembly.chunks = chunks + i * chunk_count;
        channel->group.assembly.records = group_records + i * group_bytes;
        channel->group.assembly.chunks = group_chunks + i * group_chunk_count;
        channel->kept.ring = rings + i * ring_bytes;
        channel->kept.ring_bytes = ring_bytes;
        channel->definitions = config->services > 0 ? definitions + i * DEFINITIONS_MAX : definitions;
    }
    if (config->channels) {
        memcpy(receiver->channel_filter, config->channels, channels * sizeof *config->channels);
        receiver->channel_count = channels;
        for (size_t i = 0; i < channels; i++)
            begin_channel(receiver, i, config->channels[i]);
    }
    for (size_t i = 0; i < config->tag_key_count; i++)
        tag_key_begin(&receiver->keys[i], config->tag_keys[i]);
    /* Both are copied. */
    receiver->config.channels = config->channels ? receiver->channel_filter : NULL;
    receiver->config.tag_keys = NULL;
    return receiver;
}

void mdgw_receiver_free(mdgw_receiver *receiver)
{
    if (!receiver)
        return;
    for (size_t i = 0; i < receiver->block_count; i++)
        free(receiver->blocks[i]);
    free(receiver);
}

static uint64_t request_nonce(const mdgw_receiver *receiver, unsigned service) { return receiver->config.request_nonce + service; }

static mdgw_reason check_tag(const mdgw_receiver *receiver, const uint64_t *nonce, const uint8_t *data, size_t length, bool is_tagged)
{
    if (receiver->config.tag_key_count == 0)
        return MDGW_USED;
    if (!is_tagged)
        return receiver->config.accepts_untagged ? MDGW_USED : MDGW_TAG_MISSING;
    for (size_t i = 0; i < receiver->config.tag_key_count; i++) {
        uint8_t tag[MDGW_TAG_BYTES], difference = 0;
        make_tag(&receiver->keys[i], nonce, data, length - MDGW_TAG_BYTES, tag);
        /* The same time for every tag. */
        for (unsigned j = 0; j < MDGW_TAG_BYTES; j++)
            difference |= tag[j] ^ data[length - MDGW_TAG_BYTES + j];
        if (difference == 0)
            return MDGW_USED;
    }
    return MDGW_TAG_INVALID;
}

static channel *find_channel(mdgw_receiver *receiver, uint16_t number)
{
    for (size_t i = 0; i < receiver->channel_count; i++)
        if (receiver->channels[i].number == number)
            return &receiver->channels[i];
    return NULL;
}

/* Processes a packet of an epoch that is believed. */
static mdgw_reason accept_believed(mdgw_receiver *receiver, const mdgw_packet *packet, unsigned line, unsigned service, uint64_t now)
{
    channel *channel = find_channel(receiver, packet->channel);
    if (!channel) {
        if (receiver->config.channels || receiver->channel_count >= receiver->config.channels_max)
            return MDGW_CHANNEL_UNKNOWN;
        begin_channel(receiver, receiver->channel_count, packet->channel);
        channel = &receiver->channels[receiver->channel_count++];
    }
    return accept_packet(channel, packet, line, service, now);
}

/* Processes the packets that waited for the decision on the epoch, if it was made. One that has to wait again is written over
 * those that were read. */
static void release_held(mdgw_receiver *receiver, uint64_t now)
{
    if (receiver->epoch_phase != ASKING || !receiver->is_released)
        return;
    size_t end = receiver->start_bytes;
    receiver->is_released = receiver->has_span = false;
    receiver->start_bytes = receiver->start_data_bytes = 0;
    receiver->start_packets = 0;
    receiver->epoch_query.is_active = false;
    receiver->epoch_phase = receiver->has_vouched ? VOUCHED : WATCHING;
    receiver->asked_at = receiver->last_accepted = now;
    receiver->until = plus(now, receiver->config.start_window_ns);
    for (size_t at = 0; at < end;) {
        unsigned line = receiver->start[at];
        size_t length = (size_t)load(receiver->start + at + 1, 4);
        const uint8_t *data = receiver->start + at + START_ENTRY_BYTES;
        at += START_ENTRY_BYTES + length;
        mdgw_packet packet;
        bool is_held = false;
        if (mdgw_parse_packet(data, length, &packet) != MDGW_USED)
            continue;
        mdgw_reason reason = admit(receiver, &packet, line, data, length, now, &is_held);
        if (reason == MDGW_USED && !is_held)
            reason = accept_believed(receiver, &packet, line, 0, now);
        receiver->counts.refused[reason] += reason != MDGW_USED;
    }
}

static mdgw_reason accept_datagram(mdgw_receiver *receiver, unsigned line, unsigned service, const uint8_t *data, size_t length,
                                   uint64_t now)
{
    mdgw_packet packet;
    mdgw_reason reason = mdgw_parse_packet(data, length, &packet);
    if (reason != MDGW_USED)
        return reason;
    if (packet.group != receiver->config.group)
        return MDGW_CHANNEL_UNKNOWN;
    bool is_answer = line == MDGW_SERVICE_LINE, is_retransmission = packet.flags & MDGW_RETRANSMISSION;
    uint64_t nonce = request_nonce(receiver, service);
    reason = check_tag(receiver, is_answer ? &nonce : NULL, data, length, packet.is_tagged);
    if (reason != MDGW_USED)
        return reason;
    /* On the published lines, a new leader repeats what the previous one may not have sent. The end of an answer is not valid
     * there. */
    bool is_allowed = is_answer ? is_retransmission : !is_retransmission || !(packet.flags & MDGW_HEARTBEAT);
    size_t bytes_max = receiver->config.packet_bytes_max + (packet.is_tagged ? MDGW_TAG_BYTES : 0);
    if (!is_allowed || length > bytes_max)
        return MDGW_PROTOCOL_MISMATCH;
    if (is_answer && packet.flags == EPOCH_ANSWER) {
        reason = on_epoch_answer(receiver, &packet, now);
        release_held(receiver, now);
        return reason;
    }
    if (receiver->config.channels && !find_channel(receiver, packet.channel))
        return MDGW_CHANNEL_UNKNOWN;
    if (is_answer) {
        reason = has_believed_epoch(receiver) ? filter_epoch(receiver, packet.epoch) : MDGW_EPOCH_UNCONFIRMED;
    } else {
        bool is_held;
        reason = admit(receiver, &packet, line, data, length, now, &is_held);
        if (is_held)
            return reason;
    }
    return reason == MDGW_USED ? accept_believed(receiver, &packet, line, service, now) : reason;
}

mdgw_reason mdgw_receiver_accept(mdgw_receiver *receiver, unsigned line, unsigned service, const uint8_t *data, size_t length,
                                 uint64_t now)
{
    /* A probe by which a gateway on this host checks its own group. */
    if (line != MDGW_SERVICE_LINE && length == 8 && memcmp(data, "MDGP", 4) == 0 && memcmp(data + 5, "\0\0", 3) == 0)
        return MDGW_USED;
    receiver->counts.packets++;
    bool is_line = line < receiver->config.lines || (line == MDGW_SERVICE_LINE && service < receiver->config.services);
    mdgw_reason reason = is_line ? accept_datagram(receiver, line, service, data, length, now) : MDGW_SOURCE_UNEXPECTED;
    receiver->counts.refused[reason] += reason != MDGW_USED;
    return reason;
}

static mdgw_reason accept_from_group(mdgw_receiver *receiver, const uint8_t *data, size_t length, uint64_t now)
{
    mdgw_packet packet;
    mdgw_reason reason = mdgw_parse_packet(data, length, &packet);
    if (reason != MDGW_USED)
        return reason;
    if (packet.group != receiver->config.group)
        return MDGW_CHANNEL_UNKNOWN;
    /* Lines say which channels there are, and of which session. Most receivers need nothing of the group most of the time. */
    channel *channel = find_channel(receiver, packet.channel);
    if (!channel || !collects_group_image(channel))
        return MDGW_USED;
    if (length > receiver->config.packet_bytes_max + (packet.is_tagged ? MDGW_TAG_BYTES : 0))
        return MDGW_PROTOCOL_MISMATCH;
    reason = check_tag(receiver, NULL, data, length, packet.is_tagged);
    image image;
    uint32_t number;
    mdgw_frame frame;
    if (reason == MDGW_USED)
        reason = parse_chunk(&packet, &image, &number, &frame);
    /* A chunk does not raise the epoch of the lines: packets of the former leader may still wait in their sockets. */
    if (reason == MDGW_USED)
        reason = has_believed_epoch(receiver) ? check_epoch(receiver, packet.epoch) : MDGW_EPOCH_UNCONFIRMED;
    if (reason == MDGW_USED && packet.epoch < receiver->group_epoch)
        reason = MDGW_EPOCH_STALE;
    if (reason != MDGW_USED)
        return reason;
    receiver->group_epoch = packet.epoch;
    return accept_group_chunk(channel, &packet.session, &image, number, &frame, now);
}

mdgw_reason mdgw_receiver_accept_from_snapshot_group(mdgw_receiver *receiver, const uint8_t *data, size_t length, uint64_t now)
{
    mdgw_reason reason = accept_from_group(receiver, data, length, now);
    receiver->counts.packets++;
    receiver->counts.refused[reason] += reason != MDGW_USED;
    return reason;
}

bool mdgw_receiver_needs_snapshot_group(const mdgw_receiver *receiver)
{
    const mdgw_config *config = &receiver->config;
    if (!config->has_snapshot_group)
        return false;
    bool needs = receiver->channel_count == 0 && config->start == MDGW_START_SNAPSHOT && config->services == 0;
    for (size_t i = 0; i < receiver->channel_count && !needs; i++)
        needs = needs_group(&receiver->channels[i]);
    return needs;
}

uint64_t mdgw_receiver_next_deadline(const mdgw_receiver *receiver)
{
    uint64_t deadline = receiver->epoch_query.is_active ? receiver->epoch_query.deadline : MDGW_NEVER;
    for (size_t i = 0; i < receiver->channel_count; i++)
        deadline = min_u64(deadline, channel_deadline(&receiver->channels[i]));
    return deadline;
}

void mdgw_receiver_on_deadline(mdgw_receiver *receiver, uint64_t now)
{
    epochs_on_deadline(receiver, now);
    release_held(receiver, now);
    for (size_t i = 0; i < receiver->channel_count; i++)
        if (channel_deadline(&receiver->channels[i]) <= now)
            channel_on_deadline(&receiver->channels[i], now);
}

/* A service that answers is kept; a repeated request goes to the next one. Requests for messages and queries for log extents
 * alternate, so each has its own turn. */
static unsigned select_service(mdgw_receiver *receiver, const mdgw_request *request)
{
    channel *asking = request->kind == MDGW_SNAPSHOT_CHUNKS ? find_channel(receiver, request->channel) : NULL;
    if (asking) {
        /* Only the service that has the image can send the rest of it. */
        snapshot *snapshot = &asking->snapshot;
        if (snapshot->has_asked && request->first >> 32 == 0)
            snapshot->asked_service = (snapshot->asked_service + 1) % receiver->config.services;
        snapshot->has_asked = true;
        return snapshot->asked_service;
    }
    selection *selection = NULL;
    bool is_range = request->first < request->next;
    for (size_t i = 0; i < receiver->selection_count && !selection; i++)
        if (receiver->selections[i].channel == request->channel && receiver->selections[i].is_range == is_range)
            selection = &receiver->selections[i];
    if (!selection) {
        /* Only queries for the epoch name channels beyond the table, and share its last entry. */
        receiver->selection_count += receiver->selection_count < receiver->selections_max;
        selection = &receiver->selections[receiver->selection_count - 1];
        *selection = (struct selection){.is_range = is_range, .channel = request->channel};
    }
    /* A query for definitions that begins again goes to the next one too: each is asked for all that its log has. */
    bool begins_again = request->kind == MDGW_DEFINITIONS && request->first == 0;
    bool is_repeated = selection->has_last && selection->kind == request->kind &&
                       (selection->first == request->first || begins_again) &&
                       compare_sessions(&selection->session, &request->session) == 0;
    if (is_repeated)
        selection->service = (selection->service + 1) % receiver->config.services;
    selection->has_last = true;
    selection->kind = request->kind;
    selection->session = request->session;
    selection->first = request->first;
    return selection->service;
}

bool mdgw_receiver_poll_request(mdgw_receiver *receiver, unsigned *service, uint8_t data[MDGW_REQUEST_BYTES])
{
    mdgw_request request;
    bool is_due = take_due(&receiver->epoch_query);
    if (is_due)
        request = (mdgw_request){.kind = MDGW_EPOCH, .channel = receiver->query_channel, .has_session = true,
                                 .session = receiver->query_session, .first = receiver->nonce, .next = receiver->nonce};
    for (size_t i = 0; i < receiver->channel_count && !is_due; i++) {
        receiver->turn = (receiver->turn + 1) % receiver->channel_count;
        is_due = channel_request(&receiver->channels[receiver->turn], &request);
    }
    if (!is_due)
        return false;
    *service = select_service(receiver, &request);
    request.group = receiver->config.group;
    request.nonce = request_nonce(receiver, *service);
    mdgw_write_request(&request, data);
    return true;
}

void mdgw_receiver_finish(mdgw_receiver *receiver)
{
    if (receiver->epoch_phase == ASKING) {
        uint64_t lowest, highest;
        if (held_rivals(receiver, &lowest, &highest))
            fail_epochs(receiver, lowest, highest, false);
        else
            receiver->is_released = true;
        release_held(receiver, receiver->last_arrival);
    }
    for (size_t i = 0; i < receiver->channel_count; i++)
        finish_channel(&receiver->channels[i]);
}

const mdgw_rivals *mdgw_receiver_rivals(const mdgw_receiver *receiver)
{
    return receiver->epoch_phase == FAILED ? &receiver->rivals : NULL;
}

mdgw_counts mdgw_receiver_counts(const mdgw_receiver *receiver) { return receiver->counts; }

/* --- Entries of a log ------------------------------------------------------------------------------------------------- */

struct mdgw_entries {
    struct mdgw_receiver receiver; /* counts and callback alone */
    channel channel;
};

mdgw_entries *mdgw_entries_new(uint16_t number, size_t message_bytes_max, mdgw_deliver *deliver, void *user)
{
    if (message_bytes_max > CONFIGURED_BYTES_MAX) {
        errno = EINVAL;
        return NULL;
    }
    mdgw_entries *entries = calloc(1, sizeof *entries);
    uint8_t *message = malloc(message_bytes_max + 1);
    if (!entries || !message) {
        free(entries);
        free(message);
        errno = ENOMEM;
        return NULL;
    }
    entries->receiver.deliver = deliver;
    entries->receiver.user = user;
    entries->receiver.config.message_bytes_max = message_bytes_max;
    entries->channel.receiver = &entries->receiver;
    entries->channel.number = number;
    entries->channel.message = message;
    entries->channel.expected = NOWHERE;
    return entries;
}

void mdgw_entries_free(mdgw_entries *entries)
{
    if (!entries)
        return;
    free(entries->channel.message);
    free(entries);
}

void mdgw_entries_resume(mdgw_entries *entries, mdgw_session session, uint64_t sequence)
{
    channel *channel = &entries->channel;
    channel->session = session;
    channel->has_session = true;
    channel->reported_through = min_u64(sequence, SEQUENCE_END - 1);
    channel->expected = channel->reported_through << 16;
}

bool mdgw_entries_position(const mdgw_entries *entries, mdgw_session *session, uint64_t *sequence)
{
    const channel *channel = &entries->channel;
    if (!channel->has_session || channel->expected == NOWHERE)
        return false;
    *session = channel->session;
    *sequence = max_u64(channel->expected >> 16, channel->reported_through);
    return true;
}

static void begin_entries(channel *channel, mdgw_session session, bool is_after_loss)
{
    bool has_previous = channel->has_session;
    bool is_same_day = has_previous && compare_days(&channel->session, &session) == 0;
    if (channel->has_parts)
        abandon_message(channel);
    begin_stream(channel, session);
    /* A session that begins within the day has a first message; so has one of which the log lost the beginning. */
    bool is_whole = has_previous && (is_after_loss || is_same_day);
    channel->expected = is_whole ? UINT64_C(1) << 16 : NOWHERE;
    if (is_whole)
        channel->reported_through = 1;
}

static mdgw_reason accept_entry(channel *channel, const mdgw_packet *packet, bool is_after_loss)
{
    uint64_t first = packet->first << 16, next = packet->next << 16;
    if (packet->has_part) {
        uint64_t own = packet->part_sequence << 16 | packet->part;
        first = packet->part == 0 ? first : own;
        next = packet->is_last_part ? next : own + 1;
        if (!packet->is_last_part && packet->part == UINT16_MAX)
            return MDGW_FIELD_INVALID;
    }
    int order = channel->has_session ? compare_sessions(&packet->session, &channel->session) : 1;
    if (order < 0)
        return MDGW_SESSION_STALE;
    if (order > 0)
        begin_entries(channel, packet->session, is_after_loss);
    if (channel->expected == NOWHERE) {
        /* Nobody can begin in the middle of a message. */
        channel->expected = (first & PART_MASK) == 0 ? first : ((first >> 16) + 1) << 16;
        channel->reported_through = channel->expected >> 16;
    }
    if (first < next ? next <= channel->expected : next < channel->expected)
        return MDGW_DUPLICATE;
    if (channel->expected < first) {
        /* Parts of a message at either end of the gap are useless without the missing ones. */
        channel->has_parts = false;
        report_lost(channel, channel->expected >> 16, message_after(first));
    }
    if (first < next) {
        deliver_frames(channel, packet->frames, packet->frames_bytes, max_u64(first, channel->expected), next);
    } else {
        size_t offset = 0;
        mdgw_frame frame;
        while (mdgw_next_frame(packet->frames, packet->frames_bytes, &offset, &frame))
            on_out_of_sequence(channel, &frame);
    }
    channel->expected = next;
    if (packet->flags & MDGW_SESSION_ENDS) {
        channel->has_session_end = true;
        channel->session_end = packet->next << 16;
    }
    report_end_if_reached(channel);
    return MDGW_USED;
}

mdgw_reason mdgw_entries_accept(mdgw_entries *entries, const uint8_t *data, size_t length, bool is_after_loss)
{
    mdgw_packet packet;
    mdgw_reason reason = mdgw_parse_packet(data, length, &packet);
    if (reason == MDGW_USED && packet.is_tagged)
        reason = MDGW_PROTOCOL_MISMATCH;
    if (reason == MDGW_USED)
        reason = accept_entry(&entries->channel, &packet, is_after_loss);
    entries->receiver.counts.packets++;
    entries->receiver.counts.refused[reason] += reason != MDGW_USED;
    return reason;
}

mdgw_counts mdgw_entries_counts(const mdgw_entries *entries) { return entries->receiver.counts; }

/* --- Records ---------------------------------------------------------------------------------------------------------- */

/* Offsets of local values in a record; 0 where its type has none. */
typedef struct local_fields {
    uint8_t rtype;
    uint16_t length, ts_recv, delta, flags;
} local_fields;

/* By record type and length (DBN version 3). */
static local_fields find_local_fields(uint8_t rtype, size_t length)
{
    static const local_fields types[] = {
        {0xa0, 56, 40, 48, 36},  /* mbo */
        {0x00, 48, 32, 40, 30},  /* trades */
        {0x01, 80, 32, 40, 30},  /* mbp-1 */
        {0x0a, 368, 32, 40, 30}, /* mbp-10 */
        {0x12, 40, 16, 0, 0},    /* status */
        {0x13, 520, 16, 0, 0},   /* definition */
        {0x14, 112, 16, 0, 0},   /* imbalance */
        {0x18, 80, 16, 52, 0},   /* statistics */
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].rtype == rtype && types[i].length == length)
            return types[i];
    return (local_fields){0};
}

/* Whether a record changes a book or the trading status. Trades and fills change no book: the cancel beside them does, and the levels of
 * a trade are those before its effect. */
static bool is_state_record(const uint8_t *record, const local_fields *fields)
{
    enum { MBO = 0xa0, MBP_1 = 0x01, MBP_10 = 0x0a, STATUS = 0x12, MBO_ACTION_AT = 38, MBP_ACTION_AT = 28 };
    if (fields->length == 0)
        return false;
    if (fields->rtype == MBO)
        return record[MBO_ACTION_AT] != 'T' && record[MBO_ACTION_AT] != 'F';
    if (fields->rtype == MBP_1 || fields->rtype == MBP_10)
        return record[MBP_ACTION_AT] != 'T' && record[MBP_ACTION_AT] != 'F';
    return fields->rtype == STATUS;
}

size_t mdgw_fill_local_times(const mdgw_item *item, uint64_t *last, uint8_t *records)
{
    enum { MAYBE_BAD_BOOK = 1 << 2, BAD_TS_RECV = 1 << 3, FROM_SNAPSHOT = 1 << 5 };
    bool is_repeated = item->kind == MDGW_ITEM_REPEATED;
    unsigned added = item->flags & MDGW_SUSPECT ? MAYBE_BAD_BOOK : 0;
    uint64_t ts_recv = item->ts_recv;
    /* A definition that is published again has the time of its first publication. */
    if (ts_recv != UNDEFINED_TIME && item->kind != MDGW_ITEM_DEFINITION) {
        added |= ts_recv < *last ? BAD_TS_RECV : 0u;
        *last = ts_recv = max_u64(ts_recv, *last);
    }
    size_t offset = 0, copied = 0;
    while (item->body_bytes - offset >= 16) {
        const uint8_t *published = item->body + offset;
        size_t length = (size_t)published[0] * 4;
        if (length == 0 || length > item->body_bytes - offset)
            break;
        offset += length;
        local_fields at = find_local_fields(published[1], length);
        if (is_repeated && !is_state_record(published, &at))
            continue;
        uint8_t *record = records + copied;
        memcpy(record, published, length);
        copied += length;
        if (at.flags != 0)
            record[at.flags] |= (uint8_t)(added | (is_repeated ? FROM_SNAPSHOT : 0));
        if (at.ts_recv != 0 && ts_recv != UNDEFINED_TIME)
            store(record + at.ts_recv, ts_recv, 8);
        if (at.delta != 0 && ts_recv != UNDEFINED_TIME)
            store(record + at.delta, (uint32_t)item->ts_in_delta, 4);
    }
    /* No record: as it is. */
    size_t rest = is_repeated ? 0 : item->body_bytes - offset;
    if (rest > 0)
        memcpy(records + copied, item->body + offset, rest);
    return copied + rest;
}

size_t mdgw_describe(const mdgw_item *item, char *text, size_t bytes)
{
    static const char *const names[] = {"session", "message", "definition", "snapshot", "state", "gap", "lost", "end", "repeated", "books"};
    int length;
    switch (item->kind) {
    case MDGW_ITEM_SESSION:
        length = snprintf(text, bytes, "session channel=%u feed=%u date=%" PRIu32 " restart=%" PRIu32, (unsigned)item->channel,
                          (unsigned)item->session.feed, item->session.date, item->session.restart);
        return (size_t)length;
    case MDGW_ITEM_STATE:
        length = snprintf(text, bytes, "state channel=%u state=%u", (unsigned)item->channel, (unsigned)item->state);
        return (size_t)length;
    case MDGW_ITEM_GAP:
    case MDGW_ITEM_LOST:
        length = snprintf(text, bytes, "%s channel=%u first=%" PRIu64 " next=%" PRIu64, names[item->kind], (unsigned)item->channel,
                          item->first, item->next);
        return (size_t)length;
    case MDGW_ITEM_BOOKS:
        length = snprintf(text, bytes, "books channel=%u state=%s", (unsigned)item->channel, item->has_right_books ? "right" : "suspect");
        return (size_t)length;
    case MDGW_ITEM_END:
        length = snprintf(text, bytes, "end channel=%u", (unsigned)item->channel);
        return (size_t)length;
    default:
        break;
    }
    length = snprintf(text, bytes,
                      "%s channel=%u sequence=%" PRIu64 " flags=%u ts_recv=%" PRIu64 " ts_in_delta=%" PRId32 " records=%u body=%s",
                      names[item->kind], (unsigned)item->channel, item->sequence, (unsigned)item->flags, item->ts_recv,
                      item->ts_in_delta, (unsigned)item->record_count, item->body_bytes == 0 ? "-" : "");
    static const char digits[] = "0123456789abcdef";
    size_t at = (size_t)length;
    for (size_t i = 0; i < item->body_bytes; i++, at += 2) {
        if (at + 2 < bytes) {
            text[at] = digits[item->body[i] >> 4];
            text[at + 1] = digits[item->body[i] & 15];
            text[at + 2] = 0;
        }
    }
    return at;
}

/* --- Sockets ---------------------------------------------------------------------------------------------------------- */

/* A line, or the snapshot group. */
typedef struct group_address {
    struct sockaddr_in address;
    struct in_addr interface;
} group_address;

enum { SOCKETS_MAX = MDGW_LINES_MAX + MDGW_SERVICES_MAX + 1 };

struct mdgw_subscriber {
    mdgw_receiver *receiver;
    unsigned line_count, service_count, undrained_rounds;
    /* Lines, services, and the snapshot group: its descriptor is -1 while it is not joined. */
    struct pollfd sockets[SOCKETS_MAX];
    bool checks_sender[SOCKETS_MAX];
    group_address group;
    uint64_t group_retry_at;
    struct in_addr sources[SOURCES_MAX];
    size_t source_count, buffer_bytes;
    int receive_buffer_bytes;
    uint8_t *buffer;
};

static unsigned group_index(const mdgw_subscriber *subscriber) { return subscriber->line_count + subscriber->service_count; }

static uint64_t now_ns(void)
{
    struct timespec now;
    /* Includes the time that the machine is suspended. */
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static bool set_option(int fd, int level, int name, const void *value, size_t bytes)
{
    return setsockopt(fd, level, name, value, (socklen_t)bytes) == 0;
}

static bool parse_address(const char *text, struct in_addr *address)
{
    if (inet_pton(AF_INET, text, address) == 1)
        return true;
    errno = EINVAL;
    return false;
}

static bool parse_line(const mdgw_line *line, group_address *parsed)
{
    *parsed = (group_address){{.sin_family = AF_INET, .sin_port = htons(line->port)}, {htonl(INADDR_ANY)}};
    return parse_address(line->address, &parsed->address.sin_addr) &&
           (!line->interface_address || parse_address(line->interface_address, &parsed->interface));
}

static void close_socket(struct pollfd *socket)
{
    if (socket->fd >= 0)
        close(socket->fd);
    socket->fd = -1;
}

static bool open_socket(mdgw_subscriber *subscriber, unsigned index)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    subscriber->sockets[index] = (struct pollfd){.fd = fd, .events = POLLIN};
    return fd >= 0 && set_option(fd, SOL_SOCKET, SO_RCVBUF, &subscriber->receive_buffer_bytes, sizeof(int));
}

/* Opens the socket of a line, or of the snapshot group, and joins the group. */
static bool open_line(mdgw_subscriber *subscriber, unsigned index, const group_address *line)
{
    const int yes = 1, no = 0;
    if (!open_socket(subscriber, index))
        return false;
    int fd = subscriber->sockets[index].fd;
    /* Several subscribers may run on one host. */
    if (!set_option(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) ||
        bind(fd, (const struct sockaddr *)&line->address, sizeof line->address) != 0)
        return false;
    if (!IN_MULTICAST(ntohl(line->address.sin_addr.s_addr))) {
        /* A line that is sent by unicast has no group in which the kernel filters. */
        subscriber->checks_sender[index] = subscriber->source_count > 0;
        return true;
    }
    /* Otherwise, groups that other processes joined on the same port would arrive here too. */
    if (!set_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, &no, sizeof no))
        return false;
    struct ip_mreq membership = {line->address.sin_addr, line->interface};
    if (subscriber->source_count == 0 && !set_option(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership, sizeof membership))
        return false;
    for (size_t i = 0; i < subscriber->source_count; i++) {
        struct ip_mreq_source with_source = {line->address.sin_addr, line->interface, subscriber->sources[i]};
        if (!set_option(fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &with_source, sizeof with_source))
            return false;
    }
    return true;
}

/* Only the service's datagrams are accepted as answers. */
static bool open_service(mdgw_subscriber *subscriber, unsigned index, const mdgw_service *service)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(service->port)};
    return open_socket(subscriber, index) && parse_address(service->address, &address.sin_addr) &&
           connect(subscriber->sockets[index].fd, (struct sockaddr *)&address, sizeof address) == 0;
}

/* Joins the snapshot group, or leaves it: most of the time nothing of it is needed. After a failure it is joined again a while later. */
static bool join_group_if_needed(mdgw_subscriber *subscriber)
{
    unsigned index = group_index(subscriber);
    if (!mdgw_receiver_needs_snapshot_group(subscriber->receiver)) {
        close_socket(&subscriber->sockets[index]);
        return true;
    }
    bool is_settled = subscriber->sockets[index].fd >= 0 || now_ns() < subscriber->group_retry_at;
    return is_settled || open_line(subscriber, index, &subscriber->group);
}

/* The lines go on without the snapshot group. */
static void group_failed(mdgw_subscriber *subscriber)
{
    subscriber->receiver->counts.snapshot_group_failures++;
    close_socket(&subscriber->sockets[group_index(subscriber)]);
    subscriber->group_retry_at = now_ns() + GROUP_RETRY_NS;
}

static bool draw_nonces(mdgw_config *config)
{
    uint64_t nonces[2];
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, nonces, sizeof nonces);
    close(fd);
    config->request_nonce = nonces[0];
    config->epoch_nonce = nonces[1];
    if (length == (ssize_t)sizeof nonces)
        return true;
    errno = EIO;
    return false;
}

static bool open_sockets(mdgw_subscriber *subscriber, const mdgw_line *lines, const mdgw_service *services)
{
    group_address line;
    for (unsigned i = 0; i < subscriber->line_count; i++)
        if (!parse_line(&lines[i], &line) || !open_line(subscriber, i, &line))
            return false;
    for (unsigned i = 0; i < subscriber->service_count; i++)
        if (!open_service(subscriber, subscriber->line_count + i, &services[i]))
            return false;
    return !subscriber->receiver->config.has_snapshot_group ||
           (parse_line(&lines[subscriber->line_count], &subscriber->group) && join_group_if_needed(subscriber));
}

mdgw_subscriber *mdgw_subscriber_open(const mdgw_config *config, const mdgw_line *lines, const mdgw_service *services,
                                      const char *const *sources, size_t source_count, int receive_buffer_bytes,
                                      mdgw_deliver *deliver, void *user)
{
    mdgw_config drawn = *config;
    if (source_count > SOURCES_MAX) {
        errno = EINVAL;
        return NULL;
    }
    mdgw_subscriber *subscriber = calloc(1, sizeof *subscriber);
    if (!subscriber)
        return NULL;
    for (unsigned i = 0; i < SOCKETS_MAX; i++)
        subscriber->sockets[i].fd = -1;
    subscriber->line_count = config->lines;
    subscriber->service_count = config->services;
    subscriber->receive_buffer_bytes = receive_buffer_bytes;
    subscriber->source_count = source_count;
    /* One byte more than the maximum packet size, so that a truncated packet is too long and is refused. */
    subscriber->buffer_bytes = config->packet_bytes_max + MDGW_TAG_BYTES + 1;
    subscriber->buffer = malloc(subscriber->buffer_bytes);
    bool is_open = subscriber->buffer && draw_nonces(&drawn) && (subscriber->receiver = mdgw_receiver_new(&drawn, deliver, user));
    for (size_t i = 0; i < source_count && is_open; i++)
        is_open = parse_address(sources[i], &subscriber->sources[i]);
    if (is_open && open_sockets(subscriber, lines, services))
        return subscriber;
    int error = errno;
    mdgw_subscriber_close(subscriber);
    errno = error;
    return NULL;
}

mdgw_receiver *mdgw_subscriber_receiver(mdgw_subscriber *subscriber) { return subscriber->receiver; }

void mdgw_subscriber_close(mdgw_subscriber *subscriber)
{
    if (!subscriber)
        return;
    for (unsigned i = 0; i < SOCKETS_MAX; i++)
        close_socket(&subscriber->sockets[i]);
    mdgw_receiver_free(subscriber->receiver);
    free(subscriber->buffer);
    free(subscriber);
}

static bool is_accepted_sender(const mdgw_subscriber *subscriber, const struct sockaddr_in *sender)
{
    for (size_t i = 0; i < subscriber->source_count; i++)
        if (subscriber->sources[i].s_addr == sender->sin_addr.s_addr)
            return true;
    return false;
}

/* Reads a socket until it is empty or its quota is used up. Returns the number of datagrams, -1 if the socket failed. */
static int drain(mdgw_subscriber *subscriber, unsigned index)
{
    bool is_line = index < subscriber->line_count, is_group = index == group_index(subscriber);
    unsigned line = is_line ? index : MDGW_SERVICE_LINE, service = is_line ? 0 : index - subscriber->line_count;
    for (int count = 0; count < DATAGRAMS_PER_SOCKET_MAX; count++) {
        struct sockaddr_in sender;
        socklen_t sender_bytes = sizeof sender;
        ssize_t length = recvfrom(subscriber->sockets[index].fd, subscriber->buffer, subscriber->buffer_bytes, 0,
                                  (struct sockaddr *)&sender, &sender_bytes);
        if (length < 0 && errno == EINTR)
            continue;
        /* A service that is not running: the request is repeated. */
        if (length < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || (!is_line && !is_group) ? count : -1;
        if (subscriber->checks_sender[index] && !is_accepted_sender(subscriber, &sender))
            subscriber->receiver->counts.refused[MDGW_SOURCE_UNEXPECTED]++;
        else if (is_group)
            mdgw_receiver_accept_from_snapshot_group(subscriber->receiver, subscriber->buffer, (size_t)length, now_ns());
        else
            mdgw_receiver_accept(subscriber->receiver, line, service, subscriber->buffer, (size_t)length, now_ns());
    }
    return DATAGRAMS_PER_SOCKET_MAX;
}

int mdgw_subscriber_poll(mdgw_subscriber *subscriber, uint64_t timeout_ns)
{
    mdgw_receiver *receiver = subscriber->receiver;
    uint64_t now = now_ns(), deadline = mdgw_receiver_next_deadline(receiver);
    uint64_t wait_ns = min_u64(timeout_ns, deadline > now ? deadline - now : 0);
    struct timespec wait = {.tv_sec = (time_t)(wait_ns / 1000000000), .tv_nsec = (long)(wait_ns % 1000000000)};
    unsigned group = group_index(subscriber);
    if (ppoll(subscriber->sockets, group + 1, &wait, NULL) < 0 && errno != EINTR)
        return -1;
    int total = 0;
    bool is_drained = true;
    for (unsigned i = 0; i < group; i++) {
        int count = drain(subscriber, i);
        if (count < 0)
            return -1;
        is_drained &= count < DATAGRAMS_PER_SOCKET_MAX;
        total += count;
    }
    /* Behind the lines: what a chunk's position needs has then been read. The group's datagrams delay no deadline. */
    if (is_drained && subscriber->sockets[group].fd >= 0) {
        int count = drain(subscriber, group);
        if (count < 0)
            group_failed(subscriber);
        total += count < 0 ? 0 : count;
    }
    /* Datagrams still in a socket are not missing: deadlines wait for them, but not for as long as anybody floods a line. */
    subscriber->undrained_rounds = is_drained ? 0 : subscriber->undrained_rounds + 1;
    if (subscriber->undrained_rounds % UNDRAINED_ROUNDS_MAX == 0)
        mdgw_receiver_on_deadline(receiver, now_ns());
    unsigned service;
    uint8_t request[MDGW_REQUEST_BYTES];
    while (mdgw_receiver_poll_request(receiver, &service, request)) {
        /* A request that cannot be sent is repeated. */
        ssize_t sent = send(subscriber->sockets[subscriber->line_count + service].fd, request, sizeof request, 0);
        (void)sent;
    }
    if (!join_group_if_needed(subscriber))
        group_failed(subscriber);
    if (mdgw_receiver_rivals(receiver)) {
        errno = EPROTO;
        return -1;
    }
    return total;
}
