/* client.c - connecting to the daemon and parting from it */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "buffer.h"
#include "context.h"
#include "error.h"
#include "gradwire.pb-c.h"
#include "group.h"

enum { CLIENT_NAME_BYTES = 64 };

/* ---- finding the socket ------------------------------------------------------------------------ */

/* The search for a socket: what was tried, for the message if none answers. */
typedef struct search {
    const char *setting; /* what named the path */
    char tried[384];
    bool is_closed; /* a socket is there, and this user may not open it */
    int socket;
} search_t;

static void note(search_t *search, const char *path, const char *reason) {
    size_t used = strlen(search->tried);
    snprintf(search->tried + used, sizeof(search->tried) - used, "%s%s (%s)", used > 0 ? ", " : "", path, reason);
}

/* connect says "refused" of everything that is no socket. */
static void note_refused(search_t *search, const char *path) {
    int error = errno;
    char reason[192];
    struct stat info;

    search->is_closed |= error == EACCES;
    if (error != ECONNREFUSED || stat(path, &info) != 0 || S_ISSOCK(info.st_mode))
        snprintf(reason, sizeof(reason), "%s", strerrordesc_np(error));
    else if (S_ISDIR(info.st_mode))
        snprintf(reason, sizeof(reason), "a folder: %s names the socket itself, such as %s/client.sock",
                 search->setting, path);
    else
        snprintf(reason, sizeof(reason), "not a socket");
    note(search, path, reason);
}

static gw_status_t fail_search(const search_t *search) {
    if (!search->is_closed)
        return gw_fail(GW_ERR_NO_DAEMON, "tried %s", search->tried);
    return gw_fail_advised(GW_ERR_NO_DAEMON,
                           "tried %s; a daemon is there, but this user may not open its socket: join the group that "
                           "owns it (socket.group in gradwired.conf), or start gradwired as this user",
                           search->tried);
}

/* Tries one path. Returns whether the search is over, with a socket or because of `*status_out`. */
static bool try_path(search_t *search, const char *path, gw_status_t *status_out) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int result;

    if (strlen(path) >= sizeof(address.sun_path)) {
        note(search, path, "longer than a socket's path may be");
        return false;
    }
    strcpy(address.sun_path, path);
    search->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (search->socket < 0) {
        *status_out = gw_fail_errno("socket");
        return true;
    }
    do {
        result = connect(search->socket, (const struct sockaddr *)&address, sizeof(address));
    } while (result < 0 && errno == EINTR);
    if (result == 0) {
        *status_out = GW_OK;
        return true;
    }
    note_refused(search, path);
    close(search->socket);
    search->socket = -1;
    return false;
}

/* Anybody can make a folder in /tmp under our name. */
static bool folder_is_ours(const char *folder) {
    struct stat info;
    return lstat(folder, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == getuid();
}

static gw_status_t find_daemon(const char *given, search_t *search) {
    const char *path = given != NULL ? given : secure_getenv("GRADWIRE_SOCKET");
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
    char folder[64], text[256];
    gw_status_t status;

    *search = (search_t){.setting = given != NULL ? "socket_path" : "GRADWIRE_SOCKET", .socket = -1};
    if (path != NULL && path[0] != '\0') {
        return try_path(search, path, &status) ? status : fail_search(search);
    }
    if (runtime != NULL && runtime[0] == '/') {
        snprintf(text, sizeof(text), "%s/gradwire/client.sock", runtime);
        if (try_path(search, text, &status))
            return status;
    }
    snprintf(folder, sizeof(folder), "/tmp/gradwire-%ld", (long)getuid());
    snprintf(text, sizeof(text), "%s/client.sock", folder);
    if (!folder_is_ours(folder))
        note(search, text, "no such folder of this user");
    else if (try_path(search, text, &status))
        return status;
    return try_path(search, "/run/gradwire/client.sock", &status) ? status : fail_search(search);
}

/* ---- the context ------------------------------------------------------------------------------- */

static gw_status_t greet(gw_context_t *context, const char *name) {
    char short_name[CLIENT_NAME_BYTES];
    Gw__Hello hello = GW__HELLO__INIT;
    gw_call_t call;

    snprintf(short_name, sizeof(short_name), "%s", name);
    hello.minor = GW_PROTO_MINOR;
    hello.client_name = short_name;
    gw_status_t status = gw_call_open(context, &call);
    if (status != GW_OK)
        return status;
    gw_call_send(&call, GW_MSG_HELLO, &hello.base, NULL, 0);
    status = gw_call_reply(&call, GW_MSG_WELCOME);
    if (status == GW_OK) {
        Gw__Welcome *welcome = gw__welcome__unpack(NULL, call.reply.header.body_bytes, call.reply.body);
        if (welcome == NULL) {
            status = gw_fail(GW_ERR_PROTOCOL, "the daemon's welcome cannot be read");
        } else {
            context->max_ranks = welcome->max_ranks;
            context->max_buffer_bytes = welcome->max_buffer_bytes;
            context->stream_bytes = welcome->stream_bytes;
            gw__welcome__free_unpacked(welcome, NULL);
        }
    }
    gw_call_close(&call);
    return status;
}

static void context_free(gw_context_t *context) {
    gw_watchdog_end(&context->watchdog, gw_context_is_forked(context));
    if (!gw_context_is_forked(context)) { /* in a child, a thread that it does not have may hold them */
        pthread_cond_destroy(&context->changed);
        pthread_mutex_destroy(&context->objects_lock);
        pthread_mutex_destroy(&context->lock);
        pthread_mutex_destroy(&context->send_lock);
    }
    if (context->socket >= 0)
        close(context->socket);
    free(context->buffers);
    free(context->packed);
    free(context);
}

static gw_context_t *context_new(void) {
    gw_context_t *context = calloc(1, sizeof(*context));
    if (context == NULL)
        return NULL;
    context->packed = malloc(GW_BODY_MAX);
    if (context->packed == NULL) {
        free(context);
        return NULL;
    }
    context->socket = -1;
    context->pid = getpid();
    pthread_mutex_init(&context->send_lock, NULL); /* these cannot fail with default attributes on Linux */
    pthread_mutex_init(&context->lock, NULL);
    pthread_mutex_init(&context->objects_lock, NULL);
    pthread_cond_init(&context->changed, NULL);
    gw_watchdog_init(&context->watchdog);
    return context;
}

gw_status_t gw_connect(const gw_options_t *options, gw_context_t **context_out) {
    const gw_options_t defaults = GW_OPTIONS_INIT;
    search_t search;

    if (options == NULL)
        options = &defaults;
    if (context_out == NULL)
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "context_out is NULL");
    if (options->struct_bytes != sizeof(*options))
        return gw_fail(GW_ERR_INVALID_ARGUMENT, "options->struct_bytes is %zu, not %zu: start from GW_OPTIONS_INIT",
                       options->struct_bytes, sizeof(*options));
    gw_context_t *context = context_new();
    if (context == NULL)
        return gw_fail(GW_ERR_NO_MEMORY, "a context of %zu bytes", sizeof(*context) + GW_BODY_MAX);
    gw_status_t status = find_daemon(options->socket_path, &search);
    if (status != GW_OK)
        goto err_context;
    context->socket = search.socket;
    status = greet(context, options->client_name != NULL ? options->client_name : program_invocation_short_name);
    if (status != GW_OK)
        goto err_context;
    *context_out = context;
    return GW_OK;

err_context:
    context_free(context);
    return status;
}

void gw_disconnect(gw_context_t *context) {
    if (context == NULL)
        return;
    while (context->groups != NULL)
        gw_group_free(context->groups);
    while (context->n_buffers > 0)
        gw_buffer_end(context->buffers[context->n_buffers - 1]);
    context_free(context);
}
