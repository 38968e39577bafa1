/* ask.c - the connection to the daemon's admin socket: one request, one JSON document */
#include "gwctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "escape.h"
#include "frame.h"
#include "gradwire.pb-c.h"

#define GWCTL_ANSWER_SECONDS 10
#define GWCTL_JSON_BYTES_MAX (1u << 30)

/* ---- where the daemon is ------------------------------------------------------------------------ */

#define GWCTL_PATHS 3

typedef struct gwctl_paths {
    char path[GWCTL_PATHS][256];
    const char *unfit[GWCTL_PATHS]; /* why a path is not even tried; NULL: it is */
    size_t count;
} gwctl_paths_t;

static void add_path(gwctl_paths_t *paths, const char *folder, size_t folder_bytes, const char *rest) {
    paths->unfit[paths->count] = NULL;
    snprintf(paths->path[paths->count++], sizeof(paths->path[0]), "%.*s%s", (int)folder_bytes, folder, rest);
}

/* A folder in /tmp may be anybody's trap, unless it is ours. */
static bool is_own_folder(const char *folder) {
    struct stat status;
    return lstat(folder, &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == geteuid();
}

static void find_paths(const char *socket_path, gwctl_paths_t *paths) {
    const char *admin = getenv("GRADWIRE_ADMIN_SOCKET");
    const char *client = getenv("GRADWIRE_SOCKET");
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char folder[64];
    paths->count = 0;
    if (socket_path == NULL && admin != NULL && admin[0] != '\0')
        socket_path = admin;
    if (socket_path != NULL) {
        add_path(paths, socket_path, strlen(socket_path), "");
        return;
    }
    if (client != NULL && client[0] != '\0') {
        const char *slash = strrchr(client, '/');
        add_path(paths, client, slash != NULL ? (size_t)(slash - client) + 1 : 0, "admin.sock");
        return;
    }
    if (runtime != NULL && runtime[0] == '/')
        add_path(paths, runtime, strlen(runtime), "/gradwire/admin.sock");
    snprintf(folder, sizeof(folder), "/tmp/gradwire-%u", (unsigned)geteuid());
    add_path(paths, folder, strlen(folder), "/admin.sock");
    if (!is_own_folder(folder))
        paths->unfit[paths->count - 1] = "no such folder of this user";
    add_path(paths, "/run/gradwire", 13, "/admin.sock");
}

/* Returns the socket, or the negative errno. */
static int connect_path(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = GWCTL_ANSWER_SECONDS};
    if (strlen(path) >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0 ||
        connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

/* Adds to the list of what was tried. */
static void note(gwctl_connection_t *connection, const char *path, const char *reason) {
    size_t used = strlen(connection->error);
    snprintf(connection->error + used, sizeof(connection->error) - used, "%s%s (%s)",
             used > 0 ? ", " : "no daemon answers: tried ", path, reason);
}

static int connect_any(const gwctl_paths_t *paths, gwctl_connection_t *connection) {
    for (size_t i = 0; i < paths->count; i++) {
        if (paths->unfit[i] != NULL) {
            note(connection, paths->path[i], paths->unfit[i]);
            continue;
        }
        int fd = connect_path(paths->path[i]);
        if (fd >= 0) {
            connection->fd = fd;
            memcpy(connection->path, paths->path[i], sizeof(connection->path));
            connection->error[0] = '\0';
            return GWCTL_OK;
        }
        if (fd == -ENOENT || fd == -ECONNREFUSED || fd == -ENOTDIR) {
            note(connection, paths->path[i], strerror(-fd));
            continue;
        }
        if (fd == -EACCES)
            connection->remedy = "run gwctl as root, or as a member of socket.admin_group";
        snprintf(connection->error, sizeof(connection->error), "%s: %s", paths->path[i], strerror(-fd));
        return GWCTL_FAILED;
    }
    connection->remedy = "start gradwired, or name its admin socket with --socket or GRADWIRE_ADMIN_SOCKET";
    return GWCTL_NO_DAEMON;
}

/* ---- messages ----------------------------------------------------------------------------------- */

static int fail(gwctl_connection_t *connection, const char *what) {
    snprintf(connection->error, sizeof(connection->error), "%s: %s", connection->path, what);
    return GWCTL_FAILED;
}

static int send_message(gwctl_connection_t *connection, uint16_t type, const ProtobufCMessage *message) {
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > GW_BODY_MAX)
        return fail(connection, "the request is too long");
    uint8_t *body = malloc(bytes + 1);
    if (body == NULL)
        return fail(connection, "out of memory");
    protobuf_c_message_pack(message, body);
    gw_frame_result_t result = gw_frame_send(connection->fd, type, ++connection->request, body, bytes, NULL, 0);
    free(body);
    if (result == GW_FRAME_OK)
        return GWCTL_OK;
    if (result == GW_FRAME_CLOSED)
        return fail(connection, "the daemon closed the connection");
    return fail(connection, result == GW_FRAME_AGAIN ? "the daemon takes no request" : "the request cannot be sent");
}

/* Turns an Error message into ours. Its text is the daemon's, but may hold names of clients. */
static int take_error(gwctl_connection_t *connection, const gw_frame_t *frame) {
    Gw__Error *message = gw__error__unpack(NULL, frame->header.body_bytes, frame->body);
    if (message == NULL)
        return fail(connection, "an error that cannot be read");
    gw_escape(message->text, strlen(message->text), connection->error, sizeof(connection->error));
    gw__error__free_unpacked(message, NULL);
    return GWCTL_FAILED;
}

/* Receives the next message, which must be of `type`; the body lies in `storage`. */
static int receive_message(gwctl_connection_t *connection, uint16_t type, uint8_t *storage, gw_frame_t *frame) {
    const char *why = "";
    switch (gw_frame_recv(connection->fd, storage, frame, &why)) {
    case GW_FRAME_OK:
        break;
    case GW_FRAME_AGAIN:
        return fail(connection, "the daemon does not answer");
    case GW_FRAME_CLOSED:
        return fail(connection, "the daemon closed the connection");
    default:
        return fail(connection, why[0] != '\0' ? why : "the answer cannot be received");
    }
    gw_frame_close_fds(frame);
    if (frame->header.type == GW_MSG_ERROR)
        return take_error(connection, frame);
    if (frame->header.type != type || frame->header.request != connection->request)
        return fail(connection, "an answer that does not belong to the request");
    return GWCTL_OK;
}

static int introduce(gwctl_connection_t *connection, uint8_t *storage) {
    gw_frame_t frame;
    Gw__Hello hello = GW__HELLO__INIT;
    hello.minor = GW_PROTO_MINOR;
    hello.client_name = (char *)(uintptr_t) "gwctl";
    int code = send_message(connection, GW_MSG_HELLO, &hello.base);
    if (code == GWCTL_OK)
        code = receive_message(connection, GW_MSG_WELCOME, storage, &frame);
    if (code != GWCTL_OK)
        return code;
    Gw__Welcome *welcome = gw__welcome__unpack(NULL, frame.header.body_bytes, frame.body);
    if (welcome == NULL)
        return fail(connection, "a welcome that cannot be read");
    gw_escape(welcome->version, strlen(welcome->version), connection->version, sizeof(connection->version));
    gw__welcome__free_unpacked(welcome, NULL);
    return GWCTL_OK;
}

int gwctl_open(const char *socket_path, gwctl_connection_t *connection) {
    gwctl_paths_t paths;
    *connection = (gwctl_connection_t){.fd = -1, .remedy = ""};
    find_paths(socket_path, &paths);
    int code = connect_any(&paths, connection);
    if (code != GWCTL_OK)
        return code;
    uint8_t *storage = malloc(GW_PACKET_MAX);
    code = storage != NULL ? introduce(connection, storage) : fail(connection, "out of memory");
    free(storage);
    if (code != GWCTL_OK)
        gwctl_close(connection);
    return code;
}

void gwctl_close(gwctl_connection_t *connection) {
    if (connection->fd >= 0)
        close(connection->fd);
    connection->fd = -1;
}

void gwctl_complain(const gwctl_connection_t *connection) {
    fprintf(stderr, "gwctl: %s%s%s\n", connection->error, connection->remedy[0] != '\0' ? "; " : "",
            connection->remedy);
}

/* Appends one piece of the document; *last_out says whether it was the last. */
static int take_piece(gwctl_connection_t *connection, const gw_frame_t *frame, char **json, size_t *json_bytes,
                      bool *last_out) {
    Gw__AdminReply *reply = gw__admin_reply__unpack(NULL, frame->header.body_bytes, frame->body);
    if (reply == NULL)
        return fail(connection, "an answer that cannot be read");
    int code = GWCTL_OK;
    size_t bytes = reply->json.len;
    char *longer = NULL;
    if (*json_bytes + bytes > GWCTL_JSON_BYTES_MAX || (longer = realloc(*json, *json_bytes + bytes + 1)) == NULL) {
        code = fail(connection, "the answer does not fit into memory");
    } else {
        if (bytes > 0)
            memcpy(longer + *json_bytes, reply->json.data, bytes);
        *json = longer;
        *json_bytes += bytes;
        longer[*json_bytes] = '\0';
        *last_out = reply->last != 0;
    }
    gw__admin_reply__free_unpacked(reply, NULL);
    return code;
}

int gwctl_ask(gwctl_connection_t *connection, const char *command, const char *const *arguments, size_t n_arguments,
              char **json_out) {
    gw_frame_t frame;
    char *json = NULL;
    size_t json_bytes = 0;
    bool last = false;
    Gw__AdminRequest request = GW__ADMIN_REQUEST__INIT;
    request.command = (char *)(uintptr_t)command;
    request.argument = (char **)(uintptr_t)arguments;
    request.n_argument = n_arguments;
    uint8_t *storage = malloc(GW_PACKET_MAX);
    if (storage == NULL)
        return fail(connection, "out of memory");
    int code = send_message(connection, GW_MSG_ADMIN_REQUEST, &request.base);
    while (code == GWCTL_OK && !last) {
        code = receive_message(connection, GW_MSG_ADMIN_REPLY, storage, &frame);
        if (code == GWCTL_OK)
            code = take_piece(connection, &frame, &json, &json_bytes, &last);
    }
    free(storage);
    if (code == GWCTL_OK)
        *json_out = json;
    else
        free(json);
    return code;
}

cJSON *gwctl_parse(char *json) {
    cJSON *document = cJSON_Parse(json);
    free(json);
    if (document == NULL)
        fprintf(stderr, "gwctl: the daemon's answer is no JSON: are gwctl and gradwired of the same version?\n");
    return document;
}

int gwctl_fetch(const gwctl_options_t *options, const char *command, const char *const *arguments, size_t n_arguments,
                cJSON **json_out) {
    gwctl_connection_t connection;
    char *json = NULL;
    *json_out = NULL;
    int code = gwctl_open(options->socket_path, &connection);
    if (code == GWCTL_OK)
        code = gwctl_ask(&connection, command, arguments, n_arguments, &json);
    gwctl_close(&connection);
    if (code != GWCTL_OK) {
        gwctl_complain(&connection);
        return code;
    }
    if (options->json) {
        puts(json);
        free(json);
        return GWCTL_OK;
    }
    *json_out = gwctl_parse(json);
    return *json_out != NULL ? GWCTL_OK : GWCTL_FAILED;
}
