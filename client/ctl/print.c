/* print.c - tables, units and colours for people */
#include "gwctl.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "escape.h"

const char *gwctl_text(const cJSON *object, const char *field) {
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, field));
    return text != NULL ? text : "";
}

double gwctl_number(const cJSON *object, const char *field) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, field);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

/* ---- cells -------------------------------------------------------------------------------------- */

gwctl_cell_t gwctl_cell_text(const char *text) {
    gwctl_cell_t cell;
    gw_escape(text, strlen(text), cell.text, sizeof(cell.text));
    return cell;
}

gwctl_cell_t gwctl_cell_count(double count) {
    gwctl_cell_t cell;
    snprintf(cell.text, sizeof(cell.text), "%.0f", count);
    return cell;
}

gwctl_cell_t gwctl_cell_bytes(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    gwctl_cell_t cell;
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        bytes /= 1024;
        unit++;
    }
    snprintf(cell.text, sizeof(cell.text), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return cell;
}

gwctl_cell_t gwctl_cell_ns(double ns) {
    gwctl_cell_t cell;
    if (ns < 1e3)
        snprintf(cell.text, sizeof(cell.text), "%.0f ns", ns);
    else if (ns < 1e6)
        snprintf(cell.text, sizeof(cell.text), "%.2f us", ns / 1e3);
    else if (ns < 1e9)
        snprintf(cell.text, sizeof(cell.text), "%.2f ms", ns / 1e6);
    else
        snprintf(cell.text, sizeof(cell.text), "%.2f s", ns / 1e9);
    return cell;
}

gwctl_cell_t gwctl_cell_age(double seconds) {
    gwctl_cell_t cell;
    long whole = (long)seconds;
    if (whole < 60)
        snprintf(cell.text, sizeof(cell.text), "%ld s", whole);
    else if (whole < 3600)
        snprintf(cell.text, sizeof(cell.text), "%ld min %ld s", whole / 60, whole % 60);
    else if (whole < 86400)
        snprintf(cell.text, sizeof(cell.text), "%ld h %ld min", whole / 3600, whole % 3600 / 60);
    else
        snprintf(cell.text, sizeof(cell.text), "%ld d %ld h", whole / 86400, whole % 86400 / 3600);
    return cell;
}

gwctl_cell_t gwctl_cell_user(double uid) {
    const struct passwd *user = getpwuid((uid_t)uid);
    return user != NULL ? gwctl_cell_text(user->pw_name) : gwctl_cell_count(uid);
}

/* ---- colours ------------------------------------------------------------------------------------ */

const char *gwctl_colour(gwctl_colour_t colour) {
    static const char *const sequences[] = {"\033[0m", "\033[1m", "\033[31m", "\033[33m", "\033[32m"};
    static int coloured = -1;
    if (coloured < 0)
        coloured = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL;
    return coloured ? sequences[colour] : "";
}

/* ---- tables ------------------------------------------------------------------------------------- */

void gwctl_table_init(gwctl_table_t *table, const char *const *headers, size_t n_columns) {
    *table = (gwctl_table_t){.headers = headers, .n_columns = n_columns};
}

void gwctl_table_add(gwctl_table_t *table, gwctl_cell_t cell) {
    if (table->n_cells == table->n_allocated) {
        size_t more = table->n_allocated != 0 ? 2 * table->n_allocated : 64;
        gwctl_cell_t *cells = realloc(table->cells, more * sizeof(*cells));
        if (cells == NULL) {
            table->failed = true;
            return;
        }
        table->cells = cells;
        table->n_allocated = more;
    }
    table->cells[table->n_cells++] = cell;
}

/* Characters, not bytes: continuation bytes of UTF-8 take no column. */
static int count_columns(const char *text) {
    int columns = 0;
    for (; *text != '\0'; text++)
        columns += ((unsigned char)*text & 0xc0) != 0x80;
    return columns;
}

static void print_cell(const char *text, int width, bool right, bool last) {
    int padding = width - count_columns(text);
    if (right)
        printf("%*s", padding, "");
    fputs(text, stdout);
    if (!right && !last)
        printf("%*s", padding, "");
    fputs(last ? "\n" : "  ", stdout);
}

static void print_rows(const gwctl_table_t *table, const char *indent) {
    int widths[GWCTL_COLUMNS_MAX] = {0};
    size_t n_columns = table->n_columns;
    for (size_t i = 0; i < n_columns; i++)
        widths[i] = count_columns(table->headers[i] + (table->headers[i][0] == '>'));
    for (size_t i = 0; i < table->n_cells; i++) {
        int width = count_columns(table->cells[i].text);
        if (width > widths[i % n_columns])
            widths[i % n_columns] = width;
    }
    printf("%s%s", indent, gwctl_colour(GWCTL_BOLD));
    for (size_t i = 0; i < n_columns; i++) {
        bool right = table->headers[i][0] == '>';
        print_cell(table->headers[i] + right, widths[i], right, i + 1 == n_columns);
    }
    fputs(gwctl_colour(GWCTL_PLAIN), stdout);
    for (size_t i = 0; i < table->n_cells; i++) {
        size_t column = i % n_columns;
        if (column == 0)
            fputs(indent, stdout);
        print_cell(table->cells[i].text, widths[column], table->headers[column][0] == '>', column + 1 == n_columns);
    }
}

int gwctl_table_print(gwctl_table_t *table, const char *indent, const char *nothing) {
    int code = GWCTL_OK;
    if (table->failed) {
        fprintf(stderr, "gwctl: out of memory\n");
        code = GWCTL_FAILED;
    } else if (table->n_cells == 0) {
        printf("%s%s\n", indent, nothing);
    } else {
        print_rows(table, indent);
    }
    free(table->cells);
    return code;
}

void gwctl_print_text(const char *text) {
    char safe[2048];
    gw_escape(text, strlen(text), safe, sizeof(safe));
    fputs(safe, stdout);
}

void gwctl_print_pair(const char *name, const char *value) {
    printf("%s%-16s%s ", gwctl_colour(GWCTL_BOLD), name, gwctl_colour(GWCTL_PLAIN));
    gwctl_print_text(value);
    putchar('\n');
}

int gwctl_finish(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "gwctl: the output cannot be written: %s\n", strerror(errno));
    return code != GWCTL_OK ? code : GWCTL_FAILED;
}

int gwctl_print_json(cJSON *document) {
    char *text = document != NULL ? cJSON_PrintUnformatted(document) : NULL;
    cJSON_Delete(document);
    if (text == NULL) {
        fprintf(stderr, "gwctl: out of memory\n");
        return GWCTL_FAILED;
    }
    puts(text);
    free(text);
    return GWCTL_OK;
}
