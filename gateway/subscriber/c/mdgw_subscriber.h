/* Receives the published multicast of mdgw. C11, POSIX sockets on Linux, no dependency but libc.
 *
 * ops/guide/output-protocol.md is the specification. mdgw_receiver is the protocol without sockets and clocks: output lines are
 * arbitrated, epochs fenced, parts joined, gaps requested and reported. mdgw_subscriber adds the sockets.
 *
 * All memory is allocated by mdgw_receiver_new and mdgw_subscriber_open, none after. One thread at a time may use a receiver.
 * Pointers in an item are valid until the callback returns. Times are in ns.
 *
 * The records of an item are DBN records (version 3) back to back, as published: ts_recv in them is undefined and ts_in_delta
 * is 0, since both are local to a gateway. mdgw_fill_local_times copies them from the item into the records.
 */
#ifndef MDGW_SUBSCRIBER_H
#define MDGW_SUBSCRIBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MDGW_PACKET_HEADER_BYTES 64
#define MDGW_FRAME_HEADER_BYTES 32
#define MDGW_REQUEST_BYTES 56
#define MDGW_TAG_BYTES 16
#define MDGW_TAG_KEY_BYTES 32
#define MDGW_LINES_MAX 7
#define MDGW_SERVICES_MAX 8
#define MDGW_TAG_KEYS_MAX 4
/* Line number of the services' answers. */
#define MDGW_SERVICE_LINE 7
/* No deadline. */
#define MDGW_NEVER UINT64_MAX

/* Flags of a packet. */
enum { MDGW_HEARTBEAT = 1, MDGW_RETRANSMISSION = 2, MDGW_SNAPSHOT_PACKET = 4, MDGW_SESSION_ENDS = 8, MDGW_TAGGED = 16 };
/* Kinds of frames. */
enum { MDGW_KIND_MESSAGE = 0, MDGW_KIND_GAP = 1, MDGW_KIND_SNAPSHOT = 2, MDGW_KIND_STATE = 3, MDGW_KIND_SNAPSHOT_CHUNK = 4 };
/* Flags of a frame, and of an item with records. */
enum { MDGW_FIRST_PART = 1, MDGW_LAST_PART = 2, MDGW_SUSPECT = 4, MDGW_LATE_FILL = 8 };
/* Kinds of requests. */
enum { MDGW_RANGE = 1, MDGW_DEFINITIONS = 2, MDGW_SESSIONS = 3, MDGW_EPOCH = 4, MDGW_SNAPSHOT_CHUNKS = 5 };

/* Why a datagram, or a part of it, was not used. */
typedef enum mdgw_reason {
    MDGW_USED = 0,
    MDGW_HEADER_TRUNCATED,
    MDGW_PROTOCOL_MISMATCH,
    MDGW_LENGTH_MISMATCH,
    MDGW_MESSAGE_TRUNCATED,
    MDGW_MESSAGE_LENGTH,
    MDGW_FIELD_INVALID,
    MDGW_TRAILING_BYTES,
    MDGW_SEQUENCE_INVALID,
    MDGW_SEQUENCE_JUMP,
    MDGW_SESSION_STALE,
    MDGW_DUPLICATE,
    MDGW_WINDOW_FULL,
    MDGW_SOURCE_UNEXPECTED,
    MDGW_EPOCH_STALE,
    MDGW_EPOCH_JUMP,
    MDGW_EPOCH_UNCONFIRMED,
    MDGW_ANSWER_UNREQUESTED,
    MDGW_TAG_MISSING,
    MDGW_TAG_INVALID,
    MDGW_CHANNEL_UNKNOWN,
    MDGW_REASONS
} mdgw_reason;

/* Its name, as in the specification. */
const char *mdgw_reason_name(mdgw_reason reason);

/* Sequences of a channel that begin at 1. The date is YYYYMMDD. */
typedef struct mdgw_session {
    uint16_t feed;
    uint32_t date;
    uint32_t restart;
} mdgw_session;

/* A checked packet. */
typedef struct mdgw_packet {
    uint8_t flags; /* without MDGW_TAGGED */
    bool is_tagged;
    uint16_t group, channel, frame_count;
    uint64_t epoch; /* count in the upper 56 bits, node in the lower 8 */
    mdgw_session session;
    uint64_t first, next; /* covers [first, next) */
    uint64_t send_time_ns;
    const uint8_t *frames;
    size_t frames_bytes;
    /* The part of a message in the packet, if any. */
    bool has_part, is_last_part;
    uint16_t part;
    uint64_t part_sequence;
} mdgw_packet;

typedef struct mdgw_frame {
    uint64_t sequence, ts_recv;
    int32_t ts_in_delta;
    uint16_t body_bytes, record_count, part;
    uint8_t kind, flags;
    const uint8_t *body;
} mdgw_frame;

/* Checks a datagram, except for its tag. */
mdgw_reason mdgw_parse_packet(const uint8_t *data, size_t length, mdgw_packet *packet);

/* The next frame of a checked packet; *offset begins at 0. Returns false after the last one. */
bool mdgw_next_frame(const uint8_t *frames, size_t frames_bytes, size_t *offset, mdgw_frame *frame);

typedef struct mdgw_request {
    uint8_t kind;
    uint16_t group, channel;
    bool has_session; /* without: the current one, or the sessions from the first on */
    mdgw_session session;
    uint64_t first, next, nonce;
} mdgw_request;

mdgw_reason mdgw_parse_request(const uint8_t *data, size_t length, mdgw_request *request);
void mdgw_write_request(const mdgw_request *request, uint8_t data[MDGW_REQUEST_BYTES]);

/* The tag of these bytes: of a published packet (nonce NULL), or of an answer to the request with that nonce. */
void mdgw_tag(const uint8_t key[MDGW_TAG_KEY_BYTES], const uint64_t *nonce, const uint8_t *packet, size_t length,
              uint8_t tag[MDGW_TAG_BYTES]);

typedef enum mdgw_item_kind {
    MDGW_ITEM_SESSION,    /* a session begins; sessions only go forward */
    MDGW_ITEM_MESSAGE,    /* all records of one input message, its parts joined */
    MDGW_ITEM_DEFINITION, /* a definition requested at the start, out of sequence */
    /* a part of the channel's state: records that build books, mark the trading status, and so on. All parts of a snapshot are delivered
     * one after the other, or none: the first has MDGW_FIRST_PART, the last one MDGW_LAST_PART. The stream continues with the message
     * `sequence`. */
    MDGW_ITEM_SNAPSHOT,
    MDGW_ITEM_STATE,      /* the gateway's channel changed its state */
    MDGW_ITEM_GAP,        /* [first, next) was declared missing by the gateway */
    MDGW_ITEM_LOST,       /* [first, next) was published, but neither lines nor services delivered it */
    MDGW_ITEM_END,        /* the venue ended the session */
    /* Only with rebuilds_books. A message that was delivered before, behind the position of the snapshot that was just delivered: books
     * that were built from the snapshot need it, and a program that counts messages ignores it. */
    MDGW_ITEM_REPEATED,
    MDGW_ITEM_BOOKS       /* the books kept from these items may be wrong from here on, or are right again; right when a session begins */
} mdgw_item_kind;

typedef struct mdgw_item {
    mdgw_item_kind kind;
    uint16_t channel;
    mdgw_session session;
    /* With records: */
    uint8_t flags;
    uint16_t record_count;
    int32_t ts_in_delta;
    uint64_t sequence;
    uint64_t ts_recv; /* ns since 1970 UTC, of the gateway */
    const uint8_t *body;
    size_t body_bytes;
    /* State: 0 waiting, 1 live, 2 gap, 3 recovering, 4 stale, 5 ended, 6 failed. */
    uint8_t state;
    bool has_right_books; /* MDGW_ITEM_BOOKS */
    /* Gap and loss: */
    uint64_t first, next;
} mdgw_item;

typedef void mdgw_deliver(void *user, const mdgw_item *item);

/* Where a receiver begins that comes late. */
typedef enum mdgw_start {
    MDGW_START_SESSION, /* at the oldest message of the session in the services' logs */
    MDGW_START_DAY,     /* first the ended sessions of the trading date, then as above */
    MDGW_START_LIVE,    /* at the messages published now, after the definitions */
    /* with a snapshot of the session's state, from a service or the snapshot group; as MDGW_START_SESSION where neither has one */
    MDGW_START_SNAPSHOT
} mdgw_start;

typedef struct mdgw_config {
    uint16_t group;
    const uint16_t *channels; /* channels to receive; NULL: every channel observed, up to channels_max */
    size_t channels_max;      /* with channels: how many these are */
    unsigned lines, services;
    mdgw_start start;
    size_t packet_bytes_max; /* maximum packet size without the tag */
    const uint8_t (*tag_keys)[MDGW_TAG_KEY_BYTES]; /* with keys, packets without a valid tag are refused */
    size_t tag_key_count;
    bool accepts_untagged; /* although there are keys: while a deployment changes to tags */
    size_t window_packets; /* held per channel while a gap is pending: 64 to 32768 */
    uint64_t gap_timeout_ns;
    uint64_t request_timeout_ns;
    unsigned attempts_max;          /* for the same request */
    unsigned unanswered_rounds_max; /* after these, services that do not answer are left out if another one has */
    uint64_t messages_per_request_max;
    uint64_t epoch_jump_max;    /* largest step of the epoch's count above the highest accepted one */
    uint64_t start_window_ns;   /* how long rival epochs are watched for where no service answers: at least 3 x heartbeat_ms */
    size_t start_bytes_max;     /* packets held at the start until a service names the epoch; at most 1 GiB */
    uint64_t sequence_jump_max; /* in messages, without confirmation by two more packets */
    size_t message_bytes_max;   /* of one message's records; at most 1 GiB */
    /* Of a snapshot's records; at most 1 GiB. Allocated for each channel with MDGW_START_SNAPSHOT or rebuilds_books, once if there are
     * services and once more with a snapshot group, so name the channels there, or lower channels_max. A larger snapshot is refused: a
     * start then delivers the session from the logs, and suspect books stay suspect. */
    size_t snapshot_bytes_max;
    /* Rebuilds suspect books from a snapshot while the stream goes on. Needs a service or the snapshot group. MDGW_ITEM_BOOKS,
     * MDGW_ITEM_SNAPSHOT and MDGW_ITEM_REPEATED are then delivered in the middle of a session. */
    bool rebuilds_books;
    /* Of the messages kept while the books are suspect, to be delivered again behind the snapshot, or while a start waits for the snapshot
     * group; at most 1 GiB. A message counts as 48 bytes more than its records. Allocated for each channel with rebuilds_books, and for
     * MDGW_START_SNAPSHOT with a snapshot group. What is older than the messages kept needs a snapshot of a later position: the default,
     * 32 MiB, holds 300,000 messages of one order each. */
    size_t rebuild_bytes_max;
    /* The snapshot group is received: by mdgw_receiver_accept_from_snapshot_group, or at the address behind the lines of
     * mdgw_subscriber_open. MDGW_START_SNAPSHOT uses the group where there is no service or none has a snapshot, and delivers no message
     * before the image is whole. With rebuilds_books suspect books are rebuilt from the group too. */
    bool has_snapshot_group;
    /* How long such a start waits for a whole image. Then a receiver with services reads the session from the logs, and one without
     * begins with the oldest message kept. Longer than the group needs for one image of each of its channels. */
    uint64_t snapshot_wait_ns_max;
    /* Answers must repeat these numbers, which nobody else may be able to guess. mdgw_subscriber_open draws them. With services,
     * epoch_nonce must be set. */
    uint64_t request_nonce, epoch_nonce;
} mdgw_config;

/* Defaults: one line, no service, group 1, every channel. */
mdgw_config mdgw_default_config(void);

typedef struct mdgw_receiver mdgw_receiver;

/* NULL for an invalid configuration (errno is EINVAL) or without memory. Keys are copied. */
mdgw_receiver *mdgw_receiver_new(const mdgw_config *config, mdgw_deliver *deliver, void *user);
void mdgw_receiver_free(mdgw_receiver *receiver);

/* Processes a datagram of an output line (0, 1, …), or of a service (line MDGW_SERVICE_LINE, and its index). `now` is of any clock
 * that only goes forward. */
mdgw_reason mdgw_receiver_accept(mdgw_receiver *receiver, unsigned line, unsigned service, const uint8_t *data, size_t length,
                                 uint64_t now);
/* Processes a datagram of the snapshot group. A receiver that needs no snapshot ignores it. Read the lines before: a chunk needs the
 * messages before its position. */
mdgw_reason mdgw_receiver_accept_from_snapshot_group(mdgw_receiver *receiver, const uint8_t *data, size_t length, uint64_t now);
/* Whether datagrams of the snapshot group are needed now. The group may be left while they are not. */
bool mdgw_receiver_needs_snapshot_group(const mdgw_receiver *receiver);
/* When mdgw_receiver_on_deadline must be called. */
uint64_t mdgw_receiver_next_deadline(const mdgw_receiver *receiver);
/* Read the sockets before: what is still in them is not missing. */
void mdgw_receiver_on_deadline(mdgw_receiver *receiver, uint64_t now);
/* A request that is due, and the index of its service; false if there is none. */
bool mdgw_receiver_poll_request(mdgw_receiver *receiver, unsigned *service, uint8_t request[MDGW_REQUEST_BYTES]);
/* The input has ended: delivers held messages and reports the missing ones as lost. */
void mdgw_receiver_finish(mdgw_receiver *receiver);

/* Packets under epochs that exclude each other were received, and nothing decided between them. Every packet is refused from
 * then on. is_contradicted: a service named one of them after the other had been accepted. */
typedef struct mdgw_rivals {
    uint64_t lowest, highest;
    bool is_contradicted;
} mdgw_rivals;
const mdgw_rivals *mdgw_receiver_rivals(const mdgw_receiver *receiver); /* NULL: none */

typedef struct mdgw_counts {
    uint64_t packets;
    uint64_t refused[MDGW_REASONS];
    uint64_t messages;            /* delivered */
    uint64_t gap_messages;        /* declared missing by the gateway */
    uint64_t lost_messages;       /* published, not received */
    uint64_t starts_unanswered;   /* starts for which no service answered */
    uint64_t definitions_incomplete; /* starts at which a service did not send all of its definitions */
    uint64_t sessions_incomplete; /* sessions that were left although no service knew their end */
    uint64_t snapshots;             /* delivered */
    uint64_t snapshots_unavailable; /* starts for which neither a service nor the snapshot group had one that this receiver accepts */
    uint64_t books_rebuilt;         /* suspect books that a snapshot replaced */
    uint64_t rebuilds_refused;      /* queries for such a snapshot that ended without one: no answer, suspect books, or an image too old */
    uint64_t snapshot_group_failures; /* times that a subscriber could not join or read the snapshot group; tried again a second later */
} mdgw_counts;
mdgw_counts mdgw_receiver_counts(const mdgw_receiver *receiver);

/* The entries of a publication log, as items; mdgw_log.h reads them. An entry is the body of a packet: `packet` is that packet, without
 * a tag. Entries come in order, and what a log lacks does not come later, so a hole is reported at once. */
typedef struct mdgw_entries mdgw_entries;
/* NULL without memory, or for message_bytes_max above 1 GiB. */
mdgw_entries *mdgw_entries_new(uint16_t channel, size_t message_bytes_max, mdgw_deliver *deliver, void *user);
void mdgw_entries_free(mdgw_entries *entries);
/* Everything before that message counts as delivered. */
void mdgw_entries_resume(mdgw_entries *entries, mdgw_session session, uint64_t sequence);
/* The next message; false before the first one. */
bool mdgw_entries_position(const mdgw_entries *entries, mdgw_session *session, uint64_t *sequence);
/* is_after_loss: entries are missing since the one before. */
mdgw_reason mdgw_entries_accept(mdgw_entries *entries, const uint8_t *packet, size_t length, bool is_after_loss);
mdgw_counts mdgw_entries_counts(const mdgw_entries *entries);

/* Copies the records of an item to `records` (item->body_bytes bytes) and fills in ts_recv, ts_in_delta and flags. *last is 0
 * at first; keep one for each channel: times never decrease within it. A record of an unknown type, or of a known type with another
 * length, stays as it is. Of a repeated message only the records that change a book or the trading status are copied, with the flag
 * SNAPSHOT (bit 5): the others, trades and fills among them, were delivered before. Returns the bytes copied. */
size_t mdgw_fill_local_times(const mdgw_item *item, uint64_t *last, uint8_t *records);

/* One line of text, as in the test vectors. Returns the length; truncated to `bytes` like snprintf. */
size_t mdgw_describe(const mdgw_item *item, char *text, size_t bytes);

/* One output line: multicast group (or a local address, if the line is sent by unicast), port, address of the interface. */
typedef struct mdgw_line {
    const char *address;
    uint16_t port;
    const char *interface_address; /* NULL: the kernel's choice */
} mdgw_line;

typedef struct mdgw_service {
    const char *address;
    uint16_t port;
} mdgw_service;

typedef struct mdgw_subscriber mdgw_subscriber;

/* Opens the sockets. config->lines and config->services say how many there are; with config->has_snapshot_group, `lines` has one more:
 * the snapshot group, which is joined only while a snapshot is needed. The nonces are drawn at random. `sources`: the
 * gateways' addresses (at most 16); the groups are joined for these senders only (IGMPv3), and other packets are refused. NULL
 * with errno if that fails. */
mdgw_subscriber *mdgw_subscriber_open(const mdgw_config *config, const mdgw_line *lines, const mdgw_service *services,
                                      const char *const *sources, size_t source_count, int receive_buffer_bytes,
                                      mdgw_deliver *deliver, void *user);
/* Waits at most that long for datagrams or a deadline, and delivers. Returns the number of datagrams, or -1 with errno; EPROTO
 * means rival epochs, see mdgw_receiver_rivals. */
int mdgw_subscriber_poll(mdgw_subscriber *subscriber, uint64_t timeout_ns);
mdgw_receiver *mdgw_subscriber_receiver(mdgw_subscriber *subscriber);
void mdgw_subscriber_close(mdgw_subscriber *subscriber);

#ifdef __cplusplus
}
#endif
#endif
