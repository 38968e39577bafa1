/* log.h - the daemon's log: one line a message, to stderr
 *
 * Each message has a topic and a level, checked before its arguments are looked at. Under systemd the line begins
 * with the priority that the journal reads; elsewhere with the time. What clients sent is made harmless here, for
 * every message, so that no caller can forget it.
 *
 * What the levels mean: error - something is lost that should not be, an operator must look. warning - it went on,
 * but not as meant (a late rank, a refused client). notice - rare events of a normal life (start, reload, drain, a
 * group that failed). info - clients and groups come and go. debug - anything, still never once a bucket.
 *
 * Thread: any. Blocking: one write(2).
 */
#ifndef GWD_LOG_H
#define GWD_LOG_H

#include <stdatomic.h>

typedef enum gwd_log_level {
    GWD_LOG_ERROR,
    GWD_LOG_WARNING,
    GWD_LOG_NOTICE,
    GWD_LOG_INFO,
    GWD_LOG_DEBUG,
} gwd_log_level_t; /* in the order of the words of log.level in config.def */

extern atomic_int gwd_log_level; /* the least important level that is written */

/* gwd_log(GWD_LOG_WARNING, "group", "rank %d is late", rank); the topic is the name of the module. No newline at
 * the end. errno is left alone, and %m works. */
#define gwd_log(level, topic, ...)                                                                                     \
    do {                                                                                                               \
        if (gwd_log_enabled(level))                                                                                    \
            gwd_log_write(level, topic, __VA_ARGS__);                                                                  \
    } while (0)

static inline int gwd_log_enabled(gwd_log_level_t level) {
    return (int)level <= atomic_load_explicit(&gwd_log_level, memory_order_relaxed);
}

void gwd_log_write(gwd_log_level_t level, const char *topic, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Looks at stderr: the journal, a terminal, or something else. Call once, before other threads log. */
void gwd_log_init(void);

void gwd_log_set_level(gwd_log_level_t level);

/* The level of that name, or -1. */
int gwd_log_find_level(const char *name);

#endif
