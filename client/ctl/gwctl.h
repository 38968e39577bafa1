/* gwctl.h - the admin CLI: what its files share
 *
 * gwctl sends one AdminRequest and shows the JSON that comes back: as it is with --json, as a table otherwise. It
 * has no knowledge of its own about what the daemon counts or configures; names, units and help come with the data.
 *
 * The JSON of each command ("?" after a name: may be missing):
 *
 *   status     {"version", "node", "host", "pid", "uptime_s", "engine", "isa", "state": "serving" | "draining",
 *               "clients", "groups", "buffers", "buffer_bytes", "buckets", "residual_bytes", "flight_bytes", "lanes",
 *               "reduce_threads", "cpu_s",
 *               "resident_bytes", "shared_bytes", "socket", "admin_socket", "config_file"}
 *   clients    [{"id", "uid", "pid", "name", "role": "client" | "admin", "connected_s", "groups", "buffers",
 *                "buffer_bytes"}]
 *   groups     [{"id", "nranks", "uid", "epoch", "engine", "why",
 *                "plan": [{"max_bytes", "engine", "mover", "codec", "chunk_bytes"}], "plan_hash": text, "lane",
 *                "wire"?: {"codec", "rounding", "why", "nodes", "bytes_per_s"?, "latency_us"?,
 *                          "sizes": [{"max_bytes", "codec", "planned", "predicted_us"?, "measured_us"?, "ops",
 *                                     "bytes_before", "bytes_after"}]},
 *                "state": "id" | "forming" | "ok" | "failed", "status": "GW_OK" and so on, "message",
 *                "last_completed", "in_flight", "late"?: {"sequence", "waited_s", "ranks": [number]},
 *                "ranks": [{"rank", "present": true | false, "client", "pid", "uid", "host", "submitted",
 *                           "last_count", "last_ns"}]}]
 *              The last row of a plan has no upper end: max_bytes 2^64. chunk_bytes 0: one piece.
 *              late: the operation that waits for ranks since deadline.late_ms, and for which.
 *              A group that is "id" or "forming" has no engine, plan and status; a rank
 *              that is not present has no client.
 *   buffers    [{"id", "client", "uid", "bytes", "kind", "path"?, "copied": true | false}]
 *   buckets    [{"group", "rank", "bucket", "name", "collective", "type", "redop", "count", "codec", "codec_asked",
 *                "priority", "residual_bytes", "matrices", "rounds", "last_us", "no_error_feedback"}]
 *   stats      {"stats": [{"name", "kind", "unit", "help", "value"  or  "count", "sum", "p50", "p99", "buckets": []}],
 *               "groups": [{"id", "rank", "last_count", "last_ns"}]}
 *   config     [{"name", "value", "default", "source", "unit", "reloadable", "help"}]
 *   log-level  {"level"}        argument: the level
 *   drain      {"state"}
 *   kick       {"client"}       argument: the client's id
 *   topo       {"gpus": [{"index", "uuid", "name", "bus_id", "numa_node", "memory_bytes"}], "reason"?,
 *               "driver"?, "cuda"?, "links"?: [[text]], "copies"?: {...}}, made by gwctl itself, see topo_json.c
 *   links      {"interval_s", "interfaces": [{...}], "host": {...}, "rdma": [{...}]}, made by gwctl itself, see
 *              links_json.c
 *   trace      {"version", "node", "host", "pid", "monotonic_ns", "realtime_ns", "events": [{"kind", "group",
 *               "sequence", "time_ns", "name"?, "codec"?, "rank"?, "node"?, "status"?, "duration_ns"?, "bytes"?}],
 *               "lost", "more": true | false, "cursor": text}
 *              argument: the cursor of the last page, "end", or none. What is printed is made by gwctl, see trace.h
 *
 * Failures come as an Error message in place of the reply.
 */
#ifndef GWCTL_H
#define GWCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

/* Exit codes. */
enum {
    GWCTL_OK = 0,
    GWCTL_FAILED = 1,
    GWCTL_USAGE = 2,
    GWCTL_NO_DAEMON = 3,
};

enum { GWCTL_PICKS_MAX = 64 };

typedef struct gwctl_options {
    const char *socket_path; /* NULL: the search order of gwctl_open */
    bool json;
    bool prometheus;
    double watch_s; /* 0: once */
    const char *devices[GWCTL_PICKS_MAX];
    size_t n_devices; /* 0: all */
    bool no_measure;
    double seconds;       /* 0: what there is */
    const char *out_path; /* NULL: stdout */
    bool merge;
} gwctl_options_t;

/* ---- ask.c: the connection ---------------------------------------------------------------------- */

typedef struct gwctl_connection {
    int fd;
    uint32_t request;
    char path[256];     /* of the socket in use */
    char version[32];   /* of the daemon */
    char error[1024];   /* of the last call that failed: what */
    const char *remedy; /* and what to do about it; "" where nothing is known */
} gwctl_connection_t;

/* Connects to the daemon's admin socket and introduces itself. Without a path it tries $GRADWIRE_ADMIN_SOCKET (alone,
 * if set), admin.sock beside $GRADWIRE_SOCKET (alone, if set), $XDG_RUNTIME_DIR/gradwire/admin.sock,
 * /tmp/gradwire-UID/admin.sock (only if the folder is this user's), /run/gradwire/admin.sock.
 * Returns an exit code; `error` says why it is not GWCTL_OK. End it with gwctl_close. */
int gwctl_open(const char *socket_path, gwctl_connection_t *connection);
void gwctl_close(gwctl_connection_t *connection);

/* Says on stderr why the last call failed, and what to do. */
void gwctl_complain(const gwctl_connection_t *connection);

/* Sends a command and collects its JSON text, which the caller frees. Returns an exit code, as gwctl_open. */
int gwctl_ask(gwctl_connection_t *connection, const char *command, const char *const *arguments, size_t n_arguments,
              char **json_out);

/* All of it for one command: connects, asks, complains on stderr, and prints the JSON with --json. Otherwise the
 * parsed JSON is in *json_out, the caller's to delete; NULL when everything is said already. Returns an exit code. */
int gwctl_fetch(const gwctl_options_t *options, const char *command, const char *const *arguments, size_t n_arguments,
                cJSON **json_out);

/* Parses what gwctl_ask gave, and frees it. NULL, with a complaint on stderr, when it is no JSON. */
cJSON *gwctl_parse(char *json);

/* ---- print.c: tables and units ------------------------------------------------------------------ */

/* Text and number of a field; "" and 0 when it is missing. */
const char *gwctl_text(const cJSON *object, const char *field);
double gwctl_number(const cJSON *object, const char *field);

#define GWCTL_CELL_BYTES  160
#define GWCTL_COLUMNS_MAX 72

/* One cell of a table. Text is made harmless when it is printed. */
typedef struct gwctl_cell {
    char text[GWCTL_CELL_BYTES];
} gwctl_cell_t;

gwctl_cell_t gwctl_cell_text(const char *text);
gwctl_cell_t gwctl_cell_count(double count);
gwctl_cell_t gwctl_cell_bytes(double bytes); /* 64.0 MiB */
gwctl_cell_t gwctl_cell_ns(double ns);       /* 1.25 ms */
gwctl_cell_t gwctl_cell_age(double seconds); /* 3 d 4 h */
gwctl_cell_t gwctl_cell_user(double uid);    /* the name, if there is one */

/* A table of at most GWCTL_COLUMNS_MAX columns: a header, then cells row by row. A column whose header begins with
 * '>' is flushed right. */
typedef struct gwctl_table {
    const char *const *headers;
    size_t n_columns;
    gwctl_cell_t *cells;
    size_t n_cells, n_allocated;
    bool failed; /* out of memory */
} gwctl_table_t;

void gwctl_table_init(gwctl_table_t *table, const char *const *headers, size_t n_columns);
void gwctl_table_add(gwctl_table_t *table, gwctl_cell_t cell);

/* Prints the table, each line behind `indent`, or `nothing` when it has no row, and frees it. Returns an exit code. */
int gwctl_table_print(gwctl_table_t *table, const char *indent, const char *nothing);

/* The sequence that begins or ends a colour; "" unless stdout is a terminal. */
typedef enum gwctl_colour { GWCTL_PLAIN, GWCTL_BOLD, GWCTL_RED, GWCTL_YELLOW, GWCTL_GREEN } gwctl_colour_t;
const char *gwctl_colour(gwctl_colour_t colour);

/* Prints "name   value", both harmless. */
void gwctl_print_pair(const char *name, const char *value);

/* Prints text of others on stdout, harmless. */
void gwctl_print_text(const char *text);

/* Prints a document on one line and deletes it. NULL: there was no memory for it. Returns an exit code. */
int gwctl_print_json(cJSON *document);

/* Ends the output: GWCTL_FAILED, with a complaint, when stdout took not all of it. */
int gwctl_finish(int code);

/* ---- commands ----------------------------------------------------------------------------------- */

typedef int (*gwctl_command_fn)(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);

int gwctl_status(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_clients(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_groups(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_buffers(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_buckets(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_stats(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_config(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_log_level(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_drain(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_kick(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_trace(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_doctor(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_topo(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_links(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_version(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);

/* What doctor runs in processes of their own: the GPU checks, and the opening of another process's memory. */
int gwctl_gpu_check(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);
int gwctl_gpu_import(const gwctl_options_t *options, const char *const *arguments, size_t n_arguments);

/* prometheus.c: the text format, from the JSON of stats and status. */
void gwctl_print_prometheus(const cJSON *stats, const cJSON *status);

#endif
