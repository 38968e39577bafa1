/* main.c - the admin CLI: one table of commands, which also makes the help */
#include "gwctl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradwire.h"

/* Options that only some commands take. */
enum {
    GWCTL_TAKES_JSON = 1,
    GWCTL_TAKES_WATCH = 2,
    GWCTL_TAKES_PROMETHEUS = 4,
    GWCTL_TAKES_DEVICES = 8,
    GWCTL_TAKES_TRACE = 16,
};

enum { GWCTL_FILES_MAX = 64 };

typedef struct gwctl_command {
    const char *name;
    const char *arguments;
    size_t n_arguments;
    int takes;
    const char *help; /* NULL: not for people, gwctl runs it itself */
    gwctl_command_fn run;
} gwctl_command_t;

static const gwctl_command_t commands[] = {
    {"status", "", 0, GWCTL_TAKES_JSON, "the daemon: state, sizes, CPU time, sockets", gwctl_status},
    {"clients", "", 0, GWCTL_TAKES_JSON, "who is connected", gwctl_clients},
    {"groups", "", 0, GWCTL_TAKES_JSON, "groups, their engine and why, and which rank is late", gwctl_groups},
    {"buffers", "", 0, GWCTL_TAKES_JSON, "memory that the daemon has mapped", gwctl_buffers},
    {"buckets", "", 0, GWCTL_TAKES_JSON, "declared operations and how long the last round took", gwctl_buckets},
    {"stats", "", 0, GWCTL_TAKES_JSON | GWCTL_TAKES_WATCH | GWCTL_TAKES_PROMETHEUS,
     "counters and times; --watch[=SECONDS] goes on and shows rates", gwctl_stats},
    {"config", "", 0, GWCTL_TAKES_JSON, "every setting, its value, and who set it", gwctl_config},
    {"log-level", "LEVEL", 1, GWCTL_TAKES_JSON, "set the log level: error, warning, notice, info or debug",
     gwctl_log_level},
    {"drain", "", 0, GWCTL_TAKES_JSON, "take nothing new, let groups end, then exit; again: exit now", gwctl_drain},
    {"kick", "CLIENT", 1, GWCTL_TAKES_JSON, "disconnect a client; its groups fail", gwctl_kick},
    {"trace", "", 0, GWCTL_TAKES_JSON | GWCTL_TAKES_TRACE,
     "what each rank waited for and the daemon did, for Perfetto or chrome://tracing", gwctl_trace},
    {"topo", "", 0, GWCTL_TAKES_JSON | GWCTL_TAKES_DEVICES,
     "the GPUs, the links between them, and how fast they copy; needs no daemon", gwctl_topo},
    {"links", "", 0, GWCTL_TAKES_JSON | GWCTL_TAKES_WATCH | GWCTL_TAKES_DEVICES,
     "network and RDMA links: throughput, errors, congestion; needs no daemon", gwctl_links},
    {"doctor", "", 0, GWCTL_TAKES_JSON, "check this host, its GPUs and the daemon, and say what to do", gwctl_doctor},
    {"version", "", 0, GWCTL_TAKES_JSON, "the versions of gwctl and of the daemon", gwctl_version},
    {"gpu-check", "PID", 1, 0, NULL, gwctl_gpu_check},
    {"gpu-import", "", 0, 0, NULL, gwctl_gpu_import},
};
enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void print_help(void) {
    fputs("usage: gwctl [option ...] COMMAND [argument]\n\n"
          "Looks after gradwired, the daemon that averages gradients on this host.\n\n"
          "Commands:\n",
          stdout);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].help != NULL)
            printf("  %-10s %-7s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    }
    fputs("\nOptions:\n"
          "  --socket PATH       the admin socket; else $GRADWIRE_ADMIN_SOCKET, or admin.sock beside\n"
          "                      $GRADWIRE_SOCKET, else gradwire/admin.sock in $XDG_RUNTIME_DIR,\n"
          "                      /tmp/gradwire-UID/admin.sock, /run/gradwire/admin.sock\n"
          "  --json              print JSON: the daemon's as it is\n"
          "  --watch[=SECONDS]   stats, links: print again every 2 seconds, or as often as is said\n"
          "  --prometheus        stats: print in the text format of Prometheus\n"
          "  --no-measure        topo: copy nothing, make no context on a GPU; links: show no rates\n"
          "  --device WHICH      topo: this GPU only, by index or UUID; links: this interface or RDMA device;\n"
          "                      may be repeated\n"
          "  --seconds N         trace: what happens from now on for so long, not what has happened last\n"
          "  --out FILE          trace: write to this file\n"
          "  --merge             trace: make one of the files that follow, of several nodes\n"
          "  --list-commands     print the names of the commands\n"
          "  --version           print the version of gwctl\n"
          "  -h, --help          print this\n\n"
          "Exit codes: 0 success, 1 failed, 2 wrong usage, 3 no daemon answers.\n",
          stdout);
}

static void print_names(void) {
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (commands[i].help != NULL)
            puts(commands[i].name);
    }
}

static int complain(const char *what, const char *which) {
    fprintf(stderr, "gwctl: %s%s: see `gwctl --help`\n", what, which);
    return GWCTL_USAGE;
}

static const gwctl_command_t *find_command(const char *name) {
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static bool parse_seconds(const char *text, double *seconds_out) {
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(seconds) || seconds < 0.1 || seconds > 86400)
        return false;
    *seconds_out = seconds;
    return true;
}

/* What is on the command line. */
typedef struct gwctl_line {
    gwctl_options_t options;
    const char *words[1 + GWCTL_FILES_MAX];
    size_t n_words;
    bool help, names, version;
} gwctl_line_t;

static int add_device(const char *which, gwctl_options_t *options) {
    if (options->n_devices == GWCTL_PICKS_MAX)
        return complain("too many devices", "");
    options->devices[options->n_devices++] = which;
    return GWCTL_OK;
}

/* The options of trace; false: it is none of them. As parse_option. */
static bool parse_trace_option(int argc, char **argv, int *place, gwctl_options_t *options, int *code_out) {
    const char *option = argv[*place];
    const char *value = *place + 1 < argc ? argv[*place + 1] : NULL;
    *code_out = GWCTL_OK;
    if (strcmp(option, "--merge") == 0) {
        options->merge = true;
        return true;
    }
    bool is_out = strncmp(option, "--out", 5) == 0 && (option[5] == '=' || option[5] == '\0');
    bool is_seconds = strncmp(option, "--seconds", 9) == 0 && (option[9] == '=' || option[9] == '\0');
    if (!is_out && !is_seconds)
        return false;
    if (strchr(option, '=') != NULL)
        value = strchr(option, '=') + 1;
    else if (value != NULL)
        ++*place;
    if (is_out && value != NULL && *value != '\0')
        options->out_path = value;
    else if (is_out)
        *code_out = complain("--out needs a path", "");
    else if (value == NULL || !parse_seconds(value, &options->seconds))
        *code_out = complain("--seconds wants 0.1 to 86400 seconds, not ", value != NULL ? value : "nothing");
    return true;
}

/* Takes the option at argv[*place] and moves *place to its last word. */
static int parse_option(int argc, char **argv, int *place, gwctl_line_t *line) {
    const char *option = argv[*place];
    int code;
    if (parse_trace_option(argc, argv, place, &line->options, &code))
        return code;
    if (strcmp(option, "--help") == 0 || strcmp(option, "-h") == 0) {
        line->help = true;
    } else if (strcmp(option, "--version") == 0) {
        line->version = true;
    } else if (strcmp(option, "--list-commands") == 0) {
        line->names = true;
    } else if (strcmp(option, "--json") == 0) {
        line->options.json = true;
    } else if (strcmp(option, "--prometheus") == 0) {
        line->options.prometheus = true;
    } else if (strcmp(option, "--watch") == 0) {
        line->options.watch_s = 2;
    } else if (strncmp(option, "--watch=", 8) == 0) {
        if (!parse_seconds(option + 8, &line->options.watch_s))
            return complain("--watch wants 0.1 to 86400 seconds, not ", option + 8);
    } else if (strncmp(option, "--socket=", 9) == 0) {
        line->options.socket_path = option + 9;
    } else if (strcmp(option, "--socket") == 0) {
        if (*place + 1 >= argc)
            return complain("--socket needs a path", "");
        line->options.socket_path = argv[++*place];
    } else if (strcmp(option, "--no-measure") == 0) {
        line->options.no_measure = true;
    } else if (strncmp(option, "--device=", 9) == 0) {
        return add_device(option + 9, &line->options);
    } else if (strcmp(option, "--device") == 0) {
        if (*place + 1 >= argc)
            return complain("--device needs an index or a UUID", "");
        return add_device(argv[++*place], &line->options);
    } else {
        return complain("unknown option ", option);
    }
    return GWCTL_OK;
}

static int parse_line(int argc, char **argv, gwctl_line_t *line) {
    bool only_words = false;
    for (int place = 1; place < argc; place++) {
        if (!only_words && strcmp(argv[place], "--") == 0) {
            only_words = true;
        } else if (!only_words && argv[place][0] == '-') {
            int code = parse_option(argc, argv, &place, line);
            if (code != GWCTL_OK)
                return code;
        } else if (line->n_words < sizeof(line->words) / sizeof(line->words[0])) {
            line->words[line->n_words++] = argv[place];
        } else {
            return complain("too many arguments", "");
        }
    }
    return GWCTL_OK;
}

static int check_line(const gwctl_line_t *line, const gwctl_command_t *command) {
    if (line->n_words - 1 < command->n_arguments) {
        fprintf(stderr, "gwctl: %s needs %s: see `gwctl --help`\n", command->name, command->arguments);
        return GWCTL_USAGE;
    }
    if ((line->options.merge || line->options.seconds > 0 || line->options.out_path != NULL) &&
        !(command->takes & GWCTL_TAKES_TRACE))
        return complain("--merge, --seconds and --out do not go with ", command->name);
    if (line->options.merge && (line->n_words < 3 || line->options.seconds > 0))
        return complain("--merge wants two files or more, and no --seconds", "");
    if (line->n_words - 1 > command->n_arguments && !line->options.merge)
        return complain("too many arguments for ", command->name);
    if (line->options.watch_s > 0 && !(command->takes & GWCTL_TAKES_WATCH))
        return complain("--watch does not go with ", command->name);
    if (line->options.prometheus && !(command->takes & GWCTL_TAKES_PROMETHEUS))
        return complain("--prometheus does not go with ", command->name);
    if ((line->options.no_measure || line->options.n_devices > 0) && !(command->takes & GWCTL_TAKES_DEVICES))
        return complain(line->options.no_measure ? "--no-measure does not go with " : "--device does not go with ",
                        command->name);
    if (line->options.no_measure && line->options.watch_s > 0)
        return complain("--no-measure does not go with --watch", "");
    if (line->options.prometheus && (line->options.json || line->options.watch_s > 0))
        return complain("--prometheus goes with no other format", "");
    return GWCTL_OK;
}

int main(int argc, char **argv) {
    gwctl_line_t line = {0};
    int code = parse_line(argc, argv, &line);
    if (code != GWCTL_OK)
        return code;
    if (line.help) {
        print_help();
        return gwctl_finish(GWCTL_OK);
    }
    if (line.version) {
        printf("gwctl %s\n", gw_version());
        return gwctl_finish(GWCTL_OK);
    }
    if (line.names) {
        print_names();
        return gwctl_finish(GWCTL_OK);
    }
    if (line.n_words == 0)
        return complain("a command is missing", "");
    const gwctl_command_t *command = find_command(line.words[0]);
    if (command == NULL)
        return complain("unknown command ", line.words[0]);
    code = check_line(&line, command);
    if (code != GWCTL_OK)
        return code;
    return gwctl_finish(command->run(&line.options, line.words + 1, line.n_words - 1));
}
