/* Prints what a gateway on this host publishes of a channel, one item on a line.
 * Compile: cc -std=c11 -O2 -I../../subscriber/c -o log_example log_example.c mdgw_log.c ../../subscriber/c/mdgw_subscriber.c
 *
 * Usage: log_example DIRECTORY CHANNEL [--start session|day|oldest|live] [--resume FEED DATE RESTART SEQUENCE] [--spin] [--until-idle] */
#define _POSIX_C_SOURCE 200809L
#include "mdgw_log.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t is_stopped;

static void stop(int number)
{
    (void)number;
    is_stopped = 1;
}

static void on_item(void *user, const mdgw_item *item)
{
    static char text[1 << 18];
    (void)user;
    mdgw_describe(item, text, sizeof text);
    puts(text);
}

int main(int argc, char **argv)
{
    bool is_valid = argc >= 3, until_idle = false;
    mdgw_log_config config = mdgw_log_default_config(is_valid ? argv[1] : "", is_valid ? (uint16_t)strtoul(argv[2], NULL, 10) : 0);
    for (int i = 3; i < argc && is_valid; i++) {
        if (strcmp(argv[i], "--until-idle") == 0) {
            until_idle = true;
        } else if (strcmp(argv[i], "--spin") == 0) {
            config.pause_ns = 0;
        } else if (strcmp(argv[i], "--start") == 0 && i + 1 < argc) {
            const char kind = *argv[++i];
            config.start = kind == 'd' ? MDGW_LOG_DAY : kind == 'o' ? MDGW_LOG_OLDEST : kind == 'l' ? MDGW_LOG_LIVE : MDGW_LOG_SESSION;
        } else if (strcmp(argv[i], "--resume") == 0 && i + 4 < argc) {
            config.start = MDGW_LOG_RESUME;
            config.resume_session = (mdgw_session){(uint16_t)strtoul(argv[i + 1], NULL, 10), (uint32_t)strtoul(argv[i + 2], NULL, 10),
                                                   (uint32_t)strtoul(argv[i + 3], NULL, 10)};
            config.resume_sequence = strtoull(argv[i + 4], NULL, 10);
            i += 4;
        } else {
            is_valid = false;
        }
    }
    if (!is_valid) {
        fprintf(stderr, "usage: log_example DIRECTORY CHANNEL [--start session|day|oldest|live] "
                        "[--resume FEED DATE RESTART SEQUENCE] [--spin] [--until-idle]\n");
        return 2;
    }
    char error[MDGW_LOG_ERROR_BYTES];
    mdgw_log *log = mdgw_log_open(&config, on_item, NULL, error);
    if (!log) {
        fprintf(stderr, "log_example: %s\n", error);
        return 2;
    }
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    fprintf(stderr, "reading\n");
    int code = 0;
    for (int count = 1; !is_stopped && !(until_idle && count == 0) && code == 0;) {
        count = mdgw_log_poll(log, 50000000);
        if (count < 0) {
            fprintf(stderr, "log_example: %s\n", mdgw_log_error(log));
            code = 2;
        }
        fflush(stdout);
    }
    mdgw_log_counts counts = mdgw_log_counts_of(log);
    fprintf(stderr, "%" PRIu64 " entries, %" PRIu64 " overruns, %" PRIu64 " messages lost\n", counts.entries, counts.overruns,
            mdgw_log_item_counts(log).lost_messages);
    mdgw_log_close(log);
    return code;
}
