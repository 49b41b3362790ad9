/* See mdgw_log.h, and gateway/publog/src/segment.rs for the format. */
#define _GNU_SOURCE /* F_OFD_SETLK, SYS_getdents64 */
#include "mdgw_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "logs are little-endian, and read as they are"
#endif
_Static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "words of 64 bits are loaded without a lock");

enum {
    WORD = 8,
    HEADER_BYTES = 4096,
    SLOT_COUNT_AT = 128,
    SEALED_AT = 256,
    SLOT_BYTES = 32,
    INDEX_INTERVAL = 16 << 10,
    SESSION_SLOTS = 64,
    ENTRY_HEADER_BYTES = 64, /* as many as a packet's header: it takes its place in the copy */
    PAYLOAD_MAX = UINT16_MAX,
    EMPTY_SEGMENTS_MAX = 16, /* segments can be sealed without an entry; there are never more than a few of them in a row */
    ENTRIES_PER_TURN = 64,
    LOOKS_PER_CLOCK_READ = 256,
    PATH_BYTES = 4096,
    SEGMENT_PATH_BYTES = PATH_BYTES + 32
};
_Static_assert((int)ENTRY_HEADER_BYTES == MDGW_PACKET_HEADER_BYTES, "the packet is made in place");
#define SEALED UINT64_MAX
#define MAGIC UINT64_C(0x474f4c505747444d) /* MDGWPLOG */

typedef enum state { UNCOMMITTED, COPIED, SEALED_HERE, DAMAGED } state;

typedef struct segment {
    int fd; /* holds the shared lock */
    const uint8_t *map;
    size_t bytes, entries_offset, slot_count_max;
    uint64_t number;
    bool has_checksum;
} segment;

typedef struct slot {
    uint64_t session[2], first, offset;
} slot;

struct mdgw_log {
    mdgw_log_config config;
    char directory[PATH_BYTES];
    mdgw_entries *entries;
    segment segment; /* map is NULL before the first one */
    size_t offset;
    bool has_expected, is_after_loss;
    uint64_t expected_number;
    mdgw_log_counts counts;
    uint64_t copy[(ENTRY_HEADER_BYTES + PAYLOAD_MAX + WORD - 1) / WORD];
    size_t copied_bytes, payload_bytes;
    uint32_t crc_table[256];
    bool has_crc_instruction;
    char error[MDGW_LOG_ERROR_BYTES];
};

/* --- CRC-32C ---------------------------------------------------------------------------------------------------------- */

static void make_crc_table(mdgw_log *log)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        log->crc_table[i] = crc;
    }
#if defined(__x86_64__)
    log->has_crc_instruction = __builtin_cpu_supports("sse4.2");
#endif
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *data, size_t bytes)
{
    uint64_t wide = crc;
    for (; bytes >= WORD; data += WORD, bytes -= WORD) {
        uint64_t word;
        memcpy(&word, data, WORD);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; bytes > 0; data++, bytes--)
        crc = __builtin_ia32_crc32qi(crc, *data);
    return crc;
}
#endif

static uint32_t crc32c(const mdgw_log *log, const void *memory, size_t bytes)
{
    const uint8_t *data = memory;
    uint32_t crc = UINT32_MAX;
#if defined(__x86_64__)
    if (log->has_crc_instruction)
        return ~crc_by_instruction(crc, data, bytes);
#endif
    for (size_t i = 0; i < bytes; i++)
        crc = log->crc_table[(crc ^ data[i]) & 255] ^ crc >> 8;
    return ~crc;
}

/* --- Errors ----------------------------------------------------------------------------------------------------------- */

/* The directory's and the file's names may be long; the end of the text is cut off then. */
static int fail_at(mdgw_log *log, uint64_t number, const char *what)
{
    snprintf(log->error, sizeof log->error, "%.300s/%016" PRIu64 ".segment %s", log->directory, number, what);
    return -1;
}

static int fail_io(mdgw_log *log, const char *act)
{
    snprintf(log->error, sizeof log->error, "cannot %s %.300s: %s", act, log->directory, strerror(errno));
    return -1;
}

/* --- Segments --------------------------------------------------------------------------------------------------------- */

/* The caller has checked that the word is inside the mapping. */
static uint64_t load_word(const segment *segment, size_t offset, memory_order order)
{
    return atomic_load_explicit((const _Atomic uint64_t *)(const void *)(segment->map + offset), order);
}

static void close_segment(segment *segment)
{
    if (segment->map) {
        munmap((void *)(uintptr_t)segment->map, segment->bytes);
        close(segment->fd);
    }
    segment->map = NULL;
}

/* Checks the header. Returns what is wrong, or NULL. */
static const char *read_header(const mdgw_log *log, segment *segment)
{
    uint64_t words[7];
    for (size_t i = 0; i < 7; i++)
        words[i] = load_word(segment, i * WORD, memory_order_relaxed);
    uint32_t version = (uint32_t)words[1];
    if (words[0] != MAGIC)
        return "is not a segment: wrong magic number";
    if (version < 1 || version > 2)
        return "has another version of the format";
    /* As the writer computes it, word by word. */
    if (words[6] != crc32c(log, words, 6 * WORD))
        return "is not a segment: header checksum mismatch";
    if ((words[1] >> 32 & 0xffff) != log->config.channel)
        return "belongs to another channel";
    uint64_t segment_bytes = words[3], slots = words[4] & UINT32_MAX;
    if (segment_bytes > UINT32_MAX || slots != segment_bytes / INDEX_INTERVAL + SESSION_SLOTS)
        return "is not a segment: sizes in the header are out of range";
    segment->slot_count_max = (size_t)slots;
    segment->entries_offset = HEADER_BYTES + (size_t)slots * SLOT_BYTES;
    if (segment->bytes < segment->entries_offset)
        return "is truncated inside its index";
    segment->has_checksum = words[1] >> 48 & 1;
    segment->number = words[2];
    return NULL;
}

static void segment_path(const mdgw_log *log, uint64_t number, char path[SEGMENT_PATH_BYTES])
{
    snprintf(path, SEGMENT_PATH_BYTES, "%s/%016" PRIu64 ".segment", log->directory, number);
}

/* Maps segment `number`. Returns 1, 0 if it does not exist or is being used again, or -1. */
static int open_segment(mdgw_log *log, uint64_t number, segment *opened)
{
    char path[SEGMENT_PATH_BYTES];
    segment_path(log, number, path);
    segment segment = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (segment.fd < 0)
        return errno == ENOENT ? 0 : fail_at(log, number, strerror(errno));
    const char *wrong = NULL;
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    if (fcntl(segment.fd, F_OFD_SETLK, &lock) != 0) {
        if (errno == EAGAIN || errno == EACCES) {
            close(segment.fd);
            return 0;
        }
        wrong = strerror(errno);
    }
    struct stat status;
    if (!wrong && fstat(segment.fd, &status) != 0)
        wrong = strerror(errno);
    if (!wrong && status.st_size < HEADER_BYTES)
        wrong = "is not a segment: shorter than a segment header";
    if (!wrong) {
        /* Whole words only, so that no word extends beyond the end of the file. */
        segment.bytes = (size_t)status.st_size / WORD * WORD;
        void *map = mmap(NULL, segment.bytes, PROT_READ, MAP_SHARED, segment.fd, 0);
        if (map == MAP_FAILED)
            wrong = strerror(errno);
        else
            segment.map = map;
    }
    if (!wrong)
        wrong = read_header(log, &segment);
    if (wrong) {
        int code = fail_at(log, number, wrong);
        if (segment.map)
            close_segment(&segment);
        else
            close(segment.fd);
        return code;
    }
    /* The file was used again for another number after its name was looked up. */
    if (segment.number != number) {
        close_segment(&segment);
        return 0;
    }
    *opened = segment;
    return 1;
}

/* Looks for the segment with the lowest number from `from` on (is_last false), or the highest below `from`. Returns 1, 0 or -1. */
static int find_number(mdgw_log *log, uint64_t from, bool is_last, uint64_t *found)
{
    struct listed {
        uint64_t inode;
        int64_t offset;
        uint16_t length;
        uint8_t type;
        char name[];
    };
    _Alignas(8) char listing[4096];
    int directory = open(log->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = 0;
    if (directory < 0)
        return fail_io(log, "list");
    for (;;) {
        long bytes = syscall(SYS_getdents64, directory, listing, sizeof listing);
        if (bytes < 0)
            result = fail_io(log, "list");
        if (bytes <= 0)
            break;
        for (long at = 0; at < bytes;) {
            const struct listed *item = (const void *)(listing + at);
            at += item->length;
            char *end;
            errno = 0;
            uint64_t number = strtoull(item->name, &end, 10);
            if (item->name[0] < '0' || item->name[0] > '9' || errno != 0 || strcmp(end, ".segment") != 0)
                continue;
            bool is_wanted = is_last ? number < from : number >= from;
            if (is_wanted && (result == 0 || (is_last ? number > *found : number < *found))) {
                *found = number;
                result = 1;
            }
        }
    }
    close(directory);
    return result;
}

/* Copies the content at `offset` and checks the copy. Nothing is loaded twice. */
static state copy_entry(mdgw_log *log, const segment *segment, size_t offset)
{
    if (offset % WORD != 0 || offset > segment->bytes || segment->bytes - offset < WORD)
        return DAMAGED;
    /* Acquire pairs with the release of the commit: the entry's other words are loaded as they were before it. */
    uint64_t commit = load_word(segment, offset, memory_order_acquire);
    if (commit == 0)
        return UNCOMMITTED;
    if (commit == SEALED)
        return SEALED_HERE;
    size_t length = commit & UINT32_MAX;
    if (length < ENTRY_HEADER_BYTES || length % WORD != 0 || length > segment->bytes - offset || length > sizeof log->copy)
        return DAMAGED;
    for (size_t i = 1; i < length / WORD; i++)
        log->copy[i] = load_word(segment, offset + i * WORD, memory_order_relaxed);
    size_t payload = log->copy[7] & UINT32_MAX;
    if (payload > PAYLOAD_MAX || length != (ENTRY_HEADER_BYTES + payload + WORD - 1) / WORD * WORD)
        return DAMAGED;
    if (segment->has_checksum && crc32c(log, log->copy + 1, ENTRY_HEADER_BYTES - WORD + payload) != commit >> 32)
        return DAMAGED;
    log->copied_bytes = length;
    log->payload_bytes = payload;
    return COPIED;
}

/* --- Reading in order ------------------------------------------------------------------------------------------------- */

static void move_to(mdgw_log *log, segment segment, size_t offset)
{
    close_segment(&log->segment);
    log->segment = segment;
    log->offset = offset;
    log->has_expected = false;
}

/* Moves to the beginning of the lowest segment from `number` on, if any. Returns 1, 0 or -1. */
static int open_from(mdgw_log *log, uint64_t number)
{
    segment segment;
    int opened = number > 0 ? open_segment(log, number, &segment) : 0;
    while (opened == 0) {
        int found = find_number(log, number, false, &number);
        if (found <= 0)
            return found;
        opened = open_segment(log, number, &segment);
        if (number++ == UINT64_MAX)
            break;
    }
    if (opened == 0)
        return 0;
    if (opened < 0)
        return -1;
    close_segment(&log->segment);
    log->segment = segment;
    log->offset = segment.entries_offset;
    return 1;
}

/* Copies the next entry, without advancing. Returns 1, 0 if it is not committed yet, or -1. */
static int peek(mdgw_log *log)
{
    for (int crossed = 0; crossed < EMPTY_SEGMENTS_MAX; crossed++) {
        state state = log->segment.map ? copy_entry(log, &log->segment, log->offset) : SEALED_HERE;
        if (state == COPIED || state == UNCOMMITTED)
            return state == COPIED;
        int moved = log->segment.map && log->segment.number == UINT64_MAX ? 0 : open_from(log, log->segment.map ? log->segment.number + 1 : 0);
        if (moved == 0 && state == DAMAGED) {
            char what[80];
            snprintf(what, sizeof what, "is damaged or truncated at offset %zu, and no later segment exists", log->offset);
            return fail_at(log, log->segment.number, what);
        }
        if (moved <= 0)
            return moved;
    }
    return 0;
}

/* Advances over the entry in the copy. Returns how many are missing before it. */
static uint64_t advance(mdgw_log *log)
{
    uint64_t number = log->copy[1], missing = 0;
    if (log->has_expected && number > log->expected_number)
        missing = number - log->expected_number;
    log->expected_number = number + 1;
    log->has_expected = true;
    log->offset += log->copied_bytes;
    return missing;
}

/* --- The index -------------------------------------------------------------------------------------------------------- */

static size_t slot_count(const segment *segment)
{
    uint64_t count = load_word(segment, SLOT_COUNT_AT, memory_order_acquire);
    return count < segment->slot_count_max ? (size_t)count : segment->slot_count_max;
}

static slot read_slot(const segment *segment, size_t index)
{
    uint64_t words[4];
    for (size_t i = 0; i < 4; i++)
        words[i] = load_word(segment, HEADER_BYTES + index * SLOT_BYTES + i * WORD, memory_order_relaxed);
    return (slot){{words[0], words[1]}, words[2], words[3]};
}

/* Whether the slot points to the entry that it describes. */
static bool is_valid_slot(mdgw_log *log, const segment *segment, const slot *slot)
{
    uint64_t end = load_word(segment, SEALED_AT, memory_order_relaxed);
    if (slot->offset > SIZE_MAX || slot->offset < segment->entries_offset)
        return false;
    if (end >= segment->entries_offset && end < slot->offset && copy_entry(log, segment, (size_t)end) == SEALED_HERE)
        return false; /* left over behind a truncation */
    return copy_entry(log, segment, (size_t)slot->offset) == COPIED && log->copy[2] == slot->session[0] &&
           log->copy[3] == slot->session[1] && log->copy[4] == slot->first;
}

static bool is_session(const uint64_t *words, const uint64_t session[2]) { return words[0] == session[0] && words[1] == session[1]; }

/* Moves to the last indexed entry of the session before `sequence`, else to its first one (*is_before is false). Returns 1, 0 if the
 * log has nothing of the session, or -1. */
static int move_to_slot(mdgw_log *log, const uint64_t session[2], uint64_t sequence, bool *is_before)
{
    segment oldest = {.map = NULL};
    size_t oldest_offset = 0;
    uint64_t number = UINT64_MAX;
    *is_before = false;
    for (;;) {
        segment segment;
        int found = find_number(log, number, true, &number);
        int opened = found == 1 ? open_segment(log, number, &segment) : found;
        if (opened < 0) {
            close_segment(&oldest);
            return -1;
        }
        if (found == 0)
            break;
        if (opened == 0)
            continue;
        bool has_first = false;
        slot first = {{0}, 0, 0};
        for (size_t i = slot_count(&segment); i-- > 0;) {
            slot slot = read_slot(&segment, i);
            if (!is_session(slot.session, session) || !is_valid_slot(log, &segment, &slot))
                continue;
            if (slot.first < sequence) {
                close_segment(&oldest);
                move_to(log, segment, (size_t)slot.offset);
                *is_before = true;
                return 1;
            }
            first = slot;
            has_first = true;
        }
        if (!has_first) {
            close_segment(&segment);
            if (oldest.map)
                break;
            continue;
        }
        close_segment(&oldest);
        oldest = segment;
        oldest_offset = (size_t)first.offset;
    }
    if (!oldest.map)
        return 0;
    move_to(log, oldest, oldest_offset);
    return 1;
}

static int seek_oldest(mdgw_log *log)
{
    close_segment(&log->segment);
    log->has_expected = false;
    return open_from(log, 0) < 0 ? -1 : 0;
}

/* Moves to the first entry of the session that covers `sequence` or a later one. *is_gone: the log has lost it, and the next entry is
 * the oldest one. */
static int seek(mdgw_log *log, const uint64_t session[2], uint64_t sequence, bool *is_gone)
{
    bool is_before;
    int found = move_to_slot(log, session, sequence, &is_before);
    *is_gone = true;
    if (found <= 0)
        return found < 0 ? -1 : seek_oldest(log);
    int peeked;
    if (!is_before) {
        peeked = peek(log);
        *is_gone = peeked != 1 || log->copy[4] > sequence;
        return peeked < 0 ? -1 : 0;
    }
    *is_gone = false;
    while ((peeked = peek(log)) == 1 && is_session(log->copy + 2, session) && log->copy[5] <= sequence && log->copy[4] < sequence)
        advance(log);
    return peeked < 0 ? -1 : 0;
}

/* Moves behind the last entry. Returns 1 and the entry's session, 0 if the log has none, or -1. */
static int seek_end(mdgw_log *log, uint64_t session[2])
{
    uint64_t number = UINT64_MAX;
    for (;;) {
        segment segment;
        int found = find_number(log, number, true, &number);
        int opened = found == 1 ? open_segment(log, number, &segment) : found;
        if (opened < 0)
            return -1;
        if (found == 0)
            break;
        if (opened == 0)
            continue;
        size_t from = segment.entries_offset;
        for (size_t i = slot_count(&segment); i-- > 0;) {
            slot slot = read_slot(&segment, i);
            if (is_valid_slot(log, &segment, &slot)) {
                from = (size_t)slot.offset;
                break;
            }
        }
        /* A segment made ahead has no entry yet: the log has not reached it. */
        if (copy_entry(log, &segment, from) != COPIED) {
            close_segment(&segment);
            continue;
        }
        move_to(log, segment, from);
        int peeked;
        while ((peeked = peek(log)) == 1) {
            memcpy(session, log->copy + 2, 2 * WORD);
            advance(log);
        }
        return peeked < 0 ? -1 : 1;
    }
    return seek_oldest(log);
}

/* Feed and date; the restart count is in the other word. */
static int seek_day(mdgw_log *log, const uint64_t session[2])
{
    uint64_t number = 0;
    for (;; number++) {
        segment segment;
        int found = number < UINT64_MAX ? find_number(log, number, false, &number) : 0;
        int opened = found == 1 ? open_segment(log, number, &segment) : found;
        if (opened < 0)
            return -1;
        if (found == 0)
            return seek_oldest(log);
        if (opened == 0)
            continue;
        for (size_t i = 0; i < slot_count(&segment); i++) {
            slot slot = read_slot(&segment, i);
            if (slot.session[0] == session[0] && is_valid_slot(log, &segment, &slot)) {
                move_to(log, segment, (size_t)slot.offset);
                return 0;
            }
        }
        close_segment(&segment);
    }
}

/* --- The log ---------------------------------------------------------------------------------------------------------- */

mdgw_log_config mdgw_log_default_config(const char *directory, uint16_t channel)
{
    return (mdgw_log_config){
        .directory = directory, .channel = channel, .start = MDGW_LOG_SESSION, .message_bytes_max = 1 << 16, .pause_ns = 100000};
}

static int start(mdgw_log *log)
{
    const mdgw_log_config *config = &log->config;
    uint64_t session[2] = {0, 0};
    bool is_gone = false;
    int found;
    /* Whatever the start: a directory whose oldest file is no segment of the channel is refused. */
    if (seek_oldest(log) < 0)
        return -1;
    switch (config->start) {
    case MDGW_LOG_OLDEST:
        return 0;
    case MDGW_LOG_LIVE:
        return seek_end(log, session) < 0 ? -1 : 0;
    case MDGW_LOG_RESUME:
        session[0] = config->resume_session.feed | (uint64_t)config->resume_session.date << 32;
        session[1] = config->resume_session.restart;
        mdgw_entries_resume(log->entries, config->resume_session, config->resume_sequence);
        if (seek(log, session, config->resume_sequence, &is_gone) < 0)
            return -1;
        log->is_after_loss = is_gone;
        return 0;
    default:
        found = seek_end(log, session);
        if (found <= 0)
            return found;
        return config->start == MDGW_LOG_DAY ? seek_day(log, session) : seek(log, session, 0, &is_gone);
    }
}

mdgw_log *mdgw_log_open(const mdgw_log_config *config, mdgw_deliver *deliver, void *user, char error[MDGW_LOG_ERROR_BYTES])
{
    mdgw_log *log = calloc(1, sizeof *log);
    if (!log || strlen(config->directory) >= PATH_BYTES) {
        snprintf(error, MDGW_LOG_ERROR_BYTES, "%s", log ? "the directory's path is too long" : "no memory");
        free(log);
        return NULL;
    }
    log->config = *config;
    strcpy(log->directory, config->directory);
    log->config.directory = log->directory;
    make_crc_table(log);
    log->entries = mdgw_entries_new(config->channel, config->message_bytes_max, deliver, user);
    if (!log->entries)
        snprintf(log->error, sizeof log->error, "no memory, or message_bytes_max above 1 GiB");
    if (!log->entries || start(log) < 0) {
        memcpy(error, log->error, MDGW_LOG_ERROR_BYTES);
        mdgw_log_close(log);
        return NULL;
    }
    return log;
}

void mdgw_log_close(mdgw_log *log)
{
    if (!log)
        return;
    close_segment(&log->segment);
    mdgw_entries_free(log->entries);
    free(log);
}

/* Turns the entry in the copy into the packet that the gateway makes of it: its header takes the place of the entry's. */
static void deliver_copy(mdgw_log *log)
{
    uint64_t sizes = log->copy[7], session[2] = {log->copy[2], log->copy[3]}, first = log->copy[4], next = log->copy[5];
    uint64_t *header = log->copy;
    header[0] = 0x5747444du | UINT64_C(1) << 32 | (sizes >> 48 & 0xff) << 40;
    header[1] = log->config.channel | (sizes >> 32 & 0xffff) << 16 | (uint64_t)log->payload_bytes << 32;
    header[2] = 0;
    header[3] = session[0];
    header[4] = session[1];
    header[5] = first;
    header[6] = next;
    header[7] = 0;
    /* Refusals are counted; what an invalid entry held is reported as lost with the next one. */
    mdgw_entries_accept(log->entries, (const uint8_t *)log->copy, ENTRY_HEADER_BYTES + log->payload_bytes, log->is_after_loss);
    log->is_after_loss = false;
}

/* Returns the number of entries, or -1. */
static int read_entries(mdgw_log *log)
{
    int count = 0;
    while (count < ENTRIES_PER_TURN) {
        int peeked = peek(log);
        if (peeked < 0)
            return count > 0 ? count : -1;
        if (peeked == 0)
            break;
        uint64_t missing = advance(log);
        log->is_after_loss |= missing > 0;
        count++;
        log->counts.entries++;
        if (log->is_after_loss) {
            log->counts.overruns++;
            log->counts.lost_entries += missing;
            log->counts.last_session =
                (mdgw_session){(uint16_t)log->copy[2], (uint32_t)(log->copy[2] >> 32), (uint32_t)log->copy[3]};
            log->counts.last_sequence = log->copy[4];
        }
        deliver_copy(log);
    }
    return count;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Whether the segment being read still has its name, as far as this process can see. */
static bool has_name(const mdgw_log *log)
{
    char path[SEGMENT_PATH_BYTES];
    struct stat at, own;
    segment_path(log, log->segment.number, path);
    if (stat(path, &at) != 0)
        return errno != ENOENT;
    return fstat(log->segment.fd, &own) != 0 || (at.st_dev == own.st_dev && at.st_ino == own.st_ino);
}

/* Somebody removed the log or renamed its directory, and the gateway made it anew: it is read from its beginning. What was delivered is
 * not delivered again. A sealed segment can be removed from a log that goes on. */
static int reopen_if_replaced(mdgw_log *log)
{
    uint64_t number;
    struct stat status;
    if (!log->segment.map || has_name(log) || copy_entry(log, &log->segment, log->offset) != UNCOMMITTED)
        return 0;
    /* Until the gateway has made the new log, there is nothing to go to. */
    if (stat(log->directory, &status) != 0 && errno == ENOENT)
        return 0;
    int found = find_number(log, 0, false, &number);
    if (found <= 0)
        return found;
    log->is_after_loss = true;
    return seek_oldest(log);
}

int mdgw_log_poll(mdgw_log *log, uint64_t timeout_ns)
{
    int count = read_entries(log);
    if (count != 0 || timeout_ns == 0)
        return count;
    uint64_t begin = now_ns(), passed = 0;
    while (passed < timeout_ns) {
        int looks = LOOKS_PER_CLOCK_READ;
        if (log->config.pause_ns > 0) {
            uint64_t pause = timeout_ns - passed < log->config.pause_ns ? timeout_ns - passed : log->config.pause_ns;
            struct timespec sleep = {.tv_sec = (time_t)(pause / 1000000000), .tv_nsec = (long)(pause % 1000000000)};
            nanosleep(&sleep, NULL);
            looks = 1;
        }
        for (; looks > 0; looks--) {
            if ((count = read_entries(log)) != 0)
                return count;
            relax();
        }
        passed = now_ns() - begin;
    }
    return reopen_if_replaced(log);
}

const char *mdgw_log_error(const mdgw_log *log) { return log->error; }

bool mdgw_log_position(const mdgw_log *log, mdgw_session *session, uint64_t *sequence)
{
    return mdgw_entries_position(log->entries, session, sequence);
}

mdgw_log_counts mdgw_log_counts_of(const mdgw_log *log) { return log->counts; }

mdgw_counts mdgw_log_item_counts(const mdgw_log *log) { return mdgw_entries_counts(log->entries); }
