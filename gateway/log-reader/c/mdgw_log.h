/* Reads the publication log of a channel from shared memory, on the gateway's host. C11 with atomics, Linux, no dependency but libc and
 * mdgw_subscriber.c (gateway/subscriber/c), which has the items and the protocol. Little-endian machines.
 *
 * ops/guide/shared-memory.md says how the gateway is set up. The items are those of the multicast, under the same names.
 *
 * Memory is allocated by mdgw_log_open, none after. No lock is taken, nothing is registered, and no system call is made for an entry;
 * once for each segment the next file is opened and mapped, read-only. So a reader, running or stopped, delays neither the gateway
 * nor another reader. One thread at a time may use a log; any number of logs may be open.
 *
 * Why reading is sound. The rules are those of the reader in Rust; gateway/publog/src/commit.rs and gateway/publog/src/reuse_model.rs
 * have the models that loom checks, and a broken variant of each rule that it must catch.
 *  1. An entry's commit word is stored last, with release order; it is loaded first here, with acquire order. So the loads after it see
 *     the whole entry. The word after an entry is 0 before the entry is committed: the remains of earlier use are never taken for one.
 *  2. The writer never changes a committed entry. Its file may be used again for another segment. Maintenance first takes the
 *     file's name away, then needs its exclusive lock, then stores the new number in the header, then gives the file its new name. A reader
 *     opens by name, takes the shared lock (F_OFD_SETLK, never waited for) before it maps, and compares the number in the header
 *     after. With the lock refused or another number, the segment counts as gone. So no file changes its use while it is mapped here.
 *  3. All loads from a file are atomic (relaxed, after the acquire above), of whole words, each once, into this reader's own memory. The copy
 *     is checked (lengths and CRC-32C), and the copy is delivered. So even a file that somebody else changes meanwhile yields entries
 *     that were written, or none.
 * A file that its owner or root truncates while it is mapped ends the process with SIGBUS, as any mapped file does. No gateway does that. */
#ifndef MDGW_LOG_H
#define MDGW_LOG_H

#include "mdgw_subscriber.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MDGW_LOG_ERROR_BYTES 512

typedef enum mdgw_log_start {
    MDGW_LOG_SESSION, /* at the oldest message of the latest session */
    MDGW_LOG_DAY,     /* at the oldest message of the latest trading date */
    MDGW_LOG_OLDEST,  /* at the oldest message of the log */
    MDGW_LOG_LIVE,    /* behind the last message; earlier symbol mappings and definitions are not delivered */
    MDGW_LOG_RESUME   /* at the message named by resume_session and resume_sequence */
} mdgw_log_start;

typedef struct mdgw_log_config {
    const char *directory; /* of the channel's log: log_dir/ID */
    uint16_t channel;
    mdgw_log_start start;
    /* The name of the first message that is wanted. Everything before it is not delivered, and neither is the item of its session. */
    mdgw_session resume_session;
    uint64_t resume_sequence;
    size_t message_bytes_max; /* of one message's records; at most 1 GiB */
    uint64_t pause_ns;        /* between two looks while there is nothing to read; 0: none, for a thread with a core of its own */
} mdgw_log_config;

/* Defaults: the latest session, 64 KiB, pauses of 100 us. */
mdgw_log_config mdgw_log_default_config(const char *directory, uint16_t channel);

typedef struct mdgw_log mdgw_log;

/* NULL if the log cannot be read; `error` says why. */
mdgw_log *mdgw_log_open(const mdgw_log_config *config, mdgw_deliver *deliver, void *user, char error[MDGW_LOG_ERROR_BYTES]);
void mdgw_log_close(mdgw_log *log);

/* Delivers what is there; if there is nothing, waits at most that long for it. Returns the number of entries, 0 after the time, or -1:
 * mdgw_log_error says why. May be called again after an error: it tries again. */
int mdgw_log_poll(mdgw_log *log, uint64_t timeout_ns);
const char *mdgw_log_error(const mdgw_log *log);

/* The next message, for MDGW_LOG_RESUME; false before the first one. */
bool mdgw_log_position(const mdgw_log *log, mdgw_session *session, uint64_t *sequence);

/* What was missed. Lost messages were delivered as MDGW_ITEM_LOST, with their bounds; where the session changed meanwhile, those of the
 * new session were. */
typedef struct mdgw_log_counts {
    uint64_t entries;
    uint64_t overruns;         /* how often entries were missing */
    uint64_t lost_entries;     /* how many, where that is known */
    mdgw_session last_session; /* where the log went on after the latest overrun */
    uint64_t last_sequence;
} mdgw_log_counts;
mdgw_log_counts mdgw_log_counts_of(const mdgw_log *log);
/* Messages delivered, declared missing and lost; refused entries. Duplicates follow a resumption; other refusals are invalid entries. */
mdgw_counts mdgw_log_item_counts(const mdgw_log *log);

#ifdef __cplusplus
}
#endif
#endif
